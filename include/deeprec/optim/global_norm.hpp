// The Euclidean norm of several gradients taken together, and the factor that brings it under a limit.
//
//   double norm = 0;
//   global_norm(pool, gradients, norm).or_throw();
//   update(pool, table, bags, combiner::sum, gradient, with_gradient_scale{adam{}, clip_factor(norm, 1.0)})
//
// For a table, pass the gradient of the pooled output, which update() takes; gradients of rows are not
// materialised. Not here: the norm of one row (clipped_by_norm).
#pragma once

#include <algorithm>
#include <cmath>
#include <memory_resource>
#include <span>
#include <type_traits>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail { inline namespace DEEPREC_UNIT {

/// The squares of n floats, summed in eight lanes and then pairwise. A square of a float is exact in double,
/// so fused and separate products give the same bits.
DEEPREC_INLINE double sum_of_squares(const float* values, index_t n) noexcept {
  double lane[8] = {};
  index_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int k = 0; k < 8; ++k) {
      const auto x = static_cast<double>(values[i + k]);
      lane[k] += x * x;
    }
  }
  for (int k = 0; i < n; ++i, ++k) {
    const auto x = static_cast<double>(values[i]);
    lane[k] += x * x;
  }
  return ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

/// Adds the squares of the items [begin, end) of one piece to `sum`, item by item. An item is a row, or one
/// of its `chunks` of `widest` columns.
DEEPREC_APART inline void add_squares(matrix_view<const float> values, index_t chunks, index_t widest,
                                      index_t begin, index_t end, double& sum) noexcept {
  for (index_t i = begin; i < end; ++i) {
    const index_t first = i % chunks * widest;
    sum += sum_of_squares(values.row(i / chunks) + first, (std::min)(widest, values.extent(1) - first));
  }
}

}}  // namespace detail::DEEPREC_UNIT

/// The root of the sum of all squares.
///
/// @shape    gradients: any number of matrices of any shape and row stride
/// @space    host
/// @post     norm is written; 0 where there are no elements
/// @numerics in double, rows and matrices in order in pieces that depend on the shapes, so the same bits for
///           any number of threads and on every ISA; relative error below 2^-40 for 2^20 elements. NaN when
///           an element is NaN, infinite when one is infinite and none is NaN
/// @cost     O(elements), one read; 8 bytes for each piece of about 16384 elements from the context's
///           resource
/// @threads  reentrant
/// @error    shape_mismatch (from matrix_view::validate); out_of_memory. On an error norm is unchanged
template <class Context>
DEEPREC_PER_UNIT status global_norm(Context&& context_or_executor,
                                    std::span<const matrix_view<const float>> gradients, double& norm) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "global_norm");
  if (!call) return call.stopped();
  return detail::or_out_of_memory("global_norm", [&]() -> status {
    constexpr index_t widest = 16384;
    double total = 0;
    std::pmr::vector<double> sums(ctx.memory);
    for (const matrix_view<const float>& gradient : gradients) {
      if (const status s = gradient.validate("matrix_view: data must not be null", row_overlap::permitted);
          !s)
        return s;
      if (gradient.empty()) continue;
      // An item is a row, or 16384 columns of a long one; a piece has about 16384 elements.
      const index_t chunks = (gradient.extent(1) - 1) / widest + 1;
      const index_t items = capped_product(gradient.extent(0), chunks);
      const index_t grain = chunks > 1 ? 1 : widest / gradient.extent(1);
      sums.assign(static_cast<std::size_t>((items - 1) / grain + 1), 0.0);
      const double ns =
          detail::ns_of_bytes(*ctx.tuning, items * (chunks > 1 ? widest : gradient.extent(1)) * 4);
      detail::run_bulk(ctx, {items, grain, ns}, [&](index_t begin, index_t end, int) {
        for (index_t i = begin; i < end; i += grain) {  // an executor may hand out several pieces at once
          detail::add_squares(gradient, chunks, widest, i, end - i > grain ? i + grain : end,
                              sums[static_cast<std::size_t>(i / grain)]);
        }
      });
      for (const double partial : sums) total += partial;
    }
    norm = std::sqrt(total);
    return {};
  });
}

/// The same, for a container of views.
template <class Context, class Container>
  requires requires(const Container& all) { std::span(all).front().data_handle(); }
DEEPREC_PER_UNIT status global_norm(Context&& context_or_executor, const Container& gradients, double& norm) {
  using view = typename decltype(std::span(gradients))::value_type;
  static_assert(std::is_same_v<view, matrix_view<const float>>,
                "deeprec::global_norm: views of other elements or of other memory. Fix: "
                "std::vector<matrix_view<const float>>, of host memory.");
  return global_norm(context_or_executor, std::span<const view>(gradients), norm);
}

/// The factor that scales gradients to a norm of at most `limit`: 1 where it is already.
///
/// @numerics NaN for a norm of NaN, 0 for an infinite one: check the norm to skip such a step
/// @cost     O(1)
/// @threads  reentrant
/// @error    none
constexpr float clip_factor(double norm, double limit) noexcept {
  return norm <= limit ? 1.0F : static_cast<float>(limit / norm);
}

}}  // namespace deeprec::DEEPREC_ABI
