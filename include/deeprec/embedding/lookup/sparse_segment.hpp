// Sums, means, ... of the rows of a matrix that sorted segment ids name: a lookup whose bags are segments.
//
//   indices       3  0  0  5            N rows of data
//   segment_ids   0  0  2  2            N, ascending
//   out           x3+x0   0   x0+x5     a row for each segment; 0 where it has no index
//
// With combiner::sum, mean and sqrtn these are SparseSegmentSum, -Mean and -SqrtN. Segment ids that are not
// sorted: fused_lookup of a coo_view.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <type_traits>

#include <deeprec/core/array_view.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/tables/table_view.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/first_fault.hpp>
#include <deeprec/support/overlap.hpp>
#include <deeprec/support/scratch_block.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {

/// Writes the offsets (B+1) of ascending segment ids; the fault of the smallest position where they are not.
template <class Context, class Segment>
DEEPREC_PER_UNIT status segment_offsets(const Context& ctx, array_view<const Segment> segment_ids,
                                        std::span<index_t> offsets) {
  const index_t n = segment_ids.size();
  const auto segments = static_cast<index_t>(offsets.size()) - 1;
  const auto id_at = [&](index_t k) { return static_cast<index_t>(segment_ids[k]); };
  first_position bad;
  run_bulk(ctx, {n, index_t{1} << 14, static_cast<double>(n)}, [&](index_t begin, index_t end, int) {
    index_t before = begin == 0 ? index_t{-1} : (std::max)(id_at(begin - 1), index_t{-1});
    for (index_t k = begin; k < end; ++k) {
      const index_t segment = id_at(k);
      if (segment == before && segment >= 0) continue;
      if (segment < 0 || segment < before || segment >= segments) return bad.see(k);
      for (index_t s = before + 1; s <= segment; ++s) offsets[static_cast<std::size_t>(s)] = k;
      before = segment;
    }
  });
  if (const index_t k = bad.value(); k != first_position::none) {
    const index_t segment = id_at(k);
    return {errc::invalid_value,
            segment < 0 || segment >= segments ? "sparse_segment: segment_ids must be in [0, out.extent(0))"
                                               : "sparse_segment: segment_ids must not decrease",
            {.position = k, .value = segment}};
  }
  const index_t last = n == 0 ? index_t{-1} : id_at(n - 1);
  std::fill(offsets.begin() + (last + 1), offsets.end(), n);
  return {};
}

}  // namespace detail

/// out row s = the rows data[indices[k]] of all k with segment_ids[k] = s, pooled.
///
/// @shape    data (R,D), any row stride · indices (N) · segment_ids (N) · out (S,D), any row stride; S is
///           larger than the last segment id
/// @dtype    data: f32, f16 or bf16 · out: f32, f16 or bf16 · indices and segment_ids: 32 or 64 bits
/// @space    host
/// @pre      out overlaps no input
/// @post     every row of out is written; a segment without indices is pooled as an empty bag
/// @numerics as lookup
/// @cost     that of a lookup of N ids, and a pass over segment_ids; 8 bytes for each segment from the
///           context's resource
/// @threads  reentrant; concurrent calls are safe where their outputs share no byte
/// @error    shape_mismatch; invalid_value for segment ids that decrease or name no row of out, with the
///           position; id_out_of_range with segment and position for an index that names no row of data;
///           unsupported when out overlaps an input; out_of_memory. On an error nothing is written
/// @example  @snippet tests/embedding/sparse_segment_test.cpp sparse_segment
template <class Context, class T, class Indices, class Segments, class Pooling, class Out>
DEEPREC_PER_UNIT status sparse_segment(Context&& context_or_executor, matrix_view<T, host_space> data,
                                       const Indices& indices, const Segments& segment_ids,
                                       const Pooling& pooling, matrix_view<Out, host_space> out) {
  using element = std::remove_cv_t<T>;
  static_assert(
      std::is_same_v<element, float> || std::is_same_v<element, f16> || std::is_same_v<element, bf16>,
      "deeprec::sparse_segment: elements of another type. Fix: float, f16 or bf16.");
  const array_view ids(indices);
  const array_view segments(segment_ids);
  using id_type = typename decltype(ids)::value_type;
  using segment_type = typename decltype(segments)::value_type;
  static_assert(IdInteger<id_type> && IdInteger<segment_type>,
                "deeprec::sparse_segment: indices or segment ids of another type. Fix: integers of 32 or 64 "
                "bits.");
  static_assert(
      !std::is_same_v<typename detail::pooling_for<Pooling>::combiner, combiner::concat_t>,
      "deeprec::sparse_segment: concat has a row for each index. Fix: lookup, or gather_rows for copies.");
  const auto given = detail::as_context(context_or_executor);
  const detail::host_call call(
      given, "sparse_segment",
      detail::in_spaces<typename decltype(ids)::space, typename decltype(segments)::space>);
  if (!call) return call.stopped();
  const auto ctx = detail::begun(given);
  if (const status s = detail::expect_size(segments.size(), ids.size(),
                                           "sparse_segment: segment_ids.size() must be indices.size()");
      !s) {
    return s;
  }
  if (const status s = detail::expect_size(out.extent(1), data.extent(1),
                                           "sparse_segment: out.extent(1) must be data.extent(1)");
      !s) {
    return s;
  }
  if (data.stride(0) < data.extent(1) && data.extent(0) > 1) {
    return {errc::shape_mismatch, "sparse_segment: data.stride(0) must be at least data.extent(1)"};
  }
  if (const status s = data.validate("sparse_segment: data must not be null"); !s)
    return s.in_operation("sparse_segment");
  if (const status s = out.validate("sparse_segment: out must not be null"); !s)
    return s.in_operation("sparse_segment");
  if (!ids.valid()) return {errc::shape_mismatch, "sparse_segment: indices must not be null"};
  if (!segments.valid()) return {errc::shape_mismatch, "sparse_segment: segment_ids must not be null"};
  const matrix_view<Out> rows_out(out);
  const bool overlaps = detail::any_array(rows_out, [&](const detail::byte_range& bytes) {
    const auto hits = [&](const detail::byte_range& input) { return detail::overlap(bytes, input); };
    return detail::any_array(data, hits) || detail::any_array(ids, hits) || detail::any_array(segments, hits);
  });
  if (overlaps) return {errc::unsupported, "sparse_segment: out must not overlap an input"};
  return detail::or_out_of_memory("sparse_segment", [&]() -> status {
    detail::scratch_block block(ctx.memory,
                                detail::scratch_block::bytes_of<index_t>(capped_sum(out.extent(0), 1)));
    const auto offsets = block.template take<index_t>(out.extent(0) + 1);
    if (const status s = detail::segment_offsets(
            ctx, array_view<const segment_type>(segments.data(), segments.size()), offsets);
        !s) {
      return s;
    }
    const index_t stride = data.extent(0) > 1 ? data.stride(0) : data.extent(1);
    const auto table =
        as_table(matrix_view<const element>(data.data_handle(), data.extent(0), data.extent(1), stride));
    const jagged_view<id_type, index_t> bags(offsets.data(), out.extent(0), ids.data(), ids.size());
    const detail::unresolved_rows rows(table, bags, detail::as_pooling(pooling));
    if (const status s = detail::check_lookup(rows, rows_out); !s) return s;
    return lookup_on(ctx.backend(), ctx, rows, rows_out);
  });
}

}}  // namespace deeprec::DEEPREC_ABI
