// Vector primitives of one region that only optimizer steps use. No include guard: see steps.hpp.

/// x^power lane by lane; a power of 0.5, the usual one, is a square root.
DEEPREC_INLINE vector_f32 raised(vector_f32 x, float power) {
  if (power == 0.5F) return sqrt(x);
  float lane[lanes];
  store(lane, x);
  for (float& value : lane) value = ::powf(value, power);
  return load(lane);
}
