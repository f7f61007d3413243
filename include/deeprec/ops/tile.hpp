// Repeats a matrix down and across.
//
//   in   a0 a1       2 down, 3 across    out   a0 a1  a0 a1  a0 a1
//        b0 b1                                 b0 b1  b0 b1  b0 b1
//                                              a0 a1  a0 a1  a0 a1
//                                              b0 b1  b0 b1  b0 b1
//
// Elements are of any trivially copyable type, copied as bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/ops/detail/byte_rows.hpp>
#include <deeprec/ops/detail/copy_rows_kernels.hpp>
#include <deeprec/ops/detail/tile_args.hpp>
#include <deeprec/simd/dispatch.hpp>
#include <deeprec/simd/vectors.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/verb.hpp>

#define DEEPREC_REGION_SOURCE "deeprec/ops/detail/tile.inl"
#include <deeprec/simd/foreach_region.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// out(i, j) = in(i mod R, j mod C).
///
/// @shape    in (R,C), any row stride · out (R*row_multiple, C*column_multiple), any row stride
/// @dtype    in and out: one trivially copyable type
/// @space    all reachable from the context
/// @pre      out shares no byte with in
/// @post     every element of out is written; bytes between the rows are neither read nor written. A multiple
///           of 0 gives an empty out
/// @numerics bits are copied; the same on every ISA and for any number of threads
/// @cost     O(size of out): writes out once, with non-temporal stores when it is larger than the tuning's
///           own_cache_bytes; reads in row_multiple times. No allocation
/// @threads  reentrant; concurrent calls are safe where their outputs share no byte
/// @error    shape_mismatch naming the operand, or a multiple that is negative; unsupported when out overlaps
///           in. On an error nothing is written
/// @example  @snippet tests/ops/tile_test.cpp tile
/// @source   the Tile operator of DeepRec
template <class Context, class T, MemorySpace Space>
DEEPREC_PER_UNIT status tile(Context&& context_or_executor, matrix_arg<const T, space_for<Context>> in,
                             index_t row_multiple, index_t column_multiple, matrix_view<T, Space> out) {
  static_assert(!std::is_const_v<T>,
                "deeprec::tile: out is read only. Fix: matrix_view<float>, not <const float>.");
  static_assert(std::is_trivially_copyable_v<T>,
                "deeprec::tile: the elements are not trivially copyable. Fix: tile indices or pointers.");
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "tile", detail::in_spaces<Space>);
  if (!call) return call.stopped();
  if (row_multiple < 0) return {errc::shape_mismatch, "tile: row_multiple must not be negative"};
  if (column_multiple < 0) return {errc::shape_mismatch, "tile: column_multiple must not be negative"};
  if (in.extent(0) < 0 || in.extent(1) < 0) {
    return {errc::shape_mismatch, "tile: in.extent must not be negative"};
  }
  const index_t rows = capped_product(in.extent(0), row_multiple);
  const index_t columns = capped_product(in.extent(1), column_multiple);
  if (rows == most_size || columns == most_size) {
    return {errc::shape_mismatch, "tile: in.extent times its multiple must fit in memory"};
  }
  if (const status s =
          detail::expect_size(out.extent(0), rows, "tile: out.extent(0) must be in.extent(0) * row_multiple");
      !s) {
    return s;
  }
  if (const status s = detail::expect_size(out.extent(1), columns,
                                           "tile: out.extent(1) must be in.extent(1) * column_multiple");
      !s) {
    return s;
  }
  if (in.stride(0) < 0) return {errc::shape_mismatch, "tile: in.stride(0) must not be negative"};
  if (out.stride(0) < out.extent(1) && out.extent(0) > 1) {
    return {errc::shape_mismatch, "tile: out.stride(0) must be at least out.extent(1)"};
  }
  if (const status s = in.validate("tile: in must not be null", row_overlap::permitted); !s) return s;
  if (const status s = out.validate("tile: out must not be null"); !s) return s;
  return detail::or_out_of_memory("tile", [&]() -> status {
    if (out.empty()) return {};
    const detail::byte_rows<const std::byte> from = detail::bytes_of(in);
    const detail::byte_rows<const std::byte> read_out = detail::bytes_of(out);
    if (detail::share_bytes(from, read_out)) return {errc::unsupported, "tile: out must not overlap in"};
    const index_t bytes = read_out.width * read_out.count;
    const bool streamed = bytes > ctx.tuning->own_cache_bytes && read_out.width >= detail::line_bytes;
    const detail::tile_args args{
        from,
        {reinterpret_cast<std::byte*>(out.data_handle()), read_out.count, read_out.stride, read_out.width},
        streamed ? detail::store_kind::streamed : detail::store_kind::cached};
    const index_t grain = (std::max)(index_t{1}, detail::copy_piece_bytes / read_out.width);
    detail::run_bulk(ctx, {read_out.count, grain, detail::ns_of_bytes(*ctx.tuning, bytes)},
                     [&](index_t begin, index_t end, int) {
                       with_isa_up_to_avx512(ctx.instruction_set,
                                             [&](auto region) { tile_rows(region, args, begin, end); });
                     });
    return {};
  });
}

}}  // namespace deeprec::DEEPREC_ABI
