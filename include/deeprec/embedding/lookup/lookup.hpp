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
#include <deeprec/core/status.hpp>
#include <deeprec/core/unit.hpp>
#include <deeprec/core/verb.hpp>
#include <deeprec/embedding/kernels/lookup_job.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/tables/table_view.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {

/// Checks that the shapes of a lookup's operands fit together.
template <class Source, class Bags, class Pooling, class Out, class OutSpace, class Columns>
status lookup_shapes(const Source& table, const Bags& bags, const Pooling& pooling,
                     const matrix_view<Out, OutSpace, Columns>& out) {
  using combiner_type = typename Pooling::combiner;
  if (const status s = detail::expect_size(out.extent(1), table.format().width(),
                                           "lookup: out.extent(1) must be the row width D");
      !s) {
    return s;
  }
  if (!std::is_same_v<combiner_type, combiner::concat_t>) {
    if (const status s =
            expect_size(out.extent(0), bags.bags(), "lookup: out.extent(0) must be the number of bags B");
        !s) {
      return s;
    }
  }
  if (out.stride(0) < out.extent(1) && out.extent(0) > 1) {
    return {errc::shape_mismatch, "lookup: out.stride(0) must be at least out.extent(1)"};
  }
  if (!out.valid()) return out.validate("lookup: out must not be null");
  if (std::is_same_v<combiner_type, combiner::max_t> && bags.weights() != nullptr) {
    return {errc::unsupported, "lookup: combiner::max must have no weights"};
  }
  return check_max_norm(pooling);
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
///           |err| <= 2 (n + 2) u sum|w| (scale * code + |bias|); with concat they are decoded, then weighted
/// @cost     O(N*D): reads N rows, writes B*D, checks the ids in a separate pass (bounds mode check).
///           No allocation, except for bags of more than 4096 ids (D floats per 4096 of the longest), and for
///           row sources that resolve (one pointer per id); both from the context's resource, before a row is
///           written
/// @threads  reentrant; concurrent lookups of one table are safe, a concurrent writer of its rows is not
/// @error    shape_mismatch (also for a null out); offsets_*; id_out_of_range and weight_is_nan with bag and
///           position (bounds mode check; the smallest position; a bad default_row has no bag; weights of
///           absent ids are not checked); unsupported (combiner::max with weights); invalid_value (a max_norm
///           that is not above 0); out_of_memory. On an error nothing is written
/// @example  @snippet tests/embedding/lookup_test.cpp lookup
template <class Context, RowSource Source, BagBatch Bags, class Pooling, class Out, MemorySpace OutSpace,
          class Columns, class = detail::unit>
[[nodiscard]] status lookup(Context&& context_or_executor, const Source& table, const Bags& bags,
                            const Pooling& pooling, matrix_view<Out, OutSpace, Columns> out) {
  static_assert(!std::is_const_v<Out>,
                "deeprec::lookup: out is read only. Fix: matrix_view<float>, not <const float>.");
  static_assert(std::is_same_v<Out, float> || std::is_same_v<Out, f16> || std::is_same_v<Out, bf16> ||
                    std::is_const_v<Out>,
                "deeprec::lookup: out of another type. Fix: float, f16 or bf16.");
  const auto ctx = detail::as_context(context_or_executor);
  const auto policies = detail::as_pooling(pooling);
  if (const status s = detail::lookup_shapes(table, bags, policies, out); !s) return s;
  // A copy: a view whose address escapes stays in memory, and no check of it is folded.
  return detail::or_out_of_memory([&, to = matrix_view<Out, OutSpace>(out)] {
    return lookup_on(ctx.backend(), ctx, table, bags, policies, to);
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
template <class Context, detail::NamesFormat Source, detail::NamesIds Bags, class Pooling, class Out,
          class = detail::unit>
  requires(!RowSource<Source> || !BagBatch<Bags>)
status lookup(Context&&, const Source&, const Bags&, const Pooling&, const Out&) {
  static_assert(
      RowSource<Source>,
      "deeprec::lookup: not a row source. Fix: give it format_type, space, format() and rows() (concept "
      "RowSource in embedding/tables/table_view.hpp); of a dense_table pass view().");
  static_assert(BagBatch<Bags>,
                "deeprec::lookup: not a batch of bags. Fix: give it the members that concept BagBatch in "
                "core/jagged_view.hpp lists, or pass a jagged_view or a fixed_hotness_view.");
  return {};
}

template <class... Args>
status lookup_on(any_backend, const Args&...) {
  return detail::no_backend<Args...>();
}

template <class Context, class Source, class Bags, class Pooling, class Out, MemorySpace OutSpace,
          class = detail::unit>
status lookup_on(host_backend, const Context& ctx, const Source& table, const Bags& bags,
                 const Pooling& pooling, matrix_view<Out, OutSpace> out) {
  static_assert(reachable_as<OutSpace, host_space>,
                "deeprec::lookup: device memory given to a host context. Fix: copy it, or pass a "
                "device context.");
  detail::lookup_job job(table, bags, pooling, matrix_view<Out>(out), ctx.memory);
  if (const status s = job.open(); !s) return s;
  if constexpr (job.checks) {
    ctx.executor->parallel_for(
        job.positions(), detail::check_positions_at_once,
        [&](index_t begin, index_t end, int) { job.check(ctx.instruction_set, begin, end); });
    if (const status s = job.fault(); !s) return s;
  }
  job.plan(ctx);
  ctx.executor->parallel_for(job.units(), job.grain(), [&](index_t begin, index_t end, int) {
    job.fetch(ctx.instruction_set, begin);
    job.pool(ctx.instruction_set, begin, end);
  });
  job.close(ctx);
  return {};
}

}}  // namespace deeprec::DEEPREC_ABI
