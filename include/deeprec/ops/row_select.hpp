// Chooses whole rows: out row b is a row of `then` where cond[b] is true, else one of `otherwise`.
//
//   cond   1   0   1                then        t0  t1  t2        (B,D), or one row (1,D) for all b
//          │   │   │                otherwise   e0  e1  e2        (B,D), or one row (1,D) for all b
//   out    t0  e1  t2               only the chosen rows are read; their bits are not changed
//
// Elements are of any trivially copyable type, copied as bytes. In place: out may be `then` or `otherwise`,
// and rows that are there already are not touched. Not here: a condition for every element.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <deeprec/core/array_view.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/ops/detail/byte_rows.hpp>
#include <deeprec/ops/detail/copy_rows_kernels.hpp>
#include <deeprec/ops/detail/row_select_args.hpp>
#include <deeprec/simd/dispatch.hpp>
#include <deeprec/simd/vectors.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/verb.hpp>

#define DEEPREC_REGION_SOURCE "deeprec/ops/detail/row_select.inl"
#include <deeprec/simd/foreach_region.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {

template <class T>
struct space_of {
  using type = host_space;
};
template <class T, class Space>
struct space_of<array_view<T, Space>> {
  using type = Space;
};

/// A condition as a view: in the space of an array_view, else of host memory.
template <class T, class Flag>
concept ConvertsToFlags = std::convertible_to<const T&, array_view<const Flag, typename space_of<T>::type>>;

}  // namespace detail

/// A condition of row_select: any type that converts to an array_view of const bool or const std::uint8_t, in
/// its own space or of host memory.
template <class T>
concept RowCondition = detail::ConvertsToFlags<T, bool> || detail::ConvertsToFlags<T, std::uint8_t>;

namespace detail {

/// The bytes of a condition: a bool that some framework stored as 255 is true as well.
template <RowCondition Condition>
auto condition_bytes(const Condition& cond) noexcept {
  using space = typename space_of<Condition>::type;
  using bytes = array_view<const unsigned char, space>;
  if constexpr (ConvertsToFlags<Condition, bool>) {
    static_assert(sizeof(bool) == 1);
    const array_view<const bool, space> flags(cond);
    return bytes(reinterpret_cast<const unsigned char*>(flags.data()), flags.size());
  } else {
    return bytes(cond);
  }
}

/// True where out and an operand are the same rows (in place).
inline bool same_rows(const byte_rows<const std::byte>& operand,
                      const byte_rows<const std::byte>& out) noexcept {
  return operand.first == out.first && operand.count == out.count &&
         (operand.stride == out.stride || out.count == 1);
}
/// An operand of one row is repeated for all rows.
inline byte_rows<const std::byte> one_for_all(byte_rows<const std::byte> operand) noexcept {
  if (operand.count == 1) operand.stride = 0;
  return operand;
}

/// Refuses an out that overlaps cond, or an operand other than in place.
inline status select_overlaps(const unsigned char* cond, const byte_rows<const std::byte>& then,
                              const byte_rows<const std::byte>& otherwise,
                              const byte_rows<const std::byte>& out) noexcept {
  if (!same_rows(then, out) && share_bytes(then, out)) {
    return {errc::unsupported, "row_select: out must be then, or not overlap it"};
  }
  if (!same_rows(otherwise, out) && share_bytes(otherwise, out)) {
    return {errc::unsupported, "row_select: out must be otherwise, or not overlap it"};
  }
  const byte_rows<const std::byte> flags{reinterpret_cast<const std::byte*>(cond), 1, 0, out.count};
  if (share_bytes(flags, out)) return {errc::unsupported, "row_select: out must not overlap cond"};
  return {};
}

}  // namespace detail

/// out row b = cond[b] ? then row b : otherwise row b.
///
/// @shape    cond (B) · then, otherwise (B,D) or (1,D), any row stride · out (B,D), any row stride
/// @dtype    cond: bool or std::uint8_t, any byte but 0 is true · then, otherwise and out: one trivially
///           copyable type
/// @space    all reachable from the context; cond in device memory as array_view
/// @pre      out is then or otherwise (same first element, same stride), or shares no byte with it; out
///           shares no byte with cond
/// @post     every row of out is written; bytes between the rows are neither read nor written
/// @numerics bits are copied: NaN payloads, -0 and padding too; the same on every ISA and for any number
///           of threads
/// @cost     O(B*D): reads only the chosen rows, once, and writes out once, with non-temporal stores when out
///           is larger than the tuning's kept_bytes. In place: only the rows that change. No allocation
/// @threads  reentrant; concurrent calls are safe where their outputs share no byte
/// @error    shape_mismatch naming the operand; unsupported when out overlaps an operand in part. On an
///           error nothing is written
/// @example  @snippet tests/ops/row_select_test.cpp row_select
/// @source   the AVX-512 Select operator of DeepRec, which loads both rows
template <class Context, class Condition, class T, MemorySpace Space>
DEEPREC_PER_UNIT status row_select(Context&& context_or_executor, const Condition& cond,
                                   matrix_arg<const T, space_for<Context>> then,
                                   matrix_arg<const T, space_for<Context>> otherwise,
                                   matrix_view<T, Space> out) {
  static_assert(RowCondition<Condition>,
                "deeprec::row_select: cond is no contiguous range of bool or std::uint8_t. Fix: "
                "array_view<const bool>(data, rows); std::vector<bool> has no bytes to look at.");
  static_assert(!std::is_const_v<T>,
                "deeprec::row_select: out is read only. Fix: matrix_view<float>, not <const float>.");
  static_assert(std::is_trivially_copyable_v<T>,
                "deeprec::row_select: the elements are not trivially copyable. Fix: select rows of "
                "indices or pointers.");
  const auto ctx = detail::as_context(context_or_executor);
  const auto bytes = detail::condition_bytes(cond);
  const detail::verb_call call(ctx, "row_select", detail::in_spaces<typename decltype(bytes)::space, Space>);
  if (!call) return call.stopped();
  const index_t rows = out.extent(0);
  if (const status s =
          detail::expect_size(bytes.size(), rows, "row_select: cond.size() must be out.extent(0)");
      !s) {
    return s;
  }
  if (const status s = detail::expect_size(then.extent(1), out.extent(1),
                                           "row_select: then.extent(1) must be out.extent(1)");
      !s) {
    return s;
  }
  if (const status s = detail::expect_size(otherwise.extent(1), out.extent(1),
                                           "row_select: otherwise.extent(1) must be out.extent(1)");
      !s) {
    return s;
  }
  if (then.extent(0) != rows && then.extent(0) != 1) {
    return {errc::shape_mismatch, "row_select: then.extent(0) must be out.extent(0) or 1"};
  }
  if (otherwise.extent(0) != rows && otherwise.extent(0) != 1) {
    return {errc::shape_mismatch, "row_select: otherwise.extent(0) must be out.extent(0) or 1"};
  }
  if (then.stride(0) < 0) return {errc::shape_mismatch, "row_select: then.stride(0) must not be negative"};
  if (otherwise.stride(0) < 0)
    return {errc::shape_mismatch, "row_select: otherwise.stride(0) must not be negative"};
  if (out.stride(0) < out.extent(1) && rows > 1) {
    return {errc::shape_mismatch, "row_select: out.stride(0) must be at least out.extent(1)"};
  }
  if (const status s = then.validate("row_select: then must not be null", row_overlap::permitted); !s)
    return s;
  if (const status s = otherwise.validate("row_select: otherwise must not be null", row_overlap::permitted);
      !s)
    return s;
  if (const status s = out.validate("row_select: out must not be null"); !s) return s;
  return detail::or_out_of_memory("row_select", [&] {
    return row_select_on(ctx.backend(), ctx, bytes, then, otherwise, matrix_view<T, space_for<Context>>(out));
  });
}

template <class... Args>
status row_select_on(any_backend, const Args&...) {
  return detail::no_backend<Args...>();
}

template <class Context, class Bytes, class T>
DEEPREC_PER_UNIT status row_select_on(host_backend, const Context& ctx, const Bytes& cond,
                                      matrix_view<const T> then, matrix_view<const T> otherwise,
                                      matrix_view<T> out) {
  if (out.empty()) return {};
  const detail::byte_rows<const std::byte> to = detail::bytes_of(out);
  const detail::byte_rows<const std::byte> from_then = detail::bytes_of(then);
  const detail::byte_rows<const std::byte> from_otherwise = detail::bytes_of(otherwise);
  if (const status s = detail::select_overlaps(cond.data(), from_then, from_otherwise, to); !s) return s;
  const index_t bytes = to.width * to.count;
  const bool streamed = to.width >= detail::line_bytes && bytes > ctx.tuning->kept_bytes;
  const detail::select_args args{
      cond.data(),
      {detail::one_for_all(from_otherwise), detail::one_for_all(from_then)},
      {reinterpret_cast<std::byte*>(out.data_handle()), to.count, to.stride, to.width},
      streamed || bytes > ctx.tuning->own_cache_bytes ? detail::rows_ahead(to.width) : 0,
      streamed ? detail::store_kind::streamed : detail::store_kind::cached};
  const index_t grain = (std::max)(index_t{1}, detail::copy_piece_bytes / to.width);
  detail::run_bulk(ctx, {to.count, grain, detail::ns_of_bytes(*ctx.tuning, 2 * bytes)},
                   [&](index_t begin, index_t end, int) {
                     with_isa_up_to_avx512(ctx.instruction_set,
                                           [&](auto region) { select_rows(region, args, begin, end); });
                   });
  return {};
}

}}  // namespace deeprec::DEEPREC_ABI
