// The backward pass of a pooled lookup, fused with the optimizer: every row that the batch used gets one
// step.
//
//   gradient of row r = sum over its slots k, in order, of  w[k] / denominator(bag of k) * gradient[bag]
//   row r             = optimizer step with that gradient
//
//   ids ──sort──> slots grouped by row ──one worker per group──> gradient in scratch ──> row in place
//
// Gradients of N rows are never materialised. Not here: gradients of the weights, a gradient handed out
// instead of applied.
#pragma once

#include <algorithm>
#include <memory_resource>
#include <type_traits>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/core/verb.hpp>
#include <deeprec/embedding/detail/update_kernels.hpp>
#include <deeprec/embedding/lookup.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/table_view.hpp>
#include <deeprec/optim/row_optimizer.hpp>
#include <deeprec/simd/dispatch.hpp>

namespace deeprec::inline DEEPREC_ABI {

namespace verbs {
struct update {};
}

namespace detail {
template <class Format>
inline constexpr bool has_trainable_rows = std::is_same_v<typename Format::element, float> ||
                                           std::is_same_v<typename Format::element, f16> ||
                                           std::is_same_v<typename Format::element, bf16>;
}

/// One optimizer step for every row that the batch used.
///
/// @shape    bags as given to lookup · gradient of lookup's output (B,D) · table (R,D), changed in place
/// @dtype    rows f32, f16 or bf16 (rounded to nearest even once per step); gradient and state f32
/// @space    all reachable from the context
/// @pre      the rows' state was zeroed when they were made; `how` is what lookup was given
/// @numerics the slots of a row are added in order, in f32: the same bits for any number of threads;
///           between ISAs equal up to the rounding of fused multiply-adds and of the mean square
/// @cost     O(N*D + N * bytes of an id): sorts the ids, reads N gradient rows, reads and writes the rows
///           used; allocates 24 bytes per id and 4 per bag from the context's resource
/// @threads  one caller per table; lookups of the same table must wait
/// @error    as lookup, and shape_mismatch when the rows have no room for the optimizer's state
///           (row_layout::state_floats). On an error nothing is written
/// @example  @snippet tests/embedding/update_test.cpp update
template <class Context, BagBatch Bags, MemorySpace GradientSpace, class Columns, class Pooling,
          RowOptimizer Optimizer, RowFormat Format, MemorySpace TableSpace>
[[nodiscard]] status update(Context&& context_or_executor, const Bags& bags,
                            matrix_view<const float, GradientSpace, Columns> gradient,
                            const Pooling& how, const Optimizer& optimizer,
                            table_view<Format, TableSpace> table) {
  const auto ctx = as_context(context_or_executor);
  using combiner = typename decltype(as_pooling(how))::combiner;
  static_assert(!std::is_same_v<combiner, max_t> && !std::is_same_v<combiner, concat_t>,
                "deeprec::update: no gradient for this combiner. Fix: sum, mean or sqrtn.");
  static_assert(detail::has_trainable_rows<Format>,
                "deeprec::update: rows of this format are for lookups only. Fix: train rows of float, f16 or "
                "bf16, and quantize the table afterwards.");
  if (gradient.extent(1) != table.width()) {
    return {errc::shape_mismatch, "gradient has another width than the table's rows"};
  }
  if (gradient.extent(0) != bags.bags()) {
    return {errc::shape_mismatch, "gradient has another number of rows than there are bags"};
  }
  if (table.format().state_floats() <
      Optimizer::row_state + Optimizer::element_state * table.width()) {
    return {errc::shape_mismatch, "rows have no room for the optimizer's state"};
  }
  return backend<verbs::update, backend_of<std::remove_const_t<decltype(ctx)>>>::run(
      ctx, bags, matrix_view<const float, GradientSpace>(gradient), as_pooling(how), optimizer, table);
}

/// The same, for a gradient that may be written.
template <class Context, BagBatch Bags, MemorySpace GradientSpace, class Columns, class Pooling,
          RowOptimizer Optimizer, RowFormat Format, MemorySpace TableSpace>
[[nodiscard]] status update(Context&& context_or_executor, const Bags& bags,
                            matrix_view<float, GradientSpace, Columns> gradient, const Pooling& how,
                            const Optimizer& optimizer, table_view<Format, TableSpace> table) {
  return update(context_or_executor, bags,
                matrix_view<const float, GradientSpace, Columns>(gradient), how, optimizer, table);
}

template <>
struct backend<verbs::update, host_backend> {
  template <class Context, class Bags, class Pooling, class Optimizer, class Format>
  static status run(const Context& ctx, const Bags& bags, matrix_view<const float> gradient,
                    const Pooling& how, const Optimizer& optimizer, table_view<Format> table) {
    if (const status s = bags.validate(); !s) return s;
    if (gradient.empty()) return {};
    if constexpr (std::is_same_v<typename Pooling::bounds_mode, check_t>) {
      if (const status s = detail::check_slots(ctx, bags, table.rows(), how); !s) return s;
    }
    const index_t first = bags.first_slot();
    const index_t slots = bags.last_slot() - first;
    if (!detail::sorted_slots::fits(slots, table.rows())) {
      return {errc::unsupported, "update: rows times slots need more than 64 bits"};
    }
    std::pmr::vector<index_t> bag_of(static_cast<std::size_t>(slots), ctx.memory);
    std::pmr::vector<float> scale(static_cast<std::size_t>(bags.bags()), ctx.memory);
    const std::int64_t padding = detail::padding_of(how);
    const auto borders = bags.borders();
    index_t skipped = 0;
    for (index_t b = 0; b < bags.bags(); ++b) {
      detail::pool_counts counts;
      for (index_t k = borders.begin(b); k < borders.end(b); ++k) {
        bag_of[static_cast<std::size_t>(k - first)] = b;
        if (detail::is_absent(bags.ids()[k], table.rows(), padding)) {
          const bool padded = std::is_same_v<typename Pooling::padding_mode, padding_id> &&
                              static_cast<std::int64_t>(bags.ids()[k]) == padding;
          skipped += padded ? 0 : 1;
          continue;
        }
        counts.add(bags.weights() == nullptr ? 1.0 : static_cast<double>(bags.weights()[k]));
      }
      const double divisor = counts.divisor(detail::divisor_of<typename Pooling::combiner>());
      scale[static_cast<std::size_t>(b)] = divisor == 0.0 ? 0.0F : static_cast<float>(1.0 / divisor);
    }
    if constexpr (std::is_same_v<typename Pooling::bounds_mode, skip_t>) {
      index_t* const counter = how.template get<skip_t>().skipped;
      if (counter != nullptr) *counter += skipped;
    }
    detail::sorted_slots sorted(ctx.memory);
    sorted.build(bags.ids(), first, bags.last_slot(), table.rows(), padding);
    const detail::update_args<Format> args{
        sorted, bag_of.data(),      scale.data(), bags.weights(), gradient.data_handle(),
        gradient.stride(0), first, table.data(), table.format()};
    ctx.executor->parallel_for(sorted.groups(), 256, [&](index_t begin, index_t end, int) {
      std::pmr::vector<float> scratch(static_cast<std::size_t>(table.width()), ctx.memory);
      with_isa_up_to_avx512(ctx.instruction_set, [&](auto region) {
        update_rows<typename Format::element>(region, optimizer, args, begin, end, scratch.data());
      });
    });
    return {};
  }
};

}  // namespace deeprec::inline DEEPREC_ABI
