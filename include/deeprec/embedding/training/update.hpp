// The backward pass of a pooled lookup, fused with the optimizer: every row that the batch used gets one
// step.
//
//   gradient of row r = sum over its positions k, in order, of  w[k] / denominator(bag of k) * gradient[bag]
//   row r             = optimizer step with that gradient, rounded to the row's format
//
// With max_norm the gradient flows through the norm, as TensorFlow's clip_by_norm does; an empty bag that
// became the default row gives its gradient to that row.
//
//   ids ──sort──> positions grouped by row ──one worker per group──> gradient in scratch ──> row in place
//
// Gradients of N rows are never materialised. Not here: gradients of the weights, and gradients that are
// returned instead of applied (gradient.hpp).
#pragma once

#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/rounding.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/core/unit.hpp>
#include <deeprec/core/verb.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/tables/table_view.hpp>
#include <deeprec/embedding/training/detail/backward.hpp>
#include <deeprec/embedding/training/detail/step_groups.hpp>
#include <deeprec/optim/row_optimizer.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// One optimizer step for every row that the batch used.
///
/// @shape    bags as given to lookup · gradient of lookup's output (B,D) · table (R,D), changed in place
/// @dtype    rows f32, f16, bf16 or split (the bits of f32); gradient and state f32
/// @space    all reachable from the context
/// @pre      the rows' state was zeroed when they were created; `pooling` is the one given to lookup
/// @numerics the gradients of a row are added in the order of its positions, in f32, for a row with more than
///           4096 of them in chunks like lookup's bags: the same bits for any number of threads;
///           between ISAs equal up to the rounding of fused multiply-adds and of the sum of squares. Rows of
///           16 bits are rounded once per step: to nearest even, or up and down at random without bias
///           (rounding::stochastic), where a row's random bits depend on seed, step, row and column only.
///           NaN gradients: as apply_row
/// @cost     O(N*D + N * bytes of an id): sorts the ids, reads N gradient rows, reads and writes the rows
///           used; takes about 50 bytes per id and per bag, 4 * D bytes for each thread and for each 4096 ids
///           from the context's resource, in one block and before the first row is updated
/// @threads  one caller per table; lookups of the same table must wait
/// @error    as lookup, and shape_mismatch for a null gradient and when the rows have no room for the
///           optimizer's state (row_layout::state_floats); out_of_memory. On an error nothing is written
/// @example  @snippet tests/embedding/update_test.cpp update
template <class Context, BagBatch Bags, MemorySpace GradientSpace, class Columns, class Pooling,
          RowOptimizer Optimizer, RowFormat Format, MemorySpace TableSpace,
          RoundingPolicy Rounding = rounding::nearest_t, class = detail::unit>
[[nodiscard]] status update(Context&& context_or_executor, const Bags& bags,
                            matrix_view<const float, GradientSpace, Columns> gradient, const Pooling& pooling,
                            const Optimizer& optimizer, table_view<Format, TableSpace> table,
                            const Rounding& rounding = {}) {
  const auto ctx = detail::as_context(context_or_executor);
  using combiner_type = typename decltype(detail::as_pooling(pooling))::combiner;
  static_assert(
      !std::is_same_v<combiner_type, combiner::max_t> && !std::is_same_v<combiner_type, combiner::concat_t>,
      "deeprec::update: no gradient for this combiner. Fix: sum, mean or sqrtn.");
  static_assert(detail::has_trainable_rows<Format>,
                "deeprec::update: rows of this format are for lookups only. Fix: train rows of float, f16, "
                "bf16 or split floats, and quantize the table afterwards.");
  if (const status s = detail::expect_size(gradient.extent(1), table.width(),
                                           "update: gradient.extent(1) must be the row width D");
      !s) {
    return s;
  }
  if (const status s = detail::expect_size(gradient.extent(0), bags.bags(),
                                           "update: gradient.extent(0) must be the number of bags B");
      !s) {
    return s;
  }
  if (!gradient.valid()) return gradient.validate("update: gradient must not be null");
  if (table.format().state_floats() <
      detail::capped_sum(Optimizer::row_state,
                         detail::capped_product(Optimizer::element_state, table.width()))) {
    return {errc::shape_mismatch,
            "update: the rows' state_floats() must be at least what the optimizer needs"};
  }
  if (const status s = detail::check_max_norm(detail::as_pooling(pooling)); !s) return s;
  return detail::or_out_of_memory([&] {
    return update_on(ctx.backend(), ctx, bags, matrix_view<const float, GradientSpace>(gradient),
                     detail::as_pooling(pooling), optimizer, table, rounding);
  });
}

/// The same, for a gradient that may be written.
template <class Context, BagBatch Bags, MemorySpace GradientSpace, class Columns, class Pooling,
          RowOptimizer Optimizer, RowFormat Format, MemorySpace TableSpace,
          RoundingPolicy Rounding = rounding::nearest_t, class = detail::unit>
[[nodiscard]] status update(Context&& context_or_executor, const Bags& bags,
                            matrix_view<float, GradientSpace, Columns> gradient, const Pooling& pooling,
                            const Optimizer& optimizer, table_view<Format, TableSpace> table,
                            const Rounding& rounding = {}) {
  return update(context_or_executor, bags, matrix_view<const float, GradientSpace, Columns>(gradient),
                pooling, optimizer, table, rounding);
}

template <class... Args>
status update_on(any_backend, const Args&...) {
  return detail::no_backend<Args...>();
}

template <class Context, class Bags, class Pooling, class Optimizer, class Format, class Rounding,
          class = detail::unit>
status update_on(host_backend, const Context& ctx, const Bags& bags, matrix_view<const float> gradient,
                 const Pooling& pooling, const Optimizer& optimizer, table_view<Format> table,
                 const Rounding& rounding) {
  if (const status s = detail::check_backward(ctx, bags, table.rows(), pooling); !s) return s;
  const detail::backward_size size{.positions = bags.end_position() - bags.first_position(),
                                   .bags = bags.bags(),
                                   .width = table.width(),
                                   .workers = static_cast<index_t>(ctx.executor->concurrency())};
  detail::backward_plan plan(ctx.memory, size);
  plan.add(ctx, bags, gradient, table.rows(), pooling);
  plan.group(ctx, table.rows());
  detail::count_skipped(bags, table.rows(), pooling);
  detail::step_groups(ctx, plan, table, detail::max_norm_of(pooling), optimizer, rounding);
  return {};
}

}}  // namespace deeprec::DEEPREC_ABI
