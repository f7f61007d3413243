// Stochastic rounding through arrays, for the portable region and for scalar code. See rounding_vectors.hpp.

inline void draw_words(std::uint32_t* word, const rounding::stochastic& policy, std::uint64_t row,
                       std::uint64_t chunk) {
  const counter_rng rng(policy.seed);
  for (std::uint64_t i = 0; i < 16; ++i) {
    const random_words random = rng.words(row, (policy.step << 32) + chunk * 16 + i);
    for (std::uint64_t k = 0; k < 4; ++k) word[k * 16 + i] = random.w[k];
  }
}

template <class T>
DEEPREC_INLINE void store_rounded_first(T* p, vector_f32 x, const std::uint32_t* word, int n) {
  float lane[lanes];
  store(lane, x);
  for (int i = 0; i < n; ++i) p[i] = detail::round_with<T>(lane[i], word[i]);
}
template <class T>
DEEPREC_INLINE void store_rounded(T* p, vector_f32 x, const std::uint32_t* word) {
  store_rounded_first(p, x, word, lanes);
}
