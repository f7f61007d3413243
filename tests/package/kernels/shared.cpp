void plain(const float* table, const long long* ids, float* out);

void call_plain(const float* table, const long long* ids, float* out) { plain(table, ids, out); }
