// Stochastic rounding over AVX2. See rounding_vectors.hpp.

/// The 64-bit products of eight words and one word, as high and low halves.
DEEPREC_INLINE void multiply_wide(__m256i a, __m256i b, __m256i& high, __m256i& low) {
  const __m256i even = _mm256_mul_epu32(a, b);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), b);
  low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
  high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}

/// philox() of eight blocks at a time.
inline void draw_words(std::uint32_t* word, const rounding::stochastic& policy, std::uint64_t row,
                       std::uint64_t chunk) {
  const auto same = [](std::uint64_t x) { return static_cast<int>(static_cast<std::uint32_t>(x)); };
  const std::uint64_t block = (policy.step << 32) + chunk * 16;
  for (unsigned half = 0; half < 16; half += 8) {
    __m256i c0 =
        _mm256_add_epi32(_mm256_set1_epi32(same(block + half)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    __m256i c1 = _mm256_set1_epi32(same(block >> 32));
    __m256i c2 = _mm256_set1_epi32(same(row));
    __m256i c3 = _mm256_set1_epi32(same(row >> 32));
    __m256i k0 = _mm256_set1_epi32(same(policy.seed));
    __m256i k1 = _mm256_set1_epi32(same(policy.seed >> 32));
    for (int round = 0; round < 10; ++round) {
      __m256i high0, low0, high1, low1;
      multiply_wide(c0, _mm256_set1_epi32(same(0xd2511f53)), high0, low0);
      multiply_wide(c2, _mm256_set1_epi32(same(0xcd9e8d57)), high1, low1);
      c0 = _mm256_xor_si256(_mm256_xor_si256(high1, c1), k0);
      c1 = low1;
      c2 = _mm256_xor_si256(_mm256_xor_si256(high0, c3), k1);
      c3 = low0;
      k0 = _mm256_add_epi32(k0, _mm256_set1_epi32(same(0x9e3779b9)));
      k1 = _mm256_add_epi32(k1, _mm256_set1_epi32(same(0xbb67ae85)));
    }
    auto* const to = reinterpret_cast<__m256i*>(word + half);  // sixteen words are two vectors
    _mm256_storeu_si256(to, c0);
    _mm256_storeu_si256(to + 2, c1);
    _mm256_storeu_si256(to + 4, c2);
    _mm256_storeu_si256(to + 6, c3);
  }
}

DEEPREC_INLINE __m256i load_words(const std::uint32_t* word) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(word));
}
/// The lower halves of eight words below 2^16.
DEEPREC_INLINE __m128i pack_words(__m256i x) {
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(x, x), 0x08));
}

/// The same bits as detail::bf16_bits_at_random.
DEEPREC_INLINE __m128i narrow_rounded(const bf16*, vector_f32 x, __m256i word) {
  const __m256i bits = _mm256_castps_si256(x.v);
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
  const __m256i finite = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x7f800000), magnitude);
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(magnitude, _mm256_srli_epi32(word, 16)), 16);
  const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x8000));
  const __m256i chosen = _mm256_or_si256(sign, _mm256_min_epi32(rounded, _mm256_set1_epi32(0x7f7f)));
  const __m128i nearest = narrow_bf16(x);
  return _mm_blendv_epi8(nearest, pack_words(chosen), pack_words(_mm256_srli_epi32(finite, 16)));
}
/// The same bits as detail::f16_bits_at_random.
DEEPREC_INLINE __m128i narrow_rounded(const f16*, vector_f32 x, __m256i word) {
  const __m256i bits = _mm256_castps_si256(x.v);
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
  const __m128i below = _mm256_cvtps_ph(x.v, _MM_FROUND_TO_ZERO);
  const __m256i below_magnitude =
      _mm256_and_si256(_mm256_castps_si256(_mm256_cvtph_ps(below)), _mm256_set1_epi32(0x7fffffff));
  const __m256 cut = _mm256_sub_ps(_mm256_castsi256_ps(magnitude), _mm256_castsi256_ps(below_magnitude));
  // The spacing of halves is 2^(e - 137) with e the exponent's bits, 113 for denormal halves.
  const __m256i exponent = _mm256_max_epi32(_mm256_srli_epi32(magnitude, 23), _mm256_set1_epi32(113));
  const __m256i scale = _mm256_slli_epi32(_mm256_sub_epi32(_mm256_set1_epi32(295), exponent), 23);
  const __m256i fraction = _mm256_cvttps_epi32(_mm256_mul_ps(cut, _mm256_castsi256_ps(scale)));
  const __m256i up = _mm256_and_si256(_mm256_cmpgt_epi32(fraction, _mm256_srli_epi32(word, 1)),
                                      _mm256_cmpgt_epi32(_mm256_set1_epi32(0x477fe000), magnitude));
  const __m128i chosen = _mm_add_epi16(below, pack_words(_mm256_srli_epi32(up, 31)));
  const __m256i halves_reach = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x47800000), magnitude);
  const __m128i nearest = _mm256_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT);
  return _mm_blendv_epi8(nearest, chosen, pack_words(_mm256_srli_epi32(halves_reach, 16)));
}

DEEPREC_INLINE void store_rounded(float* p, vector_f32 x, const std::uint32_t*) { store(p, x); }
DEEPREC_INLINE void store_rounded_first(float* p, vector_f32 x, const std::uint32_t*, int n) {
  store_first(p, x, n);
}
template <class T>
DEEPREC_INLINE void store_rounded(T* p, vector_f32 x, const std::uint32_t* word) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow_rounded(p, x, load_words(word)));
}
template <class T>
DEEPREC_INLINE void store_rounded_first(T* p, vector_f32 x, const std::uint32_t* word, int n) {
  T lane[lanes];
  store_rounded(lane, x, word);
  __builtin_memcpy(p, lane, static_cast<unsigned>(n) * sizeof(T));
}
