// The vector words over xsimd, for whatever architecture the unit is compiled for. See words.hpp.

struct region {
  static constexpr isa which = isa::portable;
};

using vector_f32 = xsimd::batch<float>;
inline constexpr int lanes = static_cast<int>(vector_f32::size);

DEEPREC_INLINE vector_f32 zero() { return vector_f32(0.0F); }
DEEPREC_INLINE vector_f32 splat(float x) { return vector_f32(x); }

DEEPREC_INLINE vector_f32 load(const float* p) { return vector_f32::load_unaligned(p); }
DEEPREC_INLINE void store(float* p, vector_f32 x) { x.store_unaligned(p); }

// Sixteen-bit types and tails go through an array; compilers turn these loops into vector code.
template <class T>
DEEPREC_INLINE vector_f32 load_first(const T* p, int n) {
  alignas(64) float lane[lanes] = {};
  for (int i = 0; i < n; ++i) lane[i] = static_cast<float>(p[i]);
  return vector_f32::load_aligned(lane);
}
template <class T>
DEEPREC_INLINE void store_first(T* p, vector_f32 x, int n) {
  alignas(64) float lane[lanes];
  x.store_aligned(lane);
  for (int i = 0; i < n; ++i) p[i] = static_cast<T>(lane[i]);
}
DEEPREC_INLINE vector_f32 load(const bf16* p) { return load_first(p, lanes); }
DEEPREC_INLINE vector_f32 load(const f16* p) { return load_first(p, lanes); }
DEEPREC_INLINE void store(bf16* p, vector_f32 x) { store_first(p, x, lanes); }
DEEPREC_INLINE void store(f16* p, vector_f32 x) { store_first(p, x, lanes); }

DEEPREC_INLINE vector_f32 multiply_add(vector_f32 a, vector_f32 b, vector_f32 c) { return a * b + c; }
DEEPREC_INLINE vector_f32 maximum(vector_f32 a, vector_f32 b) { return (xsimd::max)(a, b); }
DEEPREC_INLINE vector_f32 sqrt(vector_f32 a) { return xsimd::sqrt(a); }

/// The lanes added left to right.
DEEPREC_INLINE float add_lanes(vector_f32 x) {
  alignas(64) float lane[lanes];
  x.store_aligned(lane);
  float sum = lane[0];
  for (int i = 1; i < lanes; ++i) sum += lane[i];
  return sum;
}
