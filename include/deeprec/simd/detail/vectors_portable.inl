// The vector operations over xsimd, for the architecture that the unit is compiled for. See vectors.hpp.

struct region {
  static constexpr isa which = isa::portable;
};

struct vector_f32 {
  xsimd::batch<float> v;
  vector_f32() = default;
  DEEPREC_INLINE vector_f32(xsimd::batch<float> x) : v(x) {}
  DEEPREC_INLINE explicit vector_f32(float x) : v(x) {}
};
inline constexpr int lanes = static_cast<int>(xsimd::batch<float>::size);

DEEPREC_INLINE vector_f32 zero() { return vector_f32(0.0F); }
DEEPREC_INLINE vector_f32 splat(float x) { return vector_f32(x); }

DEEPREC_INLINE vector_f32 load(const float* p) { return xsimd::batch<float>::load_unaligned(p); }
DEEPREC_INLINE void store(float* p, vector_f32 x) { x.v.store_unaligned(p); }

// Sixteen-bit types and tails go through an array; compilers turn these loops into vector code.
template <class T>
DEEPREC_INLINE vector_f32 load_first(const T* p, int n) {
  alignas(64) float lane[lanes] = {};
  for (int i = 0; i < n; ++i) lane[i] = static_cast<float>(p[i]);
  return xsimd::batch<float>::load_aligned(lane);
}
/// The last n lanes, moved to the front; the others are zero.
DEEPREC_INLINE vector_f32 last_to_front(vector_f32 x, int n) {
  alignas(64) float lane[lanes];
  x.v.store_aligned(lane);
  return load_first(lane + lanes - n, n);
}
template <class T>
DEEPREC_INLINE void store_first(T* p, vector_f32 x, int n) {
  alignas(64) float lane[lanes];
  x.v.store_aligned(lane);
  for (int i = 0; i < n; ++i) p[i] = static_cast<T>(lane[i]);
}
DEEPREC_INLINE vector_f32 load(const bf16* p) { return load_first(p, lanes); }
DEEPREC_INLINE vector_f32 load(const f16* p) { return load_first(p, lanes); }
DEEPREC_INLINE void store(bf16* p, vector_f32 x) { store_first(p, x, lanes); }
DEEPREC_INLINE void store(f16* p, vector_f32 x) { store_first(p, x, lanes); }

DEEPREC_INLINE vector_f32 operator+(vector_f32 a, vector_f32 b) { return a.v + b.v; }
DEEPREC_INLINE vector_f32 operator-(vector_f32 a, vector_f32 b) { return a.v - b.v; }
DEEPREC_INLINE vector_f32 operator*(vector_f32 a, vector_f32 b) { return a.v * b.v; }
#if defined(__aarch64__) && !defined(__ARM_FEATURE_SVE)
// xsimd 8 divides and takes square roots by estimates here, which are a few units in the last place off.
DEEPREC_INLINE vector_f32 operator/(vector_f32 a, vector_f32 b) {
  return xsimd::batch<float>(vdivq_f32(a.v, b.v));
}
DEEPREC_INLINE vector_f32 sqrt(vector_f32 a) { return xsimd::batch<float>(vsqrtq_f32(a.v)); }
#else
DEEPREC_INLINE vector_f32 operator/(vector_f32 a, vector_f32 b) { return a.v / b.v; }
DEEPREC_INLINE vector_f32 sqrt(vector_f32 a) { return xsimd::sqrt(a.v); }
#endif
DEEPREC_INLINE vector_f32 multiply_add(vector_f32 a, vector_f32 b, vector_f32 c) { return a * b + c; }
/// The larger; NaN when either is.
DEEPREC_INLINE vector_f32 maximum(vector_f32 a, vector_f32 b) {
  return xsimd::select(a.v != a.v || a.v > b.v, a.v, b.v);
}
/// The smaller; NaN when either is.
DEEPREC_INLINE vector_f32 minimum(vector_f32 a, vector_f32 b) {
  return xsimd::select(a.v != a.v || a.v < b.v, a.v, b.v);
}
/// x where y is above 0, else 0.
DEEPREC_INLINE vector_f32 where_positive(vector_f32 y, vector_f32 x) {
  return xsimd::select(y.v > zero().v, x.v, zero().v);
}

/// The sum of the lanes: the upper half is added to the lower one until one lane is left.
DEEPREC_INLINE float add_lanes(vector_f32 x) {
  alignas(64) float lane[lanes];
  x.v.store_aligned(lane);
  for (int n = lanes / 2; n > 0; n /= 2) {
    for (int i = 0; i < n; ++i) lane[i] += lane[i + n];
  }
  return lane[0];
}
