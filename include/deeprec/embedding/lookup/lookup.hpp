// The pooled embedding lookup: each bag of ids becomes one row.
//
//   out[b] = finish( sum over positions k of bag b, left to right, of  w[k] * table[ids[k]] )
//
//   ids ──row source──> row addresses ──kernel of this ISA──> sums in registers ──> out (B, D)
//
// Bags of one id each, and concat, are a gather: copies of rows, by a separate kernel.
// One verb for every backend; include lookup.cuh for device contexts. See pooling.hpp for combiners and
// policies. Not here: many tables in one call, gradients.
#pragma once

#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/kernels/host/batch_rows.hpp>
#include <deeprec/embedding/kernels/host/pool_job.hpp>
#include <deeprec/embedding/kernels/host/pool_rules.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/tables/row_source.hpp>
#include <deeprec/embedding/tables/table_view.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/scratch_block.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {

/// The checks of a lookup that read no ids.
///
/// @param rows  resolved_rows, or unresolved_rows
template <class Rows, class Out, MemorySpace OutSpace>
status check_lookup(const Rows& rows, matrix_view<Out, OutSpace> out) {
  static_assert(!std::is_const_v<Out>,
                "deeprec::lookup: out is read only. Fix: matrix_view<float>, not <const float>.");
  static_assert(std::is_same_v<Out, float> || std::is_same_v<Out, f16> || std::is_same_v<Out, bf16> ||
                    std::is_const_v<Out>,
                "deeprec::lookup: out of another type. Fix: float, f16 or bf16.");
  return lookup_shapes(rows.source().format().width(), rows.bags(), rows.pooling(), out);
}

/// Upper bound of the scratch of a lookup on the host; reads offsets.
template <class Out, class Rows>
index_t lookup_bytes(const Rows& rows) noexcept {
  const index_t long_bags =
      pool_job<resolution_of<Rows>, Out>::bytes_for(longest_bag(rows.bags()), rows.source().format().width());
  if constexpr (is_resolved<Rows>) {
    return long_bags;
  } else {
    return capped_sum(long_bags, rows.address_bytes());
  }
}

}  // namespace detail

/// Pools the rows of each bag.
///
/// @shape    table (R,D) · bags {offsets (B+1), ids (N), weights (N) or none}, or {ids (B,L)} ·
///           out (B,D), any row stride; with concat (N,D), one row for each id
/// @dtype    rows: f32, f16, bf16, fp8, int8, int4 or split; out: f32, f16 or bf16; ids and offsets 32 or
///           64 bits; weights f32; sums in f32
/// @space    table, bags and out reachable from the context
/// @pre      out overlaps neither the table nor the bags
/// @post     every row of out is written, unless a policy specifies otherwise (see pooling.hpp)
/// @numerics rows are added left to right; a bag of more than 4096 ids is added in chunks of 4096, and
///           the chunks by a balanced binary tree. Unweighted: the same bits on every ISA and for any
///           number of threads. Weighted: the same bits for any number of threads; between ISAs
///           |err| <= 2 n u sum|w x|, u = 2^-24, from fused multiplication. With max_norm the same, and
///           D u more from the norm of a row (a sum of squares that overflows makes the row 0). NaN and
///           infinity propagate, also through max. The bits of a bag don't depend on the other bags. Sums
///           start at +0: for a bag of -0 alone, sum, mean and sqrtn give +0. combiner::max keeps -0, and
///           returns the last of zeros of both signs; concat keeps -0. An empty bag that becomes
///           the default row has the bits of a bag of that one id. Rows of int8 and int4 codes are added as
///           code * (scale * w), and the biases of a bag separately: between ISAs, weighted or not,
///           |err| <= 2 (n + 2) u sum|w| (scale * code + |bias|). With max and concat they are decoded as by
///           dequantize, with the same bits on every ISA, then weighted; the sum of one id without a weight
///           has these bits too
/// @cost     O(N*D): reads N rows, writes B*D, checks the ids in a separate pass (bounds mode check).
///           No allocation, except for bags of more than 4096 ids (D floats per 4096 of the longest), and for
///           row sources other than tables (8 bytes per id); both from the context's resource, before a row
///           is written
/// @threads  reentrant; concurrent lookups of one table are safe, a concurrent writer of its rows is not
/// @error    shape_mismatch (also for a null out, for a table with rows and without memory, and for a
///           negative number of rows); offsets_*; id_out_of_range and weight_is_nan with bag and position
///           (bounds mode check; the smallest position; a bad default_row has no bag; weights of absent ids
///           are not checked); unsupported (combiner::max with weights); invalid_value (a max_norm that is
///           not above 0); out_of_memory. On an error nothing is written
/// @example  @snippet tests/embedding/lookup_test.cpp lookup
template <class Context, RowSource Source, BagBatch Bags, class Pooling, class Out, MemorySpace OutSpace>
DEEPREC_PER_UNIT status lookup(Context&& context_or_executor, const Source& table, const Bags& bags,
                               const Pooling& pooling, matrix_view<Out, OutSpace> out) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::verb_call call(ctx, "lookup",
                               detail::in_spaces<typename Source::space, typename Bags::space, OutSpace>);
  if (!call) return call.stopped();
  const detail::unresolved_rows rows(table, bags, detail::as_pooling(pooling));
  if (const status s = detail::check_lookup(rows, out); !s) return s.in_operation("lookup");
  return detail::or_out_of_memory("lookup", [&]() __attribute__((always_inline)) {
    return lookup_on(ctx.backend(), ctx, rows, matrix_view<Out, space_for<Context>>(out));
  });
}

/// The same, for rows that were resolved (resolve.hpp): no id is checked or located again.
///
/// @shape   out (B,D), any row stride; with concat (N,D)
/// @cost    O(N*D)
/// @threads as lookup; concurrent lookups of one resolved_rows are safe
/// @error   as lookup, except for ids and weights
template <class Context, class Rows, class Out, MemorySpace OutSpace>
  requires(detail::is_resolved<Rows>)
DEEPREC_PER_UNIT status lookup(Context&& context_or_executor, const Rows& rows,
                               matrix_view<Out, OutSpace> out) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::verb_call call(ctx, "lookup", detail::in_spaces<OutSpace>);
  if (!call) return call.stopped();
  if (const status s = detail::check_lookup(rows, out); !s) return s.in_operation("lookup");
  return detail::or_out_of_memory("lookup", [&]() __attribute__((always_inline)) {
    return lookup_on(ctx.backend(), ctx, rows, matrix_view<Out, space_for<Context>>(out));
  });
}

namespace detail {
template <class S>
concept NamesFormat = requires { typename S::format_type; };
template <class B>
concept NamesIds = requires { typename B::id_type; };
}  // namespace detail

/// Rejects row sources and batches that lack a required member.
///
/// @cost    none: a static_assert
/// @threads reentrant
/// @error   does not compile
template <class Context, detail::NamesFormat Source, detail::NamesIds Bags, class Pooling, class Out>
  requires(!RowSource<Source> || !BagBatch<Bags>)
DEEPREC_PER_UNIT status lookup(Context&&, const Source&, const Bags&, const Pooling&, const Out&) {
  static_assert(
      RowSource<Source>,
      "deeprec::lookup: not a row source. Fix: give it format_type, space and format() (concept RowSource in "
      "embedding/tables/row_source.hpp); of a dense_table pass view().");
  static_assert(BagBatch<Bags>,
                "deeprec::lookup: not a batch of bags. Fix: give it the members that concept BagBatch in "
                "core/jagged_view.hpp lists, or pass a jagged_view or a fixed_hotness_view.");
  return {};
}

template <class... Args>
status lookup_on(any_backend, const Args&...) {
  return detail::no_backend<Args...>();
}

template <class Context, class Rows, class Out>
DEEPREC_PER_UNIT DEEPREC_INLINE status lookup_on(host_backend, const Context& ctx, const Rows& given,
                                                 matrix_view<Out> out) {
  detail::scratch_block scratch(ctx.memory, detail::lookup_bytes<Out>(given));
  decltype(auto) rows = given.resolution();
  if constexpr (!detail::is_resolved<Rows>) {
    if (const status s = detail::resolve_in(ctx, rows, scratch); !s) return s;
  }
  detail::pool_job job(rows, out);
  if (const status s = job.open(); !s) return s;
  job.plan(ctx, scratch);
  const double ns = job.ns(*ctx.tuning);
  detail::run_bulk(ctx, {job.units(), job.grain(*ctx.tuning, detail::threads_at_once(*ctx.executor), ns), ns},
                   [&](index_t begin, index_t end, int) { job.pool(begin, end, true); });
  job.close(ctx);
  return {};
}

}}  // namespace deeprec::DEEPREC_ABI
