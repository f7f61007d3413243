// The transpose of a matrix: element (i, j) of in becomes element (j, i) of out.
//
//   in   a0 a1 a2        out   a0 b0
//        b0 b1 b2              a1 b1
//                              a2 b2
//
// Elements are of any trivially copyable type, copied as bytes; those of 1, 2, 4 and 8 bytes are transposed
// in registers. Not here: in place.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/ops/detail/byte_rows.hpp>
#include <deeprec/ops/detail/copy_rows_kernels.hpp>
#include <deeprec/ops/detail/transpose_args.hpp>
#include <deeprec/simd/dispatch.hpp>
#include <deeprec/simd/transpose_tiles.hpp>
#include <deeprec/simd/vectors.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/verb.hpp>

#define DEEPREC_REGION_SOURCE "deeprec/ops/detail/transpose.inl"
#include <deeprec/simd/foreach_region.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// out(j, i) = in(i, j).
///
/// @shape    in (R,C), any row stride · out (C,R), any row stride
/// @dtype    in and out: one trivially copyable type
/// @space    all reachable from the context
/// @pre      out shares no byte with in
/// @post     every element of out is written; bytes between the rows are neither read nor written
/// @numerics bits are copied: NaN payloads, -0 and padding too; the same on every ISA and for any number of
///           threads
/// @cost     O(R*C): reads in once and writes out once, in blocks of 512 bytes of a column and 128 columns,
///           with non-temporal stores when out is larger than the tuning's own_cache_bytes. No allocation; 80
///           KB of stack
/// @threads  reentrant; concurrent calls are safe where their outputs share no byte
/// @error    shape_mismatch naming the operand; unsupported when out overlaps in. On an error nothing is
///           written
/// @example  @snippet tests/ops/transpose_test.cpp transpose
/// @source   the Transpose operator of DeepRec
template <class Context, class T, MemorySpace Space>
DEEPREC_PER_UNIT status transpose(Context&& context_or_executor, matrix_arg<const T, space_for<Context>> in,
                                  matrix_view<T, Space> out) {
  static_assert(!std::is_const_v<T>,
                "deeprec::transpose: out is read only. Fix: matrix_view<float>, not <const float>.");
  static_assert(
      std::is_trivially_copyable_v<T>,
      "deeprec::transpose: the elements are not trivially copyable. Fix: transpose indices or pointers.");
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "transpose", detail::in_spaces<Space>);
  if (!call) return call.stopped();
  if (const status s =
          detail::expect_size(out.extent(0), in.extent(1), "transpose: out.extent(0) must be in.extent(1)");
      !s) {
    return s;
  }
  if (const status s =
          detail::expect_size(out.extent(1), in.extent(0), "transpose: out.extent(1) must be in.extent(0)");
      !s) {
    return s;
  }
  if (in.stride(0) < 0) return {errc::shape_mismatch, "transpose: in.stride(0) must not be negative"};
  if (out.stride(0) < out.extent(1) && out.extent(0) > 1) {
    return {errc::shape_mismatch, "transpose: out.stride(0) must be at least out.extent(1)"};
  }
  if (const status s = in.validate("transpose: in must not be null", row_overlap::permitted); !s) return s;
  if (const status s = out.validate("transpose: out must not be null"); !s) return s;
  return detail::or_out_of_memory("transpose", [&]() -> status {
    if (out.empty()) return {};
    constexpr auto element = static_cast<index_t>(sizeof(T));
    const detail::byte_rows<const std::byte> from = detail::bytes_of(in);
    const detail::byte_rows<const std::byte> read_out = detail::bytes_of(out);
    if (detail::share_bytes(from, read_out)) {
      return {errc::unsupported, "transpose: out must not overlap in"};
    }
    const index_t bytes = read_out.width * read_out.count;
    const bool streamed = element <= detail::transpose_stage_element &&
                          read_out.width >= detail::line_bytes && bytes > ctx.tuning->own_cache_bytes;
    const detail::transpose_args args{
        from,
        {reinterpret_cast<std::byte*>(out.data_handle()), read_out.count, read_out.stride, read_out.width},
        element,
        detail::elements_to_line(read_out.first, element, from.count),
        streamed ? detail::store_kind::streamed : detail::store_kind::cached};
    const detail::transpose_grid grid(args);
    const index_t block_bytes = grid.block_rows * detail::transpose_columns * element;
    const index_t grain = (std::max)(index_t{1}, detail::copy_piece_bytes / block_bytes);
    detail::run_bulk(ctx, {grid.down * grid.across, grain, detail::ns_of_bytes(*ctx.tuning, 4 * bytes)},
                     [&](index_t begin, index_t end, int) {
                       with_isa_up_to_avx512(ctx.instruction_set, [&](auto region) {
                         transpose_blocks(region, std::integral_constant<int, int{sizeof(T)}>(), args, begin,
                                          end);
                       });
                     });
    return {};
  });
}

}}  // namespace deeprec::DEEPREC_ABI
