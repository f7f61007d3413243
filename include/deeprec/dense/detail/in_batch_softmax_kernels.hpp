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

// clang-format off: the order of these is what they mean
#include <deeprec/simd/begin_portable.hpp>
#include <deeprec/dense/detail/in_batch_softmax.inl>
#include <deeprec/simd/end_portable.hpp>

#if DEEPREC_X86
#include <deeprec/simd/begin_avx2.hpp>
#include <deeprec/dense/detail/in_batch_softmax.inl>
#include <deeprec/simd/end_avx2.hpp>

#include <deeprec/simd/begin_avx512.hpp>
#include <deeprec/dense/detail/in_batch_softmax.inl>
#include <deeprec/simd/end_avx512.hpp>
#endif
// clang-format on
