// What rounding_vectors_test.cpp calls of the words of one region. No include guard: included once for each.

inline int rounding_lanes(region) { return lanes; }

inline void draw(region, std::uint32_t* word, const rounding::stochastic& how, std::uint64_t row,
                 std::uint64_t chunk) {
  draw_words(word, how, row, chunk);
}

/// n < 0: a whole vector.
template <class T>
void round_to(region, const float* from, const std::uint32_t* word, int n, T* to) {
  const vector_f32 x = load(from);
  if (n < 0) {
    store_rounded(to, x, word);
  } else {
    store_rounded_first(to, x, word, n);
  }
}

inline void bounded(region, const float* a, const float* b, float* to) {
  store(to, minimum(load(a), load(b)));
}
