// The kernels of normalize_rows in the three regions that they are compiled for.
#pragma once

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/simd/vectors.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The inverse norm of rows whose norm is at most epsilon.
DEEPREC_INLINE float inverse_of_epsilon(float epsilon) noexcept {
  return static_cast<float>(1 / static_cast<double>(epsilon));
}

}}}  // namespace deeprec::DEEPREC_ABI::detail

#define DEEPREC_REGION_SOURCE "deeprec/dense/layers/detail/normalize_rows.inl"
#include <deeprec/simd/foreach_region.hpp>
