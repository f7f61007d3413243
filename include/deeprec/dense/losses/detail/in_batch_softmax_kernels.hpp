// The kernels of the in-batch softmax in the three regions that they are compiled for.
#pragma once

#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/ops/expression.hpp>
#include <deeprec/simd/vectors.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Row `row` of (count, count) scores. items: an id for each column, or null.
struct softmax_row {
  const float* scores;
  const std::int64_t* items;
  index_t row;
  index_t count;
};

/// The largest score of a row, and the sum of exp(score - most).
struct softmax_sum {
  float most;
  double sum;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail

#define DEEPREC_REGION_SOURCE "deeprec/dense/losses/detail/in_batch_softmax.inl"
#include <deeprec/simd/foreach_region.hpp>
