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
// direct table's rows (kernels/table_parts.hpp).
//
// Gradients of N rows are never materialised. Not here: gradients of the weights, and gradients that are
// returned instead of applied (gradient.hpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <type_traits>

#include <deeprec/core/bulk.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/operation.hpp>
#include <deeprec/core/rounding.hpp>
#include <deeprec/core/scratch_block.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/core/verb.hpp>
#include <deeprec/embedding/kernels/backward.hpp>
#include <deeprec/embedding/kernels/batch_groups.hpp>
#include <deeprec/embedding/kernels/pool_rules.hpp>
#include <deeprec/embedding/kernels/step_groups.hpp>
#include <deeprec/embedding/kernels/table_parts.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/resolve.hpp>
#include <deeprec/embedding/tables/row_source.hpp>
#include <deeprec/embedding/tables/table_view.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/optim/row_optimizer.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {

/// A source of rows, or the owner of one.
template <class T>
concept names_rows = RowSource<T> || requires(T& table) {
  { table.view() } -> RowSource;
};

}  // namespace detail

/// The operation of update. Rows: resolved_rows, or a source and a batch that the operation resolves itself.
///
/// @threads as update
template <class Rows, class Optimizer, class Rounding = rounding::nearest_t,
          MemorySpace GradientSpace = host_space>
class update_op {
  using source_type = typename Rows::source_type;
  using bags_type = typename Rows::bags_type;
  using combiner_type = typename Rows::pooling_type::combiner;
  static_assert(!std::is_same_v<combiner_type, combiner::max_t> &&
                    !std::is_same_v<combiner_type, combiner::concat_t>,
                "deeprec::update: no gradient for this combiner. Fix: sum, mean or sqrtn.");
  static_assert(detail::has_trainable_rows<typename source_type::format_type>,
                "deeprec::update: rows of this format are for lookups only. Fix: train rows of float, f16, "
                "bf16 or split floats, and quantize the table afterwards.");
  static_assert(WritableRowSource<source_type>,
                "deeprec::update: the rows of this source are read only. Fix: a table_view, not a "
                "const_table_view; a source with byte_type std::byte.");

 public:
  using rows_type = Rows;
  using gradient_view = matrix_view<const float, GradientSpace>;

  update_op(const Rows& rows, gradient_view gradient, const Optimizer& optimizer,
            const Rounding& rounding = {})
      : rows_(rows), gradient_(gradient), optimizer_(optimizer), rounding_(rounding) {}
  template <class Pooling>
  update_op(const bags_type& bags, gradient_view gradient, const Pooling& pooling, const Optimizer& optimizer,
            const source_type& source, const Rounding& rounding = {})
      : rows_(source, bags, detail::as_pooling(pooling)),
        gradient_(gradient),
        optimizer_(optimizer),
        rounding_(rounding) {}

  [[nodiscard]] static constexpr const char* name() noexcept { return "update"; }
  [[nodiscard]] const Rows& rows() const noexcept { return rows_; }
  [[nodiscard]] gradient_view gradient() const noexcept { return gradient_; }
  [[nodiscard]] const Optimizer& optimizer() const noexcept { return optimizer_; }
  [[nodiscard]] const Rounding& rounding() const noexcept { return rounding_; }

  /// Shapes; reads no ids.
  [[nodiscard]] status check() const {
    const auto& format = rows_.source().format();
    if (const status s =
            detail::check_gradient(gradient_, format.width(), rows_.bags().bags(), detail::update_gradient);
        !s) {
      return s;
    }
    if (const status s = detail::check_state_of<Optimizer>(format); !s) return s;
    return detail::check_max_norm(rows_.pooling());
  }
  /// As lookup_op::scratch_bytes.
  template <class Context>
  DEEPREC_PER_UNIT [[nodiscard]] index_t scratch_bytes(const Context& ctx) const noexcept {
    if constexpr (std::is_same_v<detail::backend_of<Context>, host_backend>) {
      const index_t pass = detail::backward_pass::bytes_for(size_on(ctx));
      if constexpr (detail::is_resolved<Rows>) {
        return pass;
      } else {
        const index_t whole =
            detail::capped_sum(pass, detail::capped_sum(rows_.address_bytes(), detail::group_bytes(rows_)));
        return (std::max)(whole, bytes_of_parts(ctx));
      }
    } else {
      return 0;
    }
  }
  template <class F>
  void for_each_effect(F&& f) const {
    detail::read_effects(rows_, f);
    if constexpr (requires { rows_.source().data(); }) {
      f(detail::effect_on<typename source_type::space>(rows_.source().data(), access_mode::updates));
    }
    f(detail::effect_on<GradientSpace>(gradient_.data_handle(), access_mode::reads));
  }
  template <class Context>
  DEEPREC_PER_UNIT status run(const Context& ctx, std::span<std::byte> scratch) const {
    return update_on(ctx.backend(), ctx, *this, scratch);
  }

  /// For update_on: whether parts of the table may be updated apart from each other, and its time.
  [[nodiscard]] bool in_parts() const noexcept {
    if constexpr (!detail::is_resolved<Rows> && DirectRowSource<source_type>) {
      return !detail::groups_size(rows_).by_ordinal();
    } else {
      return false;
    }
  }
  [[nodiscard]] double ns(const kernel_tuning& tuning) const noexcept {
    return detail::ns_of_update(tuning, detail::grouped_positions(rows_.bags(), rows_.pooling()),
                                rows_.source().rows(), rows_.source().format().stride_bytes());
  }

  /// For update_on.
  template <class Context>
  DEEPREC_PER_UNIT [[nodiscard]] detail::backward_size size_on(const Context& ctx) const noexcept {
    return {.positions = detail::grouped_positions(rows_.bags(), rows_.pooling()),
            .width = gradient_.extent(1),
            .workers = static_cast<index_t>(ctx.executor->concurrency())};
  }

 private:
  template <class Context>
  [[nodiscard]] index_t bytes_of_parts(const Context& ctx) const noexcept {
    if constexpr (DirectRowSource<source_type>) {
      if (!in_parts()) return 0;
      const detail::backward_size size = size_on(ctx);
      const index_t parts = detail::table_part::most_parts(ctx, rows_.source().rows(), ns(*ctx.tuning));
      return parts < 2 ? 0 : detail::parts_memory::bytes_for(size.positions, size.width, parts);
    }
    return 0;
  }

  detail::kept_rows<Rows> rows_;
  gradient_view gradient_;
  Optimizer optimizer_;
  Rounding rounding_;
};

template <class Source, class Bags, class Gradient, class Space, class Pooling, class Optimizer,
          class Rounding = rounding::nearest_t>
update_op(const Bags&, matrix_view<Gradient, Space>, const Pooling&, const Optimizer&, const Source&,
          const Rounding& = {})
    -> update_op<detail::unresolved_rows<Source, Bags, detail::pooling_for<Pooling>>, Optimizer, Rounding,
                 Space>;
template <class Rows, class Gradient, class Space, class Optimizer, class Rounding = rounding::nearest_t>
  requires(detail::is_resolved<Rows>)
update_op(const Rows&, matrix_view<Gradient, Space>, const Optimizer&, const Rounding& = {})
    -> update_op<Rows, Optimizer, Rounding, Space>;

/// One optimizer step for every row that the batch used.
///
/// @shape    bags as given to lookup · gradient of lookup's output (B,D) · source of rows (a table
///           (R,D), or another source whose byte_type is std::byte), changed in place
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
template <class Context, BagBatch Bags, class Gradient, MemorySpace GradientSpace, class Pooling,
          RowOptimizer Optimizer, RowSource Source, RoundingPolicy Rounding = rounding::nearest_t>
  requires(std::is_same_v<std::remove_const_t<Gradient>, float>)
DEEPREC_PER_UNIT status update(Context&& context_or_executor, const Bags& bags,
                               matrix_view<Gradient, GradientSpace> gradient, const Pooling& pooling,
                               const Optimizer& optimizer, const Source& source,
                               const Rounding& rounding = {}) {
  const auto ctx = detail::as_context(context_or_executor);
  return detail::run_now(ctx, update_op(bags, gradient, pooling, optimizer, source, rounding));
}

/// The same, for arguments in the order of lookup's: it does not compile, and the message has the right
/// order.
template <class Context, class Table, class Bags, class... Rest>
  requires(detail::names_rows<Table> && BagBatch<Bags>)
[[nodiscard]] status update(Context&&, const Table&, const Bags&, const Rest&...) {
  static_assert(detail::always_false<Table>,
                "deeprec::update: the table, which is written, comes last. Fix: update(context, bags, "
                "gradient, pooling, optimizer, table.view()).");
  return {};
}

/// The same, for the owner of a table: it does not compile, and the message says what to pass.
template <class Context, BagBatch Bags, class Gradient, class Pooling, RowOptimizer Optimizer, class Table,
          class... Rest>
  requires(!RowSource<Table> && detail::names_rows<Table>)
[[nodiscard]] status update(Context&&, const Bags&, const Gradient&, const Pooling&, const Optimizer&,
                            const Table&, const Rest&...) {
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
template <class Context, class Source, class Bags, class Pooling, class Gradient, MemorySpace GradientSpace,
          RowOptimizer Optimizer, RoundingPolicy Rounding = rounding::nearest_t>
  requires(std::is_same_v<std::remove_const_t<Gradient>, float>)
DEEPREC_PER_UNIT status update(Context&& context_or_executor,
                               const resolved_rows<Source, Bags, Pooling>& rows,
                               matrix_view<Gradient, GradientSpace> gradient, const Optimizer& optimizer,
                               const Rounding& rounding = {}) {
  const auto ctx = detail::as_context(context_or_executor);
  return detail::run_now(ctx, update_op(rows, gradient, optimizer, rounding));
}

namespace detail {

/// The whole update of each part on one thread, then the rows of many positions on all.
template <class Context, class Op, class Resolution>
DEEPREC_PER_UNIT void update_in_parts(const Context& ctx, const Op& op, const Resolution& rows, index_t parts,
                                      scratch_block& scratch) {
  const backward_size size = op.size_on(ctx);
  parts_memory memory(scratch, groups_size(op.rows()), size.width, parts);
  const matrix_view<const float> gradient(op.gradient());
  run_bulk_in_parts(ctx, {parts, 1, op.ns(*ctx.tuning)}, [&](index_t begin, index_t end, int) {
    inline_executor here;
    const auto alone = ctx.rebind(here);
    for (index_t p = begin; p < end; ++p) {
      const table_part part(p, parts);
      part_sizes of_part;
      of_part.add(rows, part);
      part_groups& groups = memory.make(p, of_part);
      groups.add(rows, gradient, part);
      groups.group(alone);
      step_short_groups(alone, groups.groups(), groups.pass(), rows.source(), max_norm_of(rows.pooling()),
                        op.optimizer(), op.rounding());
    }
  });
  if (size.positions <= chunk_positions) return;
  for (index_t p = 0; p < parts; ++p) {
    step_long_groups(ctx, memory[p].groups(), memory[p].pass(), rows.source(), max_norm_of(rows.pooling()),
                     op.optimizer(), op.rounding());
  }
}

}  // namespace detail

template <class... Args>
status update_on(any_backend, const Args&...) {
  return detail::no_backend<Args...>();
}

template <class Context, class Rows, class Optimizer, class Rounding, MemorySpace Space>
DEEPREC_PER_UNIT status update_on(host_backend, const Context& ctx,
                                  const update_op<Rows, Optimizer, Rounding, Space>& op,
                                  std::span<std::byte> scratch) {
  static_assert(reachable_as<Space, host_space>,
                "deeprec::update: device memory given to a host context. Fix: copy it, or pass a device "
                "context.");
  detail::scratch_block block(scratch.data(), static_cast<index_t>(scratch.size()));
  decltype(auto) rows = op.rows().resolution();
  if constexpr (!detail::is_resolved<Rows>) {
    if (const status s = detail::resolve_in(ctx, rows, block); !s) return s;
  }
  if constexpr (!detail::is_resolved<Rows> && DirectRowSource<typename Rows::source_type>) {
    const index_t parts =
        op.in_parts() ? detail::table_part::parts(ctx, rows.source().rows(), op.ns(*ctx.tuning)) : 1;
    if (parts > 1) {
      detail::update_in_parts(ctx, op, rows, parts, block);
      rows.count_skipped();
      return {};
    }
  }
  decltype(auto) groups = detail::groups_of(ctx, op.rows(), rows, detail::group_order::any, block);
  detail::backward_pass pass(block, op.size_on(ctx));
  pass.add(ctx, rows, matrix_view<const float>(op.gradient()));
  pass.arrange(ctx, groups.groups());
  rows.count_skipped();
  detail::step_groups(ctx, groups, pass, rows.source(), detail::max_norm_of(rows.pooling()), op.optimizer(),
                      op.rounding());
  return {};
}

}}  // namespace deeprec::DEEPREC_ABI
