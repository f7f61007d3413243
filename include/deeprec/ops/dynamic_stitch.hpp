// Merges the rows of several matrices into one: each row goes to the row of out that its index names.
//
//   indices[0]   0   3         data[0]   a0  a1           out row 0 = a0
//   indices[1]   1   3         data[1]   b0  b1           out row 1 = b0
//                                                         out row 2   is not changed: no index names it
//                                                         out row 3 = b1: the last one of a1, b1
//
// With the indices of a partition of rows, it undoes the partition. Elements are of any trivially copyable
// type, copied as bytes. Not here: the number of rows of out, which the caller knows.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <ranges>
#include <span>
#include <type_traits>

#include <deeprec/core/array_view.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/ops/detail/byte_rows.hpp>
#include <deeprec/ops/detail/copy_rows_kernels.hpp>
#include <deeprec/ops/detail/dynamic_stitch_args.hpp>
#include <deeprec/ops/detail/dynamic_stitch_job.hpp>
#include <deeprec/simd/dispatch.hpp>
#include <deeprec/simd/vectors.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/first_fault.hpp>
#include <deeprec/support/scratch_block.hpp>
#include <deeprec/support/verb.hpp>

#define DEEPREC_REGION_SOURCE "deeprec/ops/detail/dynamic_stitch.inl"
#include <deeprec/simd/foreach_region.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {

template <class>
inline constexpr bool is_index_array = false;
template <class Index, class Space>
inline constexpr bool is_index_array<array_view<Index, Space>> =
    IdInteger<std::remove_const_t<Index>> && std::is_signed_v<Index>;

template <class Range>
using element_of = std::remove_cv_t<std::ranges::range_value_t<Range>>;

}  // namespace detail

/// The indices of dynamic_stitch: a contiguous range of array_views of signed integers of 32 or 64 bits.
template <class Range>
concept StitchIndices = std::ranges::contiguous_range<const Range> && std::ranges::sized_range<const Range> &&
                        detail::is_index_array<detail::element_of<const Range>>;

/// The data of dynamic_stitch: a contiguous range of matrix_views.
template <class Range>
concept StitchData = std::ranges::contiguous_range<const Range> && std::ranges::sized_range<const Range> &&
                     detail::is_matrix_view<detail::element_of<const Range>>;

/// out row indices[k][i] = data[k] row i; of rows with one index, the last stays: the largest k, then the
/// largest i.
///
/// @shape    indices K arrays (N_k) · data K matrices (N_k,D), any row strides · out (B,D), any row stride
/// @dtype    indices: signed integers of 32 or 64 bits · data and out: one trivially copyable type
/// @space    all reachable from the context
/// @pre      out shares no byte with data or indices
/// @post     rows of out that no index names are not changed; bytes between the rows are neither read nor
///           written
/// @numerics bits are copied; the same on every ISA and for any number of threads
/// @cost     O(K + N*D), N the sum of N_k: every index and every row of data is read once, and every row that
///           an index names written, with non-temporal stores when out is larger than the tuning's
///           own_cache_bytes and its rows are whole cache lines or long. On an executor of one thread no
///           allocation; else 8 bytes for each row of out and each operand, from the context's resource
/// @threads  reentrant; concurrent calls are safe where their outputs share no byte
/// @error    shape_mismatch naming the operand (table = k); id_out_of_range (table = k, position = i, value)
///           of the first index outside [0, B); unsupported when out overlaps an operand; out_of_memory. On
///           an error nothing is written
/// @example  @snippet tests/ops/dynamic_stitch_test.cpp dynamic_stitch
/// @source   the DynamicStitch operator of TensorFlow
template <class Context, class Indices, class Data, class Out>
DEEPREC_PER_UNIT status dynamic_stitch(Context&& context_or_executor, const Indices& indices,
                                       const Data& data, const Out& out) {
  static_assert(StitchIndices<Indices>,
                "deeprec::dynamic_stitch: indices is no contiguous range of array_views of std::int32_t or "
                "std::int64_t. Fix: std::vector<array_view<const std::int64_t>>, one for each matrix.");
  static_assert(StitchData<Data>,
                "deeprec::dynamic_stitch: data is no contiguous range of matrix_views. Fix: "
                "std::vector<matrix_view<const float>>, one for each array of indices.");
  static_assert(
      detail::is_matrix_view<Out>,
      "deeprec::dynamic_stitch: out is no matrix_view. Fix: matrix_view<float>(data, rows, columns).");
  using element = typename Out::element_type;
  static_assert(!std::is_const_v<element>,
                "deeprec::dynamic_stitch: out is read only. Fix: matrix_view<float>, not <const float>.");
  using Matrix = detail::element_of<const Data>;
  static_assert(std::is_same_v<typename Matrix::value_type, element>,
                "deeprec::dynamic_stitch: data and out have different element types. Fix: one type for all; "
                "rows are copied, not converted.");
  static_assert(std::is_trivially_copyable_v<element>,
                "deeprec::dynamic_stitch: the elements are not trivially copyable. Fix: stitch rows of "
                "indices or pointers.");
  const auto ctx = detail::as_context(context_or_executor);
  using List = detail::element_of<const Indices>;
  const detail::host_call call(
      ctx, "dynamic_stitch",
      detail::in_spaces<typename List::space, typename Matrix::space, typename Out::space>);
  if (!call) return call.stopped();
  const std::span numbers(std::ranges::data(indices), std::ranges::size(indices));
  const std::span matrices(std::ranges::data(data), std::ranges::size(data));
  if (const status s = detail::expect_size(matrices.size(), numbers.size(),
                                           "dynamic_stitch: data.size() must be indices.size()");
      !s) {
    return s;
  }
  for (std::size_t k = 0; k < matrices.size(); ++k) {
    if (const status s = detail::stitch_operand_fits(numbers[k], matrices[k], out.extent(1)); !s) {
      return s.in_table(static_cast<index_t>(k));
    }
  }
  if (out.stride(0) < out.extent(1) && out.extent(0) > 1) {
    return {errc::shape_mismatch, "dynamic_stitch: out.stride(0) must be at least out.extent(1)"};
  }
  if (const status s = out.validate("dynamic_stitch: out must not be null"); !s) return s;
  return detail::or_out_of_memory("dynamic_stitch", [&]() -> status {
    using Index = typename List::value_type;
    const detail::byte_rows<const std::byte> read_out = detail::bytes_of(out);
    const detail::byte_rows<std::byte> to{reinterpret_cast<std::byte*>(out.data_handle()), read_out.count,
                                          read_out.stride, read_out.width};
    index_t rows = 0;
    for (std::size_t k = 0; k < matrices.size(); ++k) {
      if (const status s = detail::stitch_overlap(detail::bytes_of(matrices[k]), numbers[k].data(), read_out);
          !s) {
        return s.in_table(static_cast<index_t>(k));
      }
      rows = capped_sum(rows, numbers[k].size());
    }
    const index_t bytes = to.width * to.count;
    const bool streamed = bytes > ctx.tuning->own_cache_bytes && to.width >= detail::line_bytes &&
                          (detail::has_whole_lines(to) || to.width >= 8 * detail::line_bytes);
    const auto stitch = [&](std::size_t k, index_t begin, index_t end, const std::uint64_t* last,
                            index_t start) {
      const detail::stitch_args<Index> args{
          numbers[k].data(),
          detail::bytes_of(matrices[k]),
          to,
          streamed || bytes > detail::stitch_fetch_above ? detail::stitch_rows_ahead(to.width) : 0,
          streamed ? detail::store_kind::streamed : detail::store_kind::cached,
          !streamed,
          last,
          static_cast<std::uint64_t>(start)};
      with_isa_up_to_avx512(ctx.instruction_set, [&](auto region) { stitch_rows(region, args, begin, end); });
    };
    const auto check = [&](std::size_t k, index_t begin, index_t end) -> status {
      const Index* const list = numbers[k].data();
      const index_t at = with_isa_up_to_avx512(ctx.instruction_set, [&](auto region) {
        return first_outside(region, list, to.count, begin, end);
      });
      return at == end ? status() : detail::stitch_fault(static_cast<index_t>(k), at, list[at]);
    };
    const index_t row_bytes = to.width + static_cast<index_t>(sizeof(Index));
    const index_t grain = (std::max)(index_t{1}, detail::copy_piece_bytes / row_bytes);
    const double ns = detail::ns_of_bytes(*ctx.tuning, 2 * capped_product(rows, row_bytes));

    if (rows <= grain || !detail::is_shared(ctx, ns)) {  // in the order of the operands
      for (std::size_t k = 0; k < matrices.size(); ++k) {
        if (const status s = check(k, 0, numbers[k].size()); !s) return s;
      }
      for (std::size_t k = 0; k < matrices.size() && to.width > 0; ++k)
        stitch(k, 0, numbers[k].size(), nullptr, 0);
      return {};
    }

    const detail::stitch_job job{rows, grain, ns, to.count, to.width > 0};
    return detail::stitch_in_parallel(ctx, job, numbers, check, stitch);
  });
}

}}  // namespace deeprec::DEEPREC_ABI
