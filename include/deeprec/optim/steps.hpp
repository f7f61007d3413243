// What an optimizer does to one element of a row, once it knows the row.
//
//   steps.inl ──> scalar::take_step(step, float ...)            host and device
//             └─> isa_avx512::take_step(step, vector_f32 ...)   and so on, for kernels in a region
//
// A functor that takes vector registers can't be passed into a region from outside, so a step is data and
// its formula is compiled inside. An optimizer of a user's own needs no formula there: kernels fall back
// to its operator() on floats.
#pragma once

#include <cmath>

#include <deeprec/core/config.hpp>
#include <deeprec/simd/words.hpp>

namespace deeprec::inline DEEPREC_ABI {

/// w - rate * g
struct scaled_step {
  float rate;
  DEEPREC_HD float operator()(float weight, float gradient) const noexcept;
};

/// s += g^2, then w - rate * g / (sqrt(s) + epsilon)
struct adagrad_step {
  float rate;
  float epsilon;
  DEEPREC_HD float operator()(float weight, float gradient, float& squares) const noexcept;
};

/// The words that steps.inl uses, for one float.
namespace scalar {
using vector_f32 = float;
DEEPREC_HD DEEPREC_INLINE float splat(float x) { return x; }
DEEPREC_HD DEEPREC_INLINE float sqrt(float x) { return ::sqrtf(x); }
#include <deeprec/optim/detail/steps.inl>
}  // namespace scalar

DEEPREC_HD inline float scaled_step::operator()(float weight, float gradient) const noexcept {
  return scalar::take_step(*this, weight, gradient);
}
DEEPREC_HD inline float adagrad_step::operator()(float weight, float gradient,
                                                 float& squares) const noexcept {
  return scalar::take_step(*this, weight, gradient, squares);
}

}  // namespace deeprec::inline DEEPREC_ABI

#include <deeprec/simd/begin_portable.hpp>
#include <deeprec/optim/detail/steps.inl>
#include <deeprec/simd/end_portable.hpp>

#if DEEPREC_X86
#include <deeprec/simd/begin_avx2.hpp>
#include <deeprec/optim/detail/steps.inl>
#include <deeprec/simd/end_avx2.hpp>

#include <deeprec/simd/begin_avx512.hpp>
#include <deeprec/optim/detail/steps.inl>
#include <deeprec/simd/end_avx512.hpp>
#endif
