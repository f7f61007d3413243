// The vector operations over AVX-512 (F, BW, DQ, VL), in both AVX-512 regions. See vectors.hpp.
// Some intrinsics are used in their _maskz_ form because the plain one warns with g++ 12.

struct vector_f32 {
  __m512 v;
  vector_f32() = default;
  DEEPREC_INLINE vector_f32(__m512 x) : v(x) {}
  DEEPREC_INLINE explicit vector_f32(float x) : v(_mm512_set1_ps(x)) {}
};
inline constexpr int lanes = 16;
inline constexpr __mmask16 all_lanes = 0xffff;

DEEPREC_INLINE vector_f32 zero() { return _mm512_setzero_ps(); }
DEEPREC_INLINE vector_f32 splat(float x) { return _mm512_set1_ps(x); }

DEEPREC_INLINE vector_f32 widen_bf16(__m256i x) {
  return _mm512_castsi512_ps(
      _mm512_maskz_slli_epi32(all_lanes, _mm512_maskz_cvtepu16_epi32(all_lanes, x), 16));
}
/// Round to nearest even; NaN stays NaN (quiet); denormals kept. The same bits as detail::bf16_bits.
DEEPREC_INLINE __m256i narrow_bf16(vector_f32 x) {
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i high = _mm512_maskz_srli_epi32(all_lanes, bits, 16);
  const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_maskz_srli_epi32(
      all_lanes, _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  // Compared as integers: with -ffast-math a compiler treats x != x as false.
  const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
  const __mmask16 nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
  const __m512i chosen = _mm512_mask_or_epi32(rounded, nan, high, _mm512_set1_epi32(0x40));
  return _mm512_maskz_cvtepi32_epi16(all_lanes, chosen);
}
DEEPREC_INLINE __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1U << n) - 1U); }

DEEPREC_INLINE vector_f32 load(const float* p) { return _mm512_loadu_ps(p); }
DEEPREC_INLINE vector_f32 load(const bf16* p) {
  return widen_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
/// 2 * lanes columns, the even and the odd columns apart: half of the instructions of two loads.
inline constexpr bool loads_pairs_of_bf16 = true;
DEEPREC_INLINE void load_pair(const bf16* p, vector_f32& even, vector_f32& odd) {
  const __m512i both = _mm512_loadu_si512(p);
  even = _mm512_castsi512_ps(_mm512_maskz_slli_epi32(all_lanes, both, 16));
  odd = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xffff0000U))));
}
DEEPREC_INLINE vector_f32 load(const f16* p) {
  return _mm512_maskz_cvtph_ps(all_lanes, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
DEEPREC_INLINE void store(float* p, vector_f32 x) { _mm512_storeu_ps(p, x.v); }
DEEPREC_INLINE void store(bf16* p, vector_f32 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_bf16(x));
}
DEEPREC_INLINE void store(f16* p, vector_f32 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_maskz_cvtps_ph(all_lanes, x.v, _MM_FROUND_TO_NEAREST_INT));
}

/// The first n lanes, 0 <= n <= lanes; nothing beyond them is touched; the others are zero.
DEEPREC_INLINE vector_f32 load_first(const float* p, int n) {
  return _mm512_maskz_loadu_ps(first_lanes(n), p);
}
DEEPREC_INLINE vector_f32 load_first(const bf16* p, int n) {
  return widen_bf16(_mm256_maskz_loadu_epi16(first_lanes(n), p));
}
DEEPREC_INLINE vector_f32 load_first(const f16* p, int n) {
  return _mm512_maskz_cvtph_ps(all_lanes, _mm256_maskz_loadu_epi16(first_lanes(n), p));
}
/// The last n lanes, moved to the front; the others are zero.
DEEPREC_INLINE vector_f32 last_to_front(vector_f32 x, int n) {
  return _mm512_maskz_compress_ps(static_cast<__mmask16>(~first_lanes(lanes - n)), x.v);
}
/// The first n lanes, 0 <= n <= lanes; the others are zero, whatever they were.
DEEPREC_INLINE vector_f32 keep_first(vector_f32 x, int n) { return _mm512_maskz_mov_ps(first_lanes(n), x.v); }
DEEPREC_INLINE void store_first(float* p, vector_f32 x, int n) {
  _mm512_mask_storeu_ps(p, first_lanes(n), x.v);
}
DEEPREC_INLINE void store_first(bf16* p, vector_f32 x, int n) {
  _mm256_mask_storeu_epi16(p, first_lanes(n), narrow_bf16(x));
}
DEEPREC_INLINE void store_first(f16* p, vector_f32 x, int n) {
  _mm256_mask_storeu_epi16(p, first_lanes(n),
                           _mm512_maskz_cvtps_ph(all_lanes, x.v, _MM_FROUND_TO_NEAREST_INT));
}

DEEPREC_INLINE vector_f32 operator+(vector_f32 a, vector_f32 b) { return _mm512_add_ps(a.v, b.v); }
DEEPREC_INLINE vector_f32 operator-(vector_f32 a, vector_f32 b) { return _mm512_sub_ps(a.v, b.v); }
DEEPREC_INLINE vector_f32 operator*(vector_f32 a, vector_f32 b) { return _mm512_mul_ps(a.v, b.v); }
DEEPREC_INLINE vector_f32 operator/(vector_f32 a, vector_f32 b) { return _mm512_div_ps(a.v, b.v); }
/// a * b + c, rounded once.
DEEPREC_INLINE vector_f32 multiply_add(vector_f32 a, vector_f32 b, vector_f32 c) {
  return _mm512_fmadd_ps(a.v, b.v, c.v);
}
/// The larger; NaN when either is.
DEEPREC_INLINE vector_f32 maximum(vector_f32 a, vector_f32 b) {
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  return _mm512_mask_mov_ps(_mm512_maskz_max_ps(all_lanes, a.v, b.v), nan, a.v);
}
/// The smaller; NaN when either is.
DEEPREC_INLINE vector_f32 minimum(vector_f32 a, vector_f32 b) {
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  return _mm512_mask_mov_ps(_mm512_maskz_min_ps(all_lanes, a.v, b.v), nan, a.v);
}
/// The larger of x and a bound that is not NaN; NaN stays NaN.
DEEPREC_INLINE vector_f32 at_least(vector_f32 x, vector_f32 bound) {
  return _mm512_maskz_max_ps(all_lanes, bound.v, x.v);
}
/// The smaller of them.
DEEPREC_INLINE vector_f32 at_most(vector_f32 x, vector_f32 bound) {
  return _mm512_maskz_min_ps(all_lanes, bound.v, x.v);
}
DEEPREC_INLINE vector_f32 sqrt(vector_f32 a) { return _mm512_maskz_sqrt_ps(all_lanes, a.v); }
/// x where y is above 0, else 0.
DEEPREC_INLINE vector_f32 where_positive(vector_f32 y, vector_f32 x) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(y.v, _mm512_setzero_ps(), _CMP_GT_OQ), x.v);
}

/// The sum of the lanes: the upper half is added to the lower one until one lane is left.
DEEPREC_INLINE float add_lanes(vector_f32 x) {
  const __m512 of_8 = _mm512_add_ps(x.v, _mm512_maskz_shuffle_f32x4(all_lanes, x.v, x.v, 0xee));
  const __m512 of_4 = _mm512_add_ps(of_8, _mm512_maskz_shuffle_f32x4(all_lanes, of_8, of_8, 0x55));
  const __m512 of_2 = _mm512_add_ps(of_4, _mm512_maskz_permute_ps(all_lanes, of_4, 0x0e));
  return _mm512_cvtss_f32(_mm512_add_ps(of_2, _mm512_maskz_permute_ps(all_lanes, of_2, 0x01)));
}

/// x, of which a product stays a product: compilers may fuse one with the sum that uses it.
DEEPREC_INLINE vector_f32 rounded(vector_f32 x) {
  asm("" : "+v"(x.v));
  return x;
}
/// Stores past the caches; p is a multiple of lanes elements. Ends with end_streams().
DEEPREC_INLINE void stream(float* p, vector_f32 x) { _mm512_stream_ps(p, x.v); }
DEEPREC_INLINE void stream(bf16* p, vector_f32 x) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), narrow_bf16(x));
}
DEEPREC_INLINE void stream(f16* p, vector_f32 x) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_maskz_cvtps_ph(all_lanes, x.v, _MM_FROUND_TO_NEAREST_INT));
}

/// True or false for each lane.
struct mask_f32 {
  __mmask16 v;
};
DEEPREC_INLINE mask_f32 mask_of(bool x) { return {x ? all_lanes : __mmask16{0}}; }
/// True where a byte is not 0.
DEEPREC_INLINE mask_f32 load_mask(const unsigned char* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm_test_epi8_mask(bytes, bytes)};
}
/// The first n lanes, 0 <= n <= lanes; the others are false.
DEEPREC_INLINE mask_f32 load_mask_first(const unsigned char* p, int n) {
  const __m128i bytes = _mm_maskz_loadu_epi8(first_lanes(n), p);
  return {_mm_test_epi8_mask(bytes, bytes)};
}
/// Comparisons: false where either is NaN.
DEEPREC_INLINE mask_f32 equal(vector_f32 a, vector_f32 b) {
  return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)};
}
DEEPREC_INLINE mask_f32 less(vector_f32 a, vector_f32 b) {
  return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)};
}
DEEPREC_INLINE mask_f32 less_equal(vector_f32 a, vector_f32 b) {
  return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ)};
}
DEEPREC_INLINE mask_f32 operator&(mask_f32 a, mask_f32 b) { return {static_cast<__mmask16>(a.v & b.v)}; }
DEEPREC_INLINE mask_f32 operator|(mask_f32 a, mask_f32 b) { return {static_cast<__mmask16>(a.v | b.v)}; }
DEEPREC_INLINE mask_f32 operator!(mask_f32 a) { return {static_cast<__mmask16>(~a.v)}; }
/// a where the mask is true, else b.
DEEPREC_INLINE vector_f32 choose(mask_f32 which, vector_f32 a, vector_f32 b) {
  return _mm512_mask_mov_ps(b.v, which.v, a.v);
}

/// The nearest whole number, ties to even, of |x| < 2^31. Of NaN: any.
DEEPREC_INLINE vector_f32 nearest(vector_f32 x) {
  return _mm512_maskz_roundscale_ps(all_lanes, x.v, _MM_FROUND_TO_NEAREST_INT);
}
/// x 2^n for a whole number n of -250 to 250: infinity beyond the range, and denormals.
DEEPREC_INLINE vector_f32 times_power_of_two(vector_f32 x, vector_f32 n) {
  return _mm512_maskz_scalef_ps(all_lanes, x.v, n.v);
}
