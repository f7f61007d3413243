// Loads and stores of coded elements, over AVX2. See vectors.hpp.

DEEPREC_INLINE __m128i eight_bytes(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }
/// The first n bytes, 0 <= n <= 8; the others are zero.
DEEPREC_INLINE __m128i first_bytes(const void* p, int n) {
  std::byte lane[8] = {};
  ::deeprec::detail::copy_in_two<4>(lane, static_cast<const std::byte*>(p), n);
  return eight_bytes(lane);
}

/// An E4M3, shifted, is a half of 2^-8 times its value. Exact, also where the unit flushes denormals.
DEEPREC_INLINE vector_f32 widen_e4m3(__m128i bytes) {
  const __m128i half =
      _mm_and_si128(_mm_slli_epi16(_mm_cvtepi8_epi16(bytes), 7), _mm_set1_epi16(static_cast<short>(0xbf80)));
  const __m128i top = _mm_set1_epi16(0x3f80);
  const __m128i nan = _mm_cmpeq_epi16(_mm_and_si128(half, top), top);
  const __m128i filled = _mm_or_si128(half, _mm_and_si128(nan, _mm_set1_epi16(0x7e00)));
  return _mm256_mul_ps(_mm256_cvtph_ps(filled), _mm256_set1_ps(256.0F));
}
DEEPREC_INLINE vector_f32 widen_e5m2(__m128i bytes) {
  return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(bytes), 8));
}
DEEPREC_INLINE vector_f32 load(const e4m3* p) { return widen_e4m3(eight_bytes(p)); }
DEEPREC_INLINE vector_f32 load(const e5m2* p) { return widen_e5m2(eight_bytes(p)); }
DEEPREC_INLINE vector_f32 load_first(const e4m3* p, int n) { return widen_e4m3(first_bytes(p, n)); }
DEEPREC_INLINE vector_f32 load_first(const e5m2* p, int n) { return widen_e5m2(first_bytes(p, n)); }

DEEPREC_INLINE vector_f32 widen_codes(__m128i bytes) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
}
DEEPREC_INLINE vector_f32 load_codes(const std::byte* p) { return widen_codes(eight_bytes(p)); }
DEEPREC_INLINE vector_f32 load_first_codes(const std::byte* p, int n) {
  return widen_codes(first_bytes(p, n));
}

/// A byte in each 64-bit lane becomes its two nibbles, one in each half of the lane.
DEEPREC_INLINE __m256i split_nibbles(__m128i bytes) {
  const __m256i one_each = _mm256_cvtepu8_epi64(bytes);
  return _mm256_and_si256(_mm256_or_si256(one_each, _mm256_slli_epi64(one_each, 28)), _mm256_set1_epi32(15));
}
DEEPREC_INLINE vector_f32 load_nibbles(const std::byte* p) {
  int four;
  __builtin_memcpy(&four, p, 4);
  return _mm256_cvtepi32_ps(split_nibbles(_mm_cvtsi32_si128(four)));
}
DEEPREC_INLINE vector_f32 load_first_nibbles(const std::byte* p, int n) {
  const __m256i codes = split_nibbles(first_bytes(p, (n + 1) / 2));
  return _mm256_cvtepi32_ps(_mm256_and_si256(codes, first_lanes(n)));
}

/// The codes of 2 * lanes columns, the even and the odd columns apart.
DEEPREC_INLINE void load_nibbles(const std::byte* p, vector_f32& even, vector_f32& odd) {
  const __m256i bytes = _mm256_cvtepu8_epi32(eight_bytes(p));
  even = _mm256_cvtepi32_ps(_mm256_and_si256(bytes, _mm256_set1_epi32(15)));
  odd = _mm256_cvtepi32_ps(_mm256_srli_epi32(bytes, 4));
}
/// Even and odd columns become the first and the last half of the columns.
DEEPREC_INLINE void interleave(vector_f32& even, vector_f32& odd) {
  const __m256 low = _mm256_unpacklo_ps(even.v, odd.v);
  const __m256 high = _mm256_unpackhi_ps(even.v, odd.v);
  even = _mm256_permute2f128_ps(low, high, 0x20);
  odd = _mm256_permute2f128_ps(low, high, 0x31);
}

DEEPREC_INLINE vector_f32 join_halves(__m128i high, __m128i low) {
  return _mm256_castsi256_ps(
      _mm256_or_si256(_mm256_slli_epi32(_mm256_cvtepu16_epi32(high), 16), _mm256_cvtepu16_epi32(low)));
}
DEEPREC_INLINE vector_f32 load_halves(const std::byte* high, const std::byte* low) {
  return join_halves(_mm_loadu_si128(static_cast<const __m128i*>(static_cast<const void*>(high))),
                     _mm_loadu_si128(static_cast<const __m128i*>(static_cast<const void*>(low))));
}
DEEPREC_INLINE vector_f32 load_first_halves(const std::byte* high, const std::byte* low, int n) {
  std::byte top[16] = {};
  std::byte bottom[16] = {};
  ::deeprec::detail::copy_in_two<8>(top, high, 2 * n);
  ::deeprec::detail::copy_in_two<8>(bottom, low, 2 * n);
  return load_halves(top, bottom);
}
DEEPREC_INLINE void store_halves(std::byte* high, std::byte* low, vector_f32 x) {
  const __m256i bits = _mm256_castps_si256(x.v);
  const __m256i top = _mm256_srli_epi32(bits, 16);
  const __m256i bottom = _mm256_blend_epi16(bits, _mm256_setzero_si256(), 0xaa);
  // Two packed quarters of each, in the order top, bottom, top, bottom.
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(top, bottom), 0xd8);
  _mm_storeu_si128(static_cast<__m128i*>(static_cast<void*>(high)), _mm256_castsi256_si128(packed));
  _mm_storeu_si128(static_cast<__m128i*>(static_cast<void*>(low)), _mm256_extracti128_si256(packed, 1));
}
DEEPREC_INLINE void store_first_halves(std::byte* high, std::byte* low, vector_f32 x, int n) {
  std::byte top[16];
  std::byte bottom[16];
  store_halves(top, bottom, x);
  ::deeprec::detail::copy_in_two<8>(high, top, 2 * n);
  ::deeprec::detail::copy_in_two<8>(low, bottom, 2 * n);
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
