// Stochastic rounding over AVX-512, in both AVX-512 regions. See rounding_vectors.hpp.
// Some intrinsics are used in their _maskz_ form because the plain one warns with g++ 12.

/// The 64-bit products of sixteen words and one word, as high and low halves.
DEEPREC_INLINE void multiply_wide(__m512i a, __m512i b, __m512i& high, __m512i& low) {
  const __m512i even = _mm512_maskz_mul_epu32(0xff, a, b);
  const __m512i odd = _mm512_maskz_mul_epu32(0xff, _mm512_maskz_srli_epi64(0xff, a, 32), b);
  low = _mm512_mask_blend_epi32(0xaaaa, even, _mm512_maskz_slli_epi64(0xff, odd, 32));
  high = _mm512_mask_blend_epi32(0xaaaa, _mm512_maskz_srli_epi64(0xff, even, 32), odd);
}

/// philox() of sixteen blocks at a time.
inline void draw_words(std::uint32_t* word, const rounding::stochastic& policy, std::uint64_t row,
                       std::uint64_t chunk) {
  const auto same = [](std::uint64_t x) { return static_cast<int>(static_cast<std::uint32_t>(x)); };
  const std::uint64_t block = (policy.step << 32) + chunk * 16;
  __m512i c0 = _mm512_add_epi32(_mm512_set1_epi32(same(block)),
                                _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  __m512i c1 = _mm512_set1_epi32(same(block >> 32));
  __m512i c2 = _mm512_set1_epi32(same(row));
  __m512i c3 = _mm512_set1_epi32(same(row >> 32));
  __m512i k0 = _mm512_set1_epi32(same(policy.seed));
  __m512i k1 = _mm512_set1_epi32(same(policy.seed >> 32));
  for (int round = 0; round < 10; ++round) {
    __m512i high0, low0, high1, low1;
    multiply_wide(c0, _mm512_set1_epi32(same(0xd2511f53)), high0, low0);
    multiply_wide(c2, _mm512_set1_epi32(same(0xcd9e8d57)), high1, low1);
    c0 = _mm512_xor_si512(_mm512_xor_si512(high1, c1), k0);
    c1 = low1;
    c2 = _mm512_xor_si512(_mm512_xor_si512(high0, c3), k1);
    c3 = low0;
    k0 = _mm512_add_epi32(k0, _mm512_set1_epi32(same(0x9e3779b9)));
    k1 = _mm512_add_epi32(k1, _mm512_set1_epi32(same(0xbb67ae85)));
  }
  _mm512_storeu_si512(word, c0);
  _mm512_storeu_si512(word + 16, c1);
  _mm512_storeu_si512(word + 32, c2);
  _mm512_storeu_si512(word + 48, c3);
}

/// The same bits as detail::bf16_bits_at_random.
DEEPREC_INLINE __m256i narrow_rounded(const bf16*, vector_f32 x, __m512i word) {
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
  const __mmask16 finite = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
  const __m512i rounded = _mm512_maskz_srli_epi32(
      all_lanes, _mm512_add_epi32(magnitude, _mm512_maskz_srli_epi32(all_lanes, word, 16)), 16);
  const __m512i sign =
      _mm512_and_si512(_mm512_maskz_srli_epi32(all_lanes, bits, 16), _mm512_set1_epi32(0x8000));
  const __m512i chosen =
      _mm512_or_si512(sign, _mm512_maskz_min_epi32(all_lanes, rounded, _mm512_set1_epi32(0x7f7f)));
  return _mm256_mask_mov_epi16(narrow_bf16(x), finite, _mm512_maskz_cvtepi32_epi16(all_lanes, chosen));
}
/// The same bits as detail::f16_bits_at_random.
DEEPREC_INLINE __m256i narrow_rounded(const f16*, vector_f32 x, __m512i word) {
  const __m512i magnitude = _mm512_and_si512(_mm512_castps_si512(x.v), _mm512_set1_epi32(0x7fffffff));
  const __m256i below = _mm512_maskz_cvtps_ph(all_lanes, x.v, _MM_FROUND_TO_ZERO);
  const __m512i below_magnitude = _mm512_and_si512(
      _mm512_castps_si512(_mm512_maskz_cvtph_ps(all_lanes, below)), _mm512_set1_epi32(0x7fffffff));
  const __m512 cut = _mm512_sub_ps(_mm512_castsi512_ps(magnitude), _mm512_castsi512_ps(below_magnitude));
  // The spacing of halves is 2^(e - 137) with e the exponent's bits, 113 for denormal halves.
  const __m512i exponent = _mm512_maskz_max_epi32(
      all_lanes, _mm512_maskz_srli_epi32(all_lanes, magnitude, 23), _mm512_set1_epi32(113));
  const __m512i scale =
      _mm512_maskz_slli_epi32(all_lanes, _mm512_sub_epi32(_mm512_set1_epi32(295), exponent), 23);
  const __m512i fraction =
      _mm512_maskz_cvttps_epi32(all_lanes, _mm512_mul_ps(cut, _mm512_castsi512_ps(scale)));
  const __mmask16 up =
      _mm512_mask_cmpgt_epi32_mask(_mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(0x477fe000)),
                                   fraction, _mm512_maskz_srli_epi32(all_lanes, word, 1));
  const __m256i chosen = _mm256_mask_add_epi16(below, up, below, _mm256_set1_epi16(1));
  const __mmask16 halves_reach = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(0x47800000));
  return _mm256_mask_mov_epi16(_mm512_maskz_cvtps_ph(all_lanes, x.v, _MM_FROUND_TO_NEAREST_INT), halves_reach,
                               chosen);
}

DEEPREC_INLINE void store_rounded(float* p, vector_f32 x, const std::uint32_t*) { store(p, x); }
DEEPREC_INLINE void store_rounded_first(float* p, vector_f32 x, const std::uint32_t*, int n) {
  store_first(p, x, n);
}
template <class T>
DEEPREC_INLINE void store_rounded(T* p, vector_f32 x, const std::uint32_t* word) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_rounded(p, x, _mm512_loadu_si512(word)));
}
template <class T>
DEEPREC_INLINE void store_rounded_first(T* p, vector_f32 x, const std::uint32_t* word, int n) {
  _mm256_mask_storeu_epi16(p, first_lanes(n), narrow_rounded(p, x, _mm512_loadu_si512(word)));
}
