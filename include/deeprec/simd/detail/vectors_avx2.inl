// The vector operations over AVX2, FMA and F16C. See vectors.hpp.

struct region {
  static constexpr isa which = isa::avx2;
};

struct vector_f32 {
  __m256 v;
  vector_f32() = default;
  DEEPREC_INLINE vector_f32(__m256 x) : v(x) {}
  DEEPREC_INLINE explicit vector_f32(float x) : v(_mm256_set1_ps(x)) {}
};
inline constexpr int lanes = 8;

DEEPREC_INLINE vector_f32 zero() { return _mm256_setzero_ps(); }
DEEPREC_INLINE vector_f32 splat(float x) { return _mm256_set1_ps(x); }

DEEPREC_INLINE vector_f32 widen_bf16(__m128i x) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
/// Round to nearest even; NaN stays NaN (quiet). The same bits as detail::bf16_bits.
DEEPREC_INLINE __m128i narrow_bf16(vector_f32 x) {
  const __m256i bits = _mm256_castps_si256(x.v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
  // Compared as integers: with -ffast-math a compiler treats x != x as false.
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
  const __m256i nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
  const __m256i chosen = _mm256_blendv_epi8(rounded, quiet, nan);
  const __m256i packed = _mm256_packus_epi32(chosen, chosen);
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}
DEEPREC_INLINE __m256i first_lanes(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

DEEPREC_INLINE vector_f32 load(const float* p) { return _mm256_loadu_ps(p); }
DEEPREC_INLINE vector_f32 load(const bf16* p) {
  return widen_bf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
/// 2 * lanes columns, the even and the odd columns apart: half of the instructions of two loads.
inline constexpr bool loads_pairs_of_bf16 = true;
DEEPREC_INLINE void load_pair(const bf16* p, vector_f32& even, vector_f32& odd) {
  const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  even = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
  odd = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(static_cast<int>(0xffff0000U))));
}
DEEPREC_INLINE vector_f32 load(const f16* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
DEEPREC_INLINE void store(float* p, vector_f32 x) { _mm256_storeu_ps(p, x.v); }
DEEPREC_INLINE void store(bf16* p, vector_f32 x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow_bf16(x));
}
DEEPREC_INLINE void store(f16* p, vector_f32 x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT));
}

/// The first n lanes, 0 <= n <= lanes; nothing beyond them is touched; the others are zero.
DEEPREC_INLINE vector_f32 load_first(const float* p, int n) { return _mm256_maskload_ps(p, first_lanes(n)); }
/// The last n lanes, moved to the front; the others are zero.
DEEPREC_INLINE vector_f32 last_to_front(vector_f32 x, int n) {
  const __m256i from =
      _mm256_add_epi32(_mm256_set1_epi32(lanes - n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  return _mm256_and_ps(_mm256_permutevar8x32_ps(x.v, from), _mm256_castsi256_ps(first_lanes(n)));
}
/// The first n lanes, 0 <= n <= lanes; the others are zero, whatever they were.
DEEPREC_INLINE vector_f32 keep_first(vector_f32 x, int n) {
  return _mm256_and_ps(x.v, _mm256_castsi256_ps(first_lanes(n)));
}
DEEPREC_INLINE void store_first(float* p, vector_f32 x, int n) {
  _mm256_maskstore_ps(p, first_lanes(n), x.v);
}
// AVX2 has no masked access of 16-bit elements: these go through a small array.
template <class T>
DEEPREC_INLINE vector_f32 load_first(const T* p, int n) {
  T lane[lanes] = {};
  __builtin_memcpy(lane, p, static_cast<unsigned>(n) * sizeof(T));
  return load(lane);
}
template <class T>
DEEPREC_INLINE void store_first(T* p, vector_f32 x, int n) {
  T lane[lanes];
  store(lane, x);
  __builtin_memcpy(p, lane, static_cast<unsigned>(n) * sizeof(T));
}

DEEPREC_INLINE vector_f32 operator+(vector_f32 a, vector_f32 b) { return _mm256_add_ps(a.v, b.v); }
DEEPREC_INLINE vector_f32 operator-(vector_f32 a, vector_f32 b) { return _mm256_sub_ps(a.v, b.v); }
DEEPREC_INLINE vector_f32 operator*(vector_f32 a, vector_f32 b) { return _mm256_mul_ps(a.v, b.v); }
DEEPREC_INLINE vector_f32 operator/(vector_f32 a, vector_f32 b) { return _mm256_div_ps(a.v, b.v); }
/// a * b + c, rounded once.
DEEPREC_INLINE vector_f32 multiply_add(vector_f32 a, vector_f32 b, vector_f32 c) {
  return _mm256_fmadd_ps(a.v, b.v, c.v);
}
/// The larger; NaN when either is.
DEEPREC_INLINE vector_f32 maximum(vector_f32 a, vector_f32 b) {
  const __m256 nan = _mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q);
  return _mm256_blendv_ps(_mm256_max_ps(a.v, b.v), a.v, nan);
}
/// The smaller; NaN when either is.
DEEPREC_INLINE vector_f32 minimum(vector_f32 a, vector_f32 b) {
  const __m256 nan = _mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q);
  return _mm256_blendv_ps(_mm256_min_ps(a.v, b.v), a.v, nan);
}
/// The larger of x and a bound that is not NaN; NaN stays NaN.
DEEPREC_INLINE vector_f32 at_least(vector_f32 x, vector_f32 bound) { return _mm256_max_ps(bound.v, x.v); }
/// The smaller of them.
DEEPREC_INLINE vector_f32 at_most(vector_f32 x, vector_f32 bound) { return _mm256_min_ps(bound.v, x.v); }
DEEPREC_INLINE vector_f32 sqrt(vector_f32 a) { return _mm256_sqrt_ps(a.v); }
/// x where y is above 0, else 0.
DEEPREC_INLINE vector_f32 where_positive(vector_f32 y, vector_f32 x) {
  return _mm256_and_ps(_mm256_cmp_ps(y.v, _mm256_setzero_ps(), _CMP_GT_OQ), x.v);
}

/// The sum of the lanes: the upper half is added to the lower one until one lane is left.
DEEPREC_INLINE float add_lanes(vector_f32 x) {
  const __m128 of_4 = _mm_add_ps(_mm256_castps256_ps128(x.v), _mm256_extractf128_ps(x.v, 1));
  const __m128 of_2 = _mm_add_ps(of_4, _mm_movehl_ps(of_4, of_4));
  return _mm_cvtss_f32(_mm_add_ss(of_2, _mm_shuffle_ps(of_2, of_2, 1)));
}

/// x, of which a product stays a product: compilers may fuse one with the sum that uses it.
DEEPREC_INLINE vector_f32 rounded(vector_f32 x) {
  asm("" : "+x"(x.v));
  return x;
}
/// Stores past the caches; p is a multiple of lanes elements. Ends with end_streams().
DEEPREC_INLINE void stream(float* p, vector_f32 x) { _mm256_stream_ps(p, x.v); }
DEEPREC_INLINE void stream(bf16* p, vector_f32 x) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(p), narrow_bf16(x));
}
DEEPREC_INLINE void stream(f16* p, vector_f32 x) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT));
}

/// True or false for each lane.
struct mask_f32 {
  __m256 v;
};
DEEPREC_INLINE mask_f32 mask_of(bool x) { return {_mm256_castsi256_ps(_mm256_set1_epi32(x ? -1 : 0))}; }
/// True where a byte is not 0.
DEEPREC_INLINE mask_f32 load_mask(const unsigned char* p) {
  const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(bytes, _mm256_setzero_si256()))};
}
/// The first n lanes, 0 <= n <= lanes; the others are false.
DEEPREC_INLINE mask_f32 load_mask_first(const unsigned char* p, int n) {
  unsigned char lane[lanes] = {};
  __builtin_memcpy(lane, p, static_cast<unsigned>(n));
  return load_mask(lane);
}
/// Comparisons: false where either is NaN.
DEEPREC_INLINE mask_f32 equal(vector_f32 a, vector_f32 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ)}; }
DEEPREC_INLINE mask_f32 less(vector_f32 a, vector_f32 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }
DEEPREC_INLINE mask_f32 less_equal(vector_f32 a, vector_f32 b) {
  return {_mm256_cmp_ps(a.v, b.v, _CMP_LE_OQ)};
}
DEEPREC_INLINE mask_f32 operator&(mask_f32 a, mask_f32 b) { return {_mm256_and_ps(a.v, b.v)}; }
DEEPREC_INLINE mask_f32 operator|(mask_f32 a, mask_f32 b) { return {_mm256_or_ps(a.v, b.v)}; }
DEEPREC_INLINE mask_f32 operator!(mask_f32 a) { return {_mm256_xor_ps(a.v, mask_of(true).v)}; }
/// a where the mask is true, else b.
DEEPREC_INLINE vector_f32 choose(mask_f32 which, vector_f32 a, vector_f32 b) {
  return _mm256_blendv_ps(b.v, a.v, which.v);
}

/// The nearest whole number, ties to even, of |x| < 2^31. Of NaN: any.
DEEPREC_INLINE vector_f32 nearest(vector_f32 x) {
  return _mm256_round_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/// x 2^n for a whole number n of -250 to 250: infinity beyond the range, and denormals.
DEEPREC_INLINE vector_f32 times_power_of_two(vector_f32 x, vector_f32 n) {
  const __m256i power = _mm256_cvtps_epi32(n.v);
  const __m256i half = _mm256_srai_epi32(power, 1);  // two factors: 2^n itself may be no float
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i second = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(power, half), bias), 23);
  return rounded(x * vector_f32(_mm256_castsi256_ps(first))) * vector_f32(_mm256_castsi256_ps(second));
}
