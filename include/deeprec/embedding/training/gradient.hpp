// Gradients of a pooled lookup that are returned instead of applied.
//
//   row_gradients(ctx, R, bags, pooling, g, out)   out.rows (U) ascending, out.values (U,D): one row for each
//                                                  row of the table that the batch used
//   row_gradients(ctx, counts, bags, pooling, g, out (U,D))
//                                                  of a batch over slots; counts: how often each comes.
//                                                  Also into several matrices, one after the other
//   weight_gradients(ctx, table, bags, pooling, g, out (N))
//
// g is the gradient of lookup's output (B,D), `pooling` the one that lookup was given. To apply row gradients
// directly, without storing them: update (update.hpp).
#pragma once

#include <span>
#include <type_traits>

#include <deeprec/core/batch_traits.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/id_range.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/kernels/host/backward.hpp>
#include <deeprec/embedding/kernels/host/batch_groups.hpp>
#include <deeprec/embedding/kernels/host/lookup_kernels.hpp>
#include <deeprec/embedding/kernels/host/pool_job.hpp>
#include <deeprec/embedding/kernels/host/pool_rules.hpp>
#include <deeprec/embedding/kernels/host/resolution.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/resolve.hpp>
#include <deeprec/embedding/tables/row_format.hpp>
#include <deeprec/embedding/tables/row_source.hpp>
#include <deeprec/embedding/training/detail/gather_gradients.hpp>
#include <deeprec/embedding/training/detail/place_gradients.hpp>
#include <deeprec/embedding/training/sparse_gradient.hpp>
#include <deeprec/simd/dispatch.hpp>
#include <deeprec/simd/vectors.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/scratch_block.hpp>
#include <deeprec/support/verb.hpp>

#define DEEPREC_REGION_SOURCE "deeprec/embedding/training/detail/position_dots.inl"
#include <deeprec/simd/foreach_region.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The gradient of each row that a batch used.
///
/// @shape    table_rows R · bags as given to lookup · gradient of lookup's output (B,D) · out (U) and (U,D)
/// @dtype    f32
/// @space    host
/// @pre      out owns no memory of the inputs
/// @post     out.rows ascends; each row of the batch once
/// @numerics as update. The gradient with respect to the pooled rows: it does not flow through max_norm,
///           which needs the rows (rejected by a static_assert)
/// @cost     O(N*D) and a sort of the ids; allocates what out lacks, and about 50 bytes per id and per bag
///           and 4 * D per 4096 ids from the context's resource
/// @threads  reentrant
/// @error    as lookup; shape_mismatch for a null gradient; unsupported when out owns memory of the bags or
///           of the gradient. On an error out is as before
/// @example  @snippet tests/embedding/gradient_test.cpp row_gradients
template <class Context, BagBatch Bags, class Pooling>
DEEPREC_PER_UNIT status row_gradients(Context&& context_or_executor, index_t table_rows, const Bags& bags,
                                      const Pooling& pooling, matrix_view<const float> gradient,
                                      sparse_gradient& out) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "row_gradients", detail::in_spaces<typename Bags::space>);
  if (!call) return call.stopped();
  detail::check_row_gradients_pooling<detail::pooling_for<Pooling>>();
  if (const status s =
          detail::check_gradient(gradient, gradient.extent(1), bags.bags(), detail::row_gradients_texts);
      !s) {
    return s.in_operation("row_gradients");
  }
  if (table_rows < 0) return {errc::shape_mismatch, "row_gradients: table_rows must not be negative"};
  return detail::or_out_of_memory("row_gradients", [&] {
    return detail::gather_gradients(
        ctx, detail::unresolved_rows(detail::numbered_rows{table_rows}, bags, detail::as_pooling(pooling)),
        gradient, out);
  });
}

/// The same, for rows that were resolved; of a keyed source, out.rows are its keys.
///
/// @error as row_gradients, except for ids and weights
template <class Context, class Source, class Bags, class Pooling>
DEEPREC_PER_UNIT status row_gradients(Context&& context_or_executor,
                                      const resolved_rows<Source, Bags, Pooling>& rows,
                                      matrix_view<const float> gradient, sparse_gradient& out) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "row_gradients");
  if (!call) return call.stopped();
  detail::check_row_gradients_pooling<Pooling>();
  if (const status s = detail::check_gradient(gradient, rows.source().format().width(), rows.bags().bags(),
                                              detail::row_gradients_texts);
      !s) {
    return s.in_operation("row_gradients");
  }
  return detail::or_out_of_memory("row_gradients",
                                  [&] { return detail::gather_gradients(ctx, rows, gradient, out); });
}

/// The same for a batch whose ids are slots: row s of out is the gradient of slot s. How often each slot
/// comes is known, as from partition_unique, so nothing is sorted.
///
/// @shape    counts (U), as data() and size() · bags as given to lookup of U rows · gradient of lookup's
///           output (B,D) · out (U,D), any row stride
/// @dtype    counts: integers of 32 or 64 bits; the rest f32
/// @space    host
/// @pre      counts[s] is the number of positions with id s, those that the pooling leaves out as well
/// @post     a row of which the pooling leaves out every position is zeros
/// @numerics the bits of row_gradients
/// @cost     O(N*D + U*D); about 12 bytes per id, 16 per slot and 4 * D per 4096 ids from the context's
///           resource. Places on the calling thread, sums on all
/// @threads  reentrant
/// @error    as lookup; shape_mismatch for out and for a null gradient; invalid_value (row) for the first
///           slot whose count is another; unsupported when out shares memory with an input. On an error
///           nothing is written
/// @example  @snippet tests/embedding/slot_gradients_test.cpp row_gradients_slots
template <class Context, IdRange Counts, BagBatch Bags, class Pooling>
DEEPREC_PER_UNIT status row_gradients(Context&& context_or_executor, const Counts& counts, const Bags& bags,
                                      const Pooling& pooling, matrix_view<const float> gradient,
                                      matrix_view<float> out) {
  return row_gradients(context_or_executor, counts, bags, pooling, gradient,
                       std::span<const matrix_view<float>>(&out, 1));
}

/// The same, for several matrices: the first slots in outs[0], the next ones in outs[1], and so on.
///
/// @shape    outs, each (U_i,D), any row stride; U is the sum of U_i
/// @pre      outs share no byte
template <class Context, IdRange Counts, BagBatch Bags, class Pooling>
DEEPREC_PER_UNIT status row_gradients(Context&& context_or_executor, const Counts& counts, const Bags& bags,
                                      const Pooling& pooling, matrix_view<const float> gradient,
                                      std::span<const matrix_view<float>> outs) {
  const auto ctx = detail::as_context(context_or_executor);
  const auto list = id_view(counts);
  const detail::host_call call(ctx, "row_gradients",
                               detail::in_spaces<typename Bags::space, typename decltype(list)::space>);
  if (!call) return call.stopped();
  detail::check_row_gradients_pooling<detail::pooling_for<Pooling>>();
  status s;
  index_t slots = 0;
  for (const matrix_view<float>& out : outs) {
    if (s.ok()) s = detail::check_gradient(gradient, out.extent(1), bags.bags(), detail::row_gradients_texts);
    if (s.ok()) s = out.validate("row_gradients: out must not be null");
    slots = capped_sum(slots, out.extent(0));
  }
  if (s.ok() && outs.empty()) {
    s = detail::check_gradient(gradient, gradient.extent(1), bags.bags(), detail::row_gradients_texts);
  }
  if (s.ok()) {
    s = detail::expect_size(slots, list.size(),
                            "row_gradients: out must have a row for each of the counts U");
  }
  if (s.ok() && !list.valid()) s = {errc::shape_mismatch, "row_gradients: counts must not be null"};
  if (!s.ok()) return s.in_operation("row_gradients");
  return detail::or_out_of_memory("row_gradients", [&] {
    return detail::place_gradients(
        ctx, detail::unresolved_rows(detail::numbered_rows{list.size()}, bags, detail::as_pooling(pooling)),
        list, gradient, outs);
  });
}

namespace detail {

inline constexpr gradient_texts weight_gradients_texts{
    "weight_gradients: gradient.extent(1) must be the row width D",
    "weight_gradients: gradient.extent(0) must be the number of bags B",
    "weight_gradients: gradient must not be null"};

/// Checks the shapes of weight_gradients and runs it.
template <class Context, class Rows>
DEEPREC_PER_UNIT status check_and_dot(const Context& ctx, const Rows& rows,
                                      matrix_view<const float, space_for<Context>> gradient,
                                      std::span<float> out) {
  using combiner_type = typename Rows::pooling_type::combiner;
  static_assert(
      !std::is_same_v<combiner_type, combiner::max_t> && !std::is_same_v<combiner_type, combiner::concat_t>,
      "deeprec::weight_gradients: no gradient for this combiner. Fix: sum, mean or sqrtn.");
  static_assert(Storage<typename Rows::source_type::format_type::element>,
                "deeprec::weight_gradients: rows are not an array of floats. Fix: a table of plain_rows.");
  if (const status s = check_gradient(gradient, rows.source().format().width(), rows.bags().bags(),
                                      weight_gradients_texts);
      !s) {
    return s.in_operation("weight_gradients");
  }
  if (!out.empty() && out.data() == nullptr)
    return {errc::shape_mismatch, "weight_gradients: out must not be null"};
  if (const status s = check_max_norm(rows.pooling()); !s) return s.in_operation("weight_gradients");
  return or_out_of_memory("weight_gradients",
                          [&] { return weight_gradients_on(ctx.backend(), ctx, rows, gradient, out); });
}

}  // namespace detail

/// The gradient of each weight of a batch, as if every id had one.
///
/// @shape    table (R,D) · bags as given to lookup · gradient of lookup's output (B,D) · out (N): one for
///           each id of the bags, from the first offset to the last; ids behind it are in no bag
/// @dtype    rows f32, f16 or bf16; the rest f32
/// @space    all reachable from the context
/// @pre      out overlaps no input
/// @post     absent ids get 0
/// @numerics dot products in f32, one sum per vector lane; the sum over a bag in f64. Between ISAs
///           |err| <= 2 D u sum|x g|
/// @cost     O(N*D); no allocation, except for row sources other than tables: 8 bytes per id
/// @threads  reentrant; a concurrent writer of the table's rows is not safe
/// @error    as lookup; shape_mismatch for a null gradient or out. On an error nothing is written
/// @example  @snippet tests/embedding/gradient_test.cpp weight_gradients
template <class Context, RowSource Source, BagBatch Bags, class Pooling>
DEEPREC_PER_UNIT status weight_gradients(Context&& context_or_executor, const Source& table, const Bags& bags,
                                         const Pooling& pooling,
                                         matrix_arg<const float, space_for<Context>> gradient,
                                         std::span<float> out) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::verb_call call(ctx, "weight_gradients",
                               detail::in_spaces<typename Source::space, typename Bags::space>);
  if (!call) return call.stopped();
  return detail::check_and_dot(ctx, detail::unresolved_rows(table, bags, detail::as_pooling(pooling)),
                               gradient, out);
}

/// The same, for rows that were resolved.
///
/// @error as weight_gradients, except for ids and weights
template <class Context, class Source, class Bags, class Pooling>
DEEPREC_PER_UNIT status weight_gradients(Context&& context_or_executor,
                                         const resolved_rows<Source, Bags, Pooling>& rows,
                                         matrix_arg<const float, space_for<Context>> gradient,
                                         std::span<float> out) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::verb_call call(ctx, "weight_gradients");
  if (!call) return call.stopped();
  return detail::check_and_dot(ctx, rows, gradient, out);
}

namespace detail {

// Turns the dot products of a bag into gradients, with the derivatives of the denominator.
template <class Args>
void divide_bag(const Args& args, detail::divide_by divide, index_t bag, float* of_position) {
  const auto weight_of = [&](index_t k) {
    return args.weights == nullptr ? 1.0 : static_cast<double>(args.weights[k]);
  };
  detail::pool_counts counts;
  double weighted = 0;  // gradient . pooled row, times the denominator
  for (index_t k = args.ranges.begin(bag); k < args.ranges.end(bag); ++k) {
    if (args.row_of.absent(k)) continue;
    counts.add(weight_of(k));
    weighted += weight_of(k) * static_cast<double>(of_position[k]);
  }
  const double by = counts.divisor(divide);
  for (index_t k = args.ranges.begin(bag); k < args.ranges.end(bag); ++k) {
    if (args.row_of.absent(k) || by == 0.0) {
      of_position[k] = 0.0F;
      continue;
    }
    const double through_divisor = divide == detail::divide_by::weight ? weighted / (by * by)
                                   : divide == detail::divide_by::root
                                       ? weighted * weight_of(k) / (by * by * by)
                                       : 0.0;
    of_position[k] = static_cast<float>(static_cast<double>(of_position[k]) / by - through_divisor);
  }
}

}  // namespace detail

template <class... Args>
status weight_gradients_on(any_backend, const Args&...) {
  return detail::no_backend<Args...>();
}

template <class Context, class Rows>
DEEPREC_PER_UNIT status weight_gradients_on(host_backend, const Context& ctx, const Rows& given,
                                            matrix_view<const float> gradient, std::span<float> out) {
  index_t bytes = 0;
  if constexpr (!detail::is_resolved<Rows>) bytes = given.address_bytes();
  detail::scratch_block block(ctx.memory, bytes);
  decltype(auto) rows = given.resolution();
  if constexpr (!detail::is_resolved<Rows>) {
    if (const status s = detail::resolve_in(ctx, rows, block); !s) return s;
  }
  using pooling_type = typename Rows::pooling_type;
  using element = typename Rows::source_type::format_type::element;
  const auto& bags = rows.bags();
  const index_t first = bags.first_position();
  if (const status s = detail::expect_size(static_cast<index_t>(out.size()), rows.positions(),
                                           "out.size() must be the number of ids in bags N");
      !s) {
    return s.in_operation("weight_gradients");
  }
  detail::pool_args<const float, decltype(rows.rows())> args{};
  args.row_of = rows.rows();
  args.ranges = bags.ranges();
  args.weights = bags.weights();
  args.table_rows = rows.table_rows();
  args.width = gradient.extent(1);
  args.parts = detail::parts_of(rows.source().format());
  args.end_position = bags.end_position();
  args.tuning = ctx.tuning;
  args.max_norm = detail::max_norm_of(rows.pooling());
  args.filters = detail::kernel_policy<pooling_type>::ids == detail::ids_are::filtered;
  args.out = gradient.data_handle();
  args.out_stride = gradient.stride(0);
  constexpr detail::divide_by divide = detail::divisor_of<typename pooling_type::combiner>();
  const double ns = rows.ns_of_rows(*ctx.tuning);
  detail::run_bulk(ctx, {bags.bags(), detail::grain_for(*ctx.tuning, bags.bags(), ns), ns},
                   [&](index_t begin, index_t end, int) {
                     with_isa_up_to_avx512(ctx.instruction_set, [&](auto region) {
                       position_dots<element>(region, args, first, out.data(), begin, end);
                     });
                     if constexpr (divide != detail::divide_by::one) {
                       for (index_t bag = begin; bag < end; ++bag) {
                         detail::divide_bag(args, divide, bag, out.data() - first);
                       }
                     }
                   });
  return {};
}

}}  // namespace deeprec::DEEPREC_ABI
