// Sums of the columns of a matrix: the gradient of a bias (BiasAddGrad), which is added to every row.
//
//   in     1  2  3           (R,C)
//          4  5  6
//   out    5  7  9           (C)
//
// As a part of a matrix product: gemm_desc::column_sums (dense/gemm/gemm_desc.hpp), with the same kernel.
#pragma once

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

#include <deeprec/core/array_view.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/ops/detail/column_sums_kernels.hpp>
#include <deeprec/simd/dispatch.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/overlap.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {

/// out[j] = the sum of column j of valid operands: what column_sums and gemm share.
template <class Context, class T>
DEEPREC_PER_UNIT void sum_columns_on_host(const Context& ctx, matrix_view<const T> in, float* out) {
  constexpr index_t block = 64;  // columns
  const index_t bytes = capped_product(in.extent(0), in.extent(1)) * index_t{sizeof(T)};
  run_bulk(ctx, {(in.extent(1) + block - 1) / block, 1, ns_of_bytes(*ctx.tuning, bytes)},
           [&](index_t begin, index_t end, int) {
             const index_t first = begin * block;
             const index_t count = (std::min)(end * block, in.extent(1)) - first;
             with_isa_up_to_avx512(ctx.instruction_set, [&](auto region) {
               sum_columns(region, in.data_handle() + first, in.stride(0), in.extent(0), count, out + first);
             });
           });
}

}  // namespace detail

/// out[j] = the sum over all rows of in(i, j); 0 where there are no rows.
///
/// @shape    in (R,C), any row stride · out (C)
/// @dtype    in: f32, f16 or bf16 · out: f32
/// @space    both reachable from the host
/// @pre      out shares no byte with in
/// @post     every element of out is written
/// @numerics f32: partial sums of 64 rows, each row after the other, added in order:
///           |err| <= (64 + R / 64) u sum|x|, u = 2^-24. The same bits on every ISA and for any number of
///           threads
/// @cost     O(R*C), reads in once; no allocation. Threads share the columns, 64 at a time
/// @threads  reentrant; concurrent calls are safe where their outputs share no byte
/// @error    shape_mismatch naming the operand; unsupported when out overlaps in. On an error nothing is
///           written
/// @example  @snippet tests/ops/column_sums_test.cpp column_sums
template <class Context, class T, MemorySpace Space, class Out>
DEEPREC_PER_UNIT status column_sums(Context&& context_or_executor, matrix_view<T, Space> in, Out&& out) {
  using element = std::remove_cv_t<T>;
  static_assert(
      std::is_same_v<element, float> || std::is_same_v<element, f16> || std::is_same_v<element, bf16>,
      "deeprec::column_sums: elements of another type. Fix: float, f16 or bf16.");
  static_assert(
      std::is_convertible_v<Out&&, array_view<float, Space>>,
      "deeprec::column_sums: out is no contiguous range of float, written in the space of in. Fix: a "
      "std::vector<float>, or array_view<float>(data, columns).");
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "column_sums", detail::in_spaces<Space>);
  if (!call) return call.stopped();
  const array_view<float, Space> sums(std::forward<Out>(out));
  if (const status s =
          detail::expect_size(sums.size(), in.extent(1), "column_sums: out.size() must be in.extent(1)");
      !s) {
    return s;
  }
  if (in.stride(0) < in.extent(1) && in.extent(0) > 1) {
    return {errc::shape_mismatch, "column_sums: in.stride(0) must be at least in.extent(1)"};
  }
  if (const status s = in.validate("column_sums: in must not be null"); !s) return s;
  if (!sums.valid()) return {errc::shape_mismatch, "column_sums: out must not be null"};
  if (detail::shares_bytes(std::tie(sums), in))
    return {errc::unsupported, "column_sums: out must not overlap in"};
  detail::sum_columns_on_host(ctx, matrix_view<const element>(in), sums.data());
  return {};
}

}}  // namespace deeprec::DEEPREC_ABI
