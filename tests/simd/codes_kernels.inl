// What codes_test.cpp calls of the words of one region. No include guard: included once for each.

inline int lane_count(region) { return lanes; }

/// n < 0: a whole vector.
template <class T>
void widen(region, const T* from, int n, float* to) {
  store(to, n < 0 ? load(from) : load_first(from, n));
}
inline void widen_codes(region, const std::byte* from, int n, float* to) {
  store(to, n < 0 ? load_codes(from) : load_first_codes(from, n));
}
inline void widen_nibbles(region, const std::byte* from, int n, float* to) {
  store(to, n < 0 ? load_nibbles(from) : load_first_nibbles(from, n));
}
inline void join_halves(region, const std::byte* high, const std::byte* low, int n, float* to) {
  store(to, n < 0 ? load_halves(high, low) : load_first_halves(high, low, n));
}
/// 2 * lanes columns: even and odd ones apart, and put in order.
inline void widen_nibble_pairs(region, const std::byte* from, float* apart, float* in_order) {
  vector_f32 even, odd;
  load_nibbles(from, even, odd);
  store(apart, even);
  store(apart + lanes, odd);
  interleave(even, odd);
  store(in_order, even);
  store(in_order + lanes, odd);
}
/// The same of bf16.
inline void widen_pairs(region, const bf16* from, float* apart, float* in_order) {
  vector_f32 even, odd;
  load_pair(from, even, odd);
  store(apart, even);
  store(apart + lanes, odd);
  interleave(even, odd);
  store(in_order, even);
  store(in_order + lanes, odd);
}
template <class Scale>
void widen_two(region, const std::byte* from, float* to) {
  const auto both = load_two(from, Scale{});
  to[0] = both.first;
  to[1] = both.second;
}
