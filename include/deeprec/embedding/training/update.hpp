// The backward pass of a pooled lookup, fused with the optimizer: every row that the batch used gets one
// step.
//
//   gradient of row r = sum over its positions k, in order, of  w[k] / denominator(bag of k) * gradient[bag]
//   row r             = optimizer step with that gradient, rounded to the row's format
//
// With max_norm the gradient flows through the norm, as TensorFlow's clip_by_norm does; an empty bag that
// became the default row gives its gradient to that row.
//
//   ids ──> positions grouped by row ──one worker per group──> gradient in scratch ──> row in place
//
// Only ids that may be repeated are sorted. On several threads each does all of this for its own part of a
// direct table's rows (kernels/host/table_parts.hpp).
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
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/kernels/host/backward.hpp>
#include <deeprec/embedding/kernels/host/batch_groups.hpp>
#include <deeprec/embedding/kernels/host/pool_rules.hpp>
#include <deeprec/embedding/kernels/host/step_groups.hpp>
#include <deeprec/embedding/kernels/host/table_parts.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/resolve.hpp>
#include <deeprec/embedding/tables/row_source.hpp>
#include <deeprec/embedding/tables/table_view.hpp>
#include <deeprec/embedding/training/detail/update_job.hpp>
#include <deeprec/optim/row_optimizer.hpp>
#include <deeprec/support/scratch_block.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {

/// The checks of an update that read no ids.
///
/// @param rows  resolved_rows, or unresolved_rows
template <class Optimizer, class Rows, MemorySpace Space>
status check_update(const Rows& rows, matrix_view<const float, Space> gradient) {
  using source_type = typename Rows::source_type;
  using combiner_type = typename Rows::pooling_type::combiner;
  static_assert(
      !std::is_same_v<combiner_type, combiner::max_t> && !std::is_same_v<combiner_type, combiner::concat_t>,
      "deeprec::update: no gradient for this combiner. Fix: sum, mean or sqrtn.");
  static_assert(has_trainable_rows<typename source_type::format_type>,
                "deeprec::update: rows of this format are for lookups only. Fix: train rows of float, f16, "
                "bf16 or split floats, and quantize the table afterwards.");
  static_assert(WritableRowSource<source_type>,
                "deeprec::update: the rows of this source are read only. Fix: a table_view, not a "
                "const_table_view; a source with byte_type std::byte.");
  const auto& format = rows.source().format();
  if (const status s = check_gradient(gradient, format.width(), rows.bags().bags(), update_gradient); !s)
    return s;
  if (const status s = check_state_of<Optimizer>(format); !s) return s;
  return check_max_norm(rows.pooling());
}

}  // namespace detail

/// One optimizer step for every row that the batch used.
///
/// @shape    source of rows (a table (R,D), or another source whose byte_type is std::byte), changed in
///           place · bags as given to lookup · gradient of lookup's output (B,D)
/// @dtype    rows f32, f16, bf16 or split (the bits of f32); gradient and state f32
/// @space    all reachable from the context
/// @pre      the rows' state was zeroed when they were created; `pooling` is the one given to lookup
/// @numerics the gradients of a row are added in the order of its positions, in f32, for a row with more than
///           4096 of them in chunks like lookup's bags: the same bits for any number of threads;
///           between ISAs equal up to the rounding of fused multiply-adds and of the sum of squares. Rows of
///           16 bits are rounded once per step: to nearest even, or up and down at random without bias
///           (rounding::stochastic), where a row's random bits depend on seed, step, row and column only.
///           NaN gradients: as apply_row
/// @cost     O(N*D + N * bytes of an id): sorts the ids that may be repeated, reads N gradient rows, reads
///           and writes the rows used; takes about 50 bytes per id and per bag (100 for row sources other
///           than tables), 4 * D bytes for each thread and for each 4096 ids, and up to 20 KB for each thread
///           from the context's resource, in one block and before the first row is updated
/// @threads  one caller per table; lookups of the same table must wait
/// @error    as lookup, and shape_mismatch for a null gradient and when the rows have no room for the
///           optimizer's state (state_of<optimizer> makes it); unsupported when the rows hold the state of an
///           optimizer of another name; out_of_memory. On an error nothing is written
/// @example  @snippet tests/embedding/update_test.cpp update
template <class Context, RowSource Source, BagBatch Bags, class Pooling, RowOptimizer Optimizer,
          RoundingPolicy Rounding = rounding::nearest_t>
DEEPREC_PER_UNIT status update(Context&& context_or_executor, const Source& table, const Bags& bags,
                               const Pooling& pooling, matrix_arg<const float, space_for<Context>> gradient,
                               const Optimizer& optimizer, const Rounding& rounding = {}) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::verb_call call(ctx, "update",
                               detail::in_spaces<typename Source::space, typename Bags::space>);
  if (!call) return call.stopped();
  const detail::unresolved_rows rows(table, bags, detail::as_pooling(pooling));
  if (const status s = detail::check_update<Optimizer>(rows, gradient); !s) return s.in_operation("update");
  return detail::or_out_of_memory("update", [&]() __attribute__((always_inline)) {
    return update_on(ctx.backend(), ctx, rows, gradient, optimizer, rounding);
  });
}

/// The same, for a batch before the table: it does not compile, and the message has the order.
template <class Context, BagBatch Bags, class... Rest>
[[nodiscard]] status update(Context&&, const Bags&, const Rest&...) {
  static_assert(detail::always_false<Bags>,
                "deeprec::update: the table comes second, as in lookup. Fix: update(context, table.view(), "
                "bags, pooling, gradient, optimizer).");
  return {};
}

/// The same, for the owner of a table: it does not compile, and the message says what to pass.
template <class Context, class Table, BagBatch Bags, class... Rest>
  requires(!RowSource<Table> &&
           requires(Table& table) {
             { table.view() } -> RowSource;
           })
[[nodiscard]] status update(Context&&, const Table&, const Bags&, const Rest&...) {
  static_assert(detail::always_false<Table>,
                "deeprec::update: not a row source. Fix: of a dense_table pass view().");
  return {};
}

/// The same, for rows that were resolved: no id is checked or located again, and the positions are grouped by
/// row at the first update only, for however many optimizers.
///
/// @cost    as update; half of the bytes per id, those of the groups, come from the resource that resolve was
///          given, at the first update
/// @threads as update; one caller per resolved_rows
/// @error   as update, except for ids and weights
template <class Context, class Source, class Bags, class Pooling, RowOptimizer Optimizer,
          RoundingPolicy Rounding = rounding::nearest_t>
DEEPREC_PER_UNIT status update(Context&& context_or_executor,
                               const resolved_rows<Source, Bags, Pooling>& rows,
                               matrix_arg<const float, space_for<Context>> gradient,
                               const Optimizer& optimizer, const Rounding& rounding = {}) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::verb_call call(ctx, "update");
  if (!call) return call.stopped();
  if (const status s = detail::check_update<Optimizer>(rows, gradient); !s) return s.in_operation("update");
  return detail::or_out_of_memory("update", [&]() __attribute__((always_inline)) {
    return update_on(ctx.backend(), ctx, rows, gradient, optimizer, rounding);
  });
}

template <class... Args>
status update_on(any_backend, const Args&...) {
  return detail::no_backend<Args...>();
}

template <class Context, class Rows, class Optimizer, class Rounding>
DEEPREC_PER_UNIT status update_on(host_backend, const Context& ctx, const Rows& given,
                                  matrix_view<const float> gradient, const Optimizer& optimizer,
                                  const Rounding& rounding) {
  const detail::update_job<Rows> job{given, gradient.extent(1)};
  detail::scratch_block scratch(ctx.memory, job.scratch_bytes(ctx));
  decltype(auto) rows = given.resolution();
  if constexpr (!detail::is_resolved<Rows>) {
    if (const status s = detail::resolve_in(ctx, rows, scratch); !s) return s;
  }
  if constexpr (!detail::is_resolved<Rows> && DirectRowSource<typename Rows::source_type>) {
    const index_t parts =
        job.in_parts() ? detail::table_part::parts(ctx, rows.source().rows(), job.ns(*ctx.tuning)) : 1;
    if (parts > 1) {
      detail::update_in_parts(ctx, job, rows, gradient, optimizer, rounding, parts, scratch);
      rows.count_skipped();
      return {};
    }
  }
  decltype(auto) groups = detail::groups_of(ctx, given, rows, detail::group_order::any, scratch);
  detail::backward_pass pass(scratch, job.size_on(ctx));
  pass.add(ctx, rows, gradient);
  pass.arrange(ctx, groups.groups());
  rows.count_skipped();
  detail::step_groups(ctx, groups, pass, rows.source(), detail::max_norm_of(rows.pooling()), optimizer,
                      rounding);
  return {};
}

}}  // namespace deeprec::DEEPREC_ABI
