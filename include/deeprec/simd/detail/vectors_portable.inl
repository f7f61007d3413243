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
/// The first n lanes, 0 <= n <= lanes; the others are zero, whatever they were.
DEEPREC_INLINE vector_f32 keep_first(vector_f32 x, int n) {
  alignas(64) float lane[lanes];
  x.v.store_aligned(lane);
  return load_first(lane, n);
}
template <class T>
DEEPREC_INLINE void store_first(T* p, vector_f32 x, int n) {
  alignas(64) float lane[lanes];
  x.v.store_aligned(lane);
  for (int i = 0; i < n; ++i) p[i] = static_cast<T>(lane[i]);
}
DEEPREC_INLINE vector_f32 load(const bf16* p) { return load_first(p, lanes); }
/// 2 * lanes columns, the even and the odd columns apart. Two loads cost no more where one instruction widens
/// and shifts, as on Arm.
inline constexpr bool loads_pairs_of_bf16 = false;
DEEPREC_INLINE void load_pair(const bf16* p, vector_f32& even, vector_f32& odd) {
  alignas(64) float low[lanes];
  alignas(64) float high[lanes];
  for (int i = 0; i < lanes; ++i) {
    low[i] = static_cast<float>(p[2 * i]);
    high[i] = static_cast<float>(p[2 * i + 1]);
  }
  even = xsimd::batch<float>::load_aligned(low);
  odd = xsimd::batch<float>::load_aligned(high);
}
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
// xsimd 8 compiles x != x to false for NaN with AVX: it is !(x == x) here.
/// The larger; NaN when either is.
DEEPREC_INLINE vector_f32 maximum(vector_f32 a, vector_f32 b) {
  return xsimd::select(!(a.v == a.v) || a.v > b.v, a.v, b.v);
}
/// The smaller; NaN when either is.
DEEPREC_INLINE vector_f32 minimum(vector_f32 a, vector_f32 b) {
  return xsimd::select(!(a.v == a.v) || a.v < b.v, a.v, b.v);
}
/// The larger of x and a bound that is not NaN; NaN stays NaN.
DEEPREC_INLINE vector_f32 at_least(vector_f32 x, vector_f32 bound) { return maximum(x, bound); }
/// The smaller of them.
DEEPREC_INLINE vector_f32 at_most(vector_f32 x, vector_f32 bound) { return minimum(x, bound); }
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

/// x, of which a product stays a product: compilers may fuse one with the sum that uses it.
DEEPREC_INLINE vector_f32 rounded(vector_f32 x) {
#if defined(__CUDA_ARCH__)
  return x;  // host code, which is not compiled here
#elif defined(__x86_64__)
  asm("" : "+x"(x.v.data));
#elif defined(__aarch64__)
  asm("" : "+w"(x.v.data));
#else
  asm("" : "+m"(x.v.data));
#endif
  return x;
}
/// Like store: there is no portable way past the caches.
template <class T>
DEEPREC_INLINE void stream(T* p, vector_f32 x) {
  store(p, x);
}

/// True or false for each lane.
struct mask_f32 {
  xsimd::batch_bool<float> v;
};
DEEPREC_INLINE mask_f32 mask_of(bool x) { return {xsimd::batch_bool<float>(x)}; }
/// The first n lanes, 0 <= n <= lanes, true where a byte is not 0; the others are false.
DEEPREC_INLINE mask_f32 load_mask_first(const unsigned char* p, int n) {
  alignas(64) float lane[lanes] = {};
  for (int i = 0; i < n; ++i) lane[i] = static_cast<float>(p[i]);
  return {xsimd::batch<float>::load_aligned(lane) > zero().v};
}
DEEPREC_INLINE mask_f32 load_mask(const unsigned char* p) { return load_mask_first(p, lanes); }
/// Comparisons: false where either is NaN.
DEEPREC_INLINE mask_f32 equal(vector_f32 a, vector_f32 b) { return {a.v == b.v}; }
DEEPREC_INLINE mask_f32 less(vector_f32 a, vector_f32 b) { return {a.v < b.v}; }
DEEPREC_INLINE mask_f32 less_equal(vector_f32 a, vector_f32 b) { return {a.v <= b.v}; }
DEEPREC_INLINE mask_f32 operator&(mask_f32 a, mask_f32 b) { return {a.v & b.v}; }
DEEPREC_INLINE mask_f32 operator|(mask_f32 a, mask_f32 b) { return {a.v | b.v}; }
DEEPREC_INLINE mask_f32 operator!(mask_f32 a) { return {!a.v}; }
/// a where the mask is true, else b.
DEEPREC_INLINE vector_f32 choose(mask_f32 which, vector_f32 a, vector_f32 b) {
  return xsimd::select(which.v, a.v, b.v);
}

/// The nearest whole number, ties to even, of |x| < 2^31. Of NaN: any.
DEEPREC_INLINE vector_f32 nearest(vector_f32 x) { return xsimd::to_float(xsimd::nearbyint_as_int(x.v)); }
/// x 2^n for a whole number n of -250 to 250: infinity beyond the range, and denormals.
DEEPREC_INLINE vector_f32 times_power_of_two(vector_f32 x, vector_f32 n) {
  using words = xsimd::batch<std::int32_t>;
  const words power = xsimd::to_int(n.v);
  const words half = power >> 1;  // two factors: 2^n itself may be no float
  const words first = (half + words(127)) << 23;
  const words second = (power - half + words(127)) << 23;
  return rounded(x * vector_f32(__builtin_bit_cast(xsimd::batch<float>, first))) *
         vector_f32(__builtin_bit_cast(xsimd::batch<float>, second));
}
