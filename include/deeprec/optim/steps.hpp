// The step of an optimizer on one element of a row, and the transforms of wrappers on weight and gradient
// before it.
//
//   steps.inl ──> scalar::take_step(step, float ...)            host and device
//             └─> isa_avx512::take_step(step, vector_f32 ...)   and so on, for kernels in a region
//
// A functor over SIMD vectors can't be passed into a region from outside, so a step is data and its formula
// is compiled inside the region. A user-defined optimizer needs no formula there: kernels fall back to its
// operator() on floats. The compiler may fuse a product with the sum that follows, so scalar code and each
// ISA agree up to a rounding or two of each operation, not bit for bit.
#pragma once

#include <cmath>

#include <deeprec/core/config.hpp>
#include <deeprec/simd/vectors.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace steps {

/// w - rate * g
struct scaled_step {
  float rate;
  DEEPREC_HD float operator()(float weight, float gradient) const noexcept;
};

/// v = decay * v + gain * g, then w - rate * (of_velocity * v + of_gradient * g)
struct momentum_step {
  float rate;
  float decay;
  float gain;
  float of_velocity;
  float of_gradient;
  DEEPREC_HD float operator()(float weight, float gradient, float& velocity) const noexcept;
};

/// s = max(s * keep, floor) + g^2, then w - rate * g / (sqrt(s) + epsilon)
struct adagrad_step {
  float rate;
  float epsilon;
  float keep;
  float floor;
  DEEPREC_HD float operator()(float weight, float gradient, float& squares) const noexcept;
};

/// s = decay * s + gain * g^2, then w - rate * g / (sqrt(s) + epsilon)
struct rmsprop_step {
  float rate;
  float epsilon;
  float decay;
  float gain;
  DEEPREC_HD float operator()(float weight, float gradient, float& squares) const noexcept;
};

/// s and m are running means of g^2 and of g, then w - rate * g / (sqrt(s - m^2) + epsilon)
struct centered_rmsprop_step {
  float rate;
  float epsilon;
  float decay;
  float gain;
  DEEPREC_HD float operator()(float weight, float gradient, float& squares, float& average) const noexcept;
};

/// m = decay1 * m + gain1 * g, s = decay2 * s + gain2 * g^2,
/// then w - rate * (of_moment * m + of_gradient * g) / (sqrt(s) * root + epsilon)
struct adam_step {
  float rate;
  float epsilon;
  float decay1;
  float gain1;
  float decay2;
  float gain2;
  float root;
  float of_moment;
  float of_gradient;
  DEEPREC_HD float operator()(float weight, float gradient, float& moment, float& squares) const noexcept;
};

/// s = decay2 * s + gain2 * g^2, v = decay1 * v + rate * g / sqrt(s + epsilon), then w - v
struct rmsprop_momentum_step {
  float rate;
  float epsilon;
  float decay1;
  float decay2;
  float gain2;
  DEEPREC_HD float operator()(float weight, float gradient, float& velocity, float& squares) const noexcept;
};

/// n' = max(n, floor) + g^2, z += g + shrinkage * w - (n'^power - n^power) * inverse_rate * w,
/// then (clamp(z, -l1, l1) - z) / (n'^power * inverse_rate + l2)
struct ftrl_step {
  float inverse_rate;
  float power;
  float l1;
  float l2;
  float shrinkage;
  float floor;
  DEEPREC_HD float operator()(float weight, float gradient, float& squares, float& linear) const noexcept;
};

/// g = factor * g
struct scale_gradient {
  float factor;
};

/// g = clamp(g, -limit, limit); NaN stays NaN
struct clip_gradient {
  float limit;
};

/// g = g + rate * w
struct decay_weight {
  float rate;
};

/// w = keep * w
struct shrink_weight {
  float keep;
};

}  // namespace steps

/// The vector primitives that steps.inl uses, for one float.
namespace scalar {
using vector_f32 = float;
DEEPREC_HD DEEPREC_INLINE float splat(float x) { return x; }
DEEPREC_HD DEEPREC_INLINE float multiply_add(float a, float b, float c) { return a * b + c; }
DEEPREC_HD DEEPREC_INLINE float sqrt(float x) { return ::sqrtf(x); }
DEEPREC_HD DEEPREC_INLINE float maximum(float a, float b) { return a != a || a > b ? a : b; }
DEEPREC_HD DEEPREC_INLINE float minimum(float a, float b) { return a != a || a < b ? a : b; }
DEEPREC_HD DEEPREC_INLINE float raised(float x, float power) {
  return power == 0.5F ? ::sqrtf(x) : ::powf(x, power);
}
#include <deeprec/optim/detail/steps.inl>
}  // namespace scalar

namespace steps {

DEEPREC_HD inline float scaled_step::operator()(float weight, float gradient) const noexcept {
  return scalar::take_step(*this, weight, gradient);
}

DEEPREC_HD inline float momentum_step::operator()(float weight, float gradient,
                                                  float& velocity) const noexcept {
  return scalar::take_step(*this, weight, gradient, velocity);
}

DEEPREC_HD inline float adagrad_step::operator()(float weight, float gradient,
                                                 float& squares) const noexcept {
  return scalar::take_step(*this, weight, gradient, squares);
}

DEEPREC_HD inline float rmsprop_step::operator()(float weight, float gradient,
                                                 float& squares) const noexcept {
  return scalar::take_step(*this, weight, gradient, squares);
}

DEEPREC_HD inline float centered_rmsprop_step::operator()(float weight, float gradient, float& squares,
                                                          float& average) const noexcept {
  return scalar::take_step(*this, weight, gradient, squares, average);
}

DEEPREC_HD inline float adam_step::operator()(float weight, float gradient, float& moment,
                                              float& squares) const noexcept {
  return scalar::take_step(*this, weight, gradient, moment, squares);
}

DEEPREC_HD inline float rmsprop_momentum_step::operator()(float weight, float gradient, float& velocity,
                                                          float& squares) const noexcept {
  return scalar::take_step(*this, weight, gradient, velocity, squares);
}

DEEPREC_HD inline float ftrl_step::operator()(float weight, float gradient, float& squares,
                                              float& linear) const noexcept {
  return scalar::take_step(*this, weight, gradient, squares, linear);
}

}  // namespace steps

}}  // namespace deeprec::DEEPREC_ABI

#define DEEPREC_REGION_SOURCE "deeprec/optim/detail/step_vectors.inl"
#include <deeprec/simd/foreach_region.hpp>

#define DEEPREC_REGION_SOURCE "deeprec/optim/detail/steps.inl"
#include <deeprec/simd/foreach_region.hpp>
