// Loads and stores of coded elements, over AVX-512 (F, BW, DQ, VL), in both AVX-512 regions. See vectors.hpp.

DEEPREC_INLINE __m128i sixteen_bytes(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
/// The first n bytes, 0 <= n <= 16; the others are zero.
DEEPREC_INLINE __m128i first_bytes(const void* p, int n) { return _mm_maskz_loadu_epi8(first_lanes(n), p); }

/// An E4M3, shifted, is a half of 2^-8 times its value. Exact, also where the unit flushes denormals.
DEEPREC_INLINE vector_f32 widen_e4m3(__m128i bytes) {
  const __m256i half = _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7),
                                        _mm256_set1_epi16(static_cast<short>(0xbf80)));
  const __m256i top = _mm256_set1_epi16(0x3f80);
  const __m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(half, top), top);
  const __m256i filled = _mm256_or_si256(half, _mm256_and_si256(nan, _mm256_set1_epi16(0x7e00)));
  return _mm512_mul_ps(_mm512_maskz_cvtph_ps(all_lanes, filled), _mm512_set1_ps(256.0F));
}
DEEPREC_INLINE vector_f32 widen_e5m2(__m128i bytes) {
  return _mm512_maskz_cvtph_ps(all_lanes, _mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8));
}
DEEPREC_INLINE vector_f32 load(const e4m3* p) { return widen_e4m3(sixteen_bytes(p)); }
DEEPREC_INLINE vector_f32 load(const e5m2* p) { return widen_e5m2(sixteen_bytes(p)); }
DEEPREC_INLINE vector_f32 load_first(const e4m3* p, int n) { return widen_e4m3(first_bytes(p, n)); }
DEEPREC_INLINE vector_f32 load_first(const e5m2* p, int n) { return widen_e5m2(first_bytes(p, n)); }

DEEPREC_INLINE vector_f32 widen_codes(__m128i bytes) {
  return _mm512_maskz_cvtepi32_ps(all_lanes, _mm512_maskz_cvtepu8_epi32(all_lanes, bytes));
}
DEEPREC_INLINE vector_f32 load_codes(const std::byte* p) { return widen_codes(sixteen_bytes(p)); }
DEEPREC_INLINE vector_f32 load_first_codes(const std::byte* p, int n) {
  return widen_codes(first_bytes(p, n));
}

/// A byte in each 64-bit lane becomes its two nibbles, one in each half of the lane.
DEEPREC_INLINE __m512i split_nibbles(__m128i bytes) {
  const __m512i one_each = _mm512_maskz_cvtepu8_epi64(0xff, bytes);
  return _mm512_and_si512(_mm512_or_si512(one_each, _mm512_maskz_slli_epi64(0xff, one_each, 28)),
                          _mm512_set1_epi32(15));
}
DEEPREC_INLINE vector_f32 load_nibbles(const std::byte* p) {
  const __m128i eight = _mm_loadl_epi64(static_cast<const __m128i*>(static_cast<const void*>(p)));
  return _mm512_maskz_cvtepi32_ps(all_lanes, split_nibbles(eight));
}
DEEPREC_INLINE vector_f32 load_first_nibbles(const std::byte* p, int n) {
  return _mm512_maskz_cvtepi32_ps(first_lanes(n), split_nibbles(first_bytes(p, (n + 1) / 2)));
}

/// The codes of 2 * lanes columns, the even and the odd columns apart. The permutation uses the lowest four
/// bits of each lane: one instruction masks and converts.
DEEPREC_INLINE void load_nibbles(const std::byte* p, vector_f32& even, vector_f32& odd) {
  const __m512 numbers = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i bytes = _mm512_maskz_cvtepu8_epi32(all_lanes, sixteen_bytes(p));
  even = _mm512_maskz_permutexvar_ps(all_lanes, bytes, numbers);
  odd = _mm512_maskz_permutexvar_ps(all_lanes, _mm512_maskz_srli_epi32(all_lanes, bytes, 4), numbers);
}
/// Even and odd columns become the first and the last half of the columns.
DEEPREC_INLINE void interleave(vector_f32& even, vector_f32& odd) {
  const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i last = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  const __m512 whole = _mm512_permutex2var_ps(even.v, first, odd.v);
  odd = _mm512_permutex2var_ps(even.v, last, odd.v);
  even = whole;
}

DEEPREC_INLINE vector_f32 join_halves(__m256i high, __m256i low) {
  return _mm512_castsi512_ps(
      _mm512_or_si512(_mm512_maskz_slli_epi32(all_lanes, _mm512_maskz_cvtepu16_epi32(all_lanes, high), 16),
                      _mm512_maskz_cvtepu16_epi32(all_lanes, low)));
}
DEEPREC_INLINE vector_f32 load_halves(const std::byte* high, const std::byte* low) {
  return join_halves(_mm256_loadu_si256(static_cast<const __m256i*>(static_cast<const void*>(high))),
                     _mm256_loadu_si256(static_cast<const __m256i*>(static_cast<const void*>(low))));
}
DEEPREC_INLINE vector_f32 load_first_halves(const std::byte* high, const std::byte* low, int n) {
  return join_halves(_mm256_maskz_loadu_epi16(first_lanes(n), high),
                     _mm256_maskz_loadu_epi16(first_lanes(n), low));
}
DEEPREC_INLINE void store_halves(std::byte* high, std::byte* low, vector_f32 x) {
  const __m512i bits = _mm512_castps_si512(x.v);
  _mm256_storeu_si256(static_cast<__m256i*>(static_cast<void*>(high)),
                      _mm512_maskz_cvtepi32_epi16(all_lanes, _mm512_maskz_srli_epi32(all_lanes, bits, 16)));
  _mm256_storeu_si256(static_cast<__m256i*>(static_cast<void*>(low)),
                      _mm512_maskz_cvtepi32_epi16(all_lanes, bits));
}
DEEPREC_INLINE void store_first_halves(std::byte* high, std::byte* low, vector_f32 x, int n) {
  const __m512i bits = _mm512_castps_si512(x.v);
  _mm512_mask_cvtepi32_storeu_epi16(high, first_lanes(n), _mm512_maskz_srli_epi32(all_lanes, bits, 16));
  _mm512_mask_cvtepi32_storeu_epi16(low, first_lanes(n), bits);
}

DEEPREC_INLINE ::deeprec::detail::two_floats load_two(const std::byte* p, float) {
  ::deeprec::detail::two_floats both;
  __builtin_memcpy(&both, p, sizeof(both));
  return both;
}
DEEPREC_INLINE ::deeprec::detail::two_floats load_two(const std::byte* p, f16) {
  int bits;
  __builtin_memcpy(&bits, p, 4);
  const __m128 both = _mm_cvtph_ps(_mm_cvtsi32_si128(bits));
  return {_mm_cvtss_f32(both), _mm_cvtss_f32(_mm_movehdup_ps(both))};
}
