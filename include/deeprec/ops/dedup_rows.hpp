// Removes duplicate rows, and puts them back later: the user part of a batch is computed once.
//
//   rows     a b a a b          rows      0 1         row numbers of the first a and the first b
//                               inverse   0 1 0 0 1
//
//   dedup_rows ──> gather_rows(rows, .rows) ──> U rows ──model──> (U,D) ──gather_rows(.., .inverse)──> (B,D)
//
// Rows are equal when their bytes are: 0 and -0 differ, a NaN equals itself, bytes of padding count.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory_resource>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include <deeprec/core/array_view.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/core/id_range.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/first_fault.hpp>
#include <deeprec/support/key_hash.hpp>
#include <deeprec/support/number_keys.hpp>
#include <deeprec/support/overlap.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The result of dedup_rows(). Reuse it: it keeps its memory.
///
/// @space   host; memory comes from the resource given to the constructor
/// @threads concurrent readers are safe; a writer needs exclusive access
template <class Index = std::int64_t>
struct unique_rows {
  static_assert(IdInteger<Index>,
                "deeprec::unique_rows: numbers are integers of 32 or 64 bits. "
                "Fix: unique_rows<std::int32_t>.");
  explicit unique_rows(std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : rows(memory), inverse(memory) {}

  std::pmr::vector<Index> rows;     ///< (U), ascending: row numbers in the order of first appearance
  std::pmr::vector<Index> inverse;  ///< (B): row b equals row rows[inverse[b]]
};

namespace detail {

/// Bytes of a piece of parallel work.
inline constexpr index_t row_piece_bytes = index_t{256} << 10;

inline index_t rows_per_piece(index_t row_bytes) noexcept {
  return (std::max)(index_t{1}, row_piece_bytes / (std::max)(index_t{1}, row_bytes));
}

template <class Index>
auto arrays_of(const unique_rows<Index>& answer) noexcept {
  return std::tie(answer.rows, answer.inverse);
}

/// Hashes of the rows, with secret seeds.
template <class Context, class T>
DEEPREC_PER_UNIT void hash_rows(const Context& ctx, const matrix_view<const T>& in, std::uint64_t* hashes) {
  const auto bytes = static_cast<std::size_t>(in.extent(1)) * sizeof(T);
  const index_t grain = rows_per_piece(static_cast<index_t>(bytes));
  const double ns = ns_of_bytes(*ctx.tuning, static_cast<index_t>(bytes)) + 5;
  run_bulk(ctx, {in.extent(0), grain, ns * static_cast<double>(in.extent(0))},
           [&](index_t begin, index_t end, int) {
             const key_seed seed = process_key_seed();  // a copy, which stores of hashes can't alias
             for (index_t k = begin; k < end; ++k) {
               const auto* const row = static_cast<const char*>(static_cast<const void*>(in.row(k)));
               hashes[k] = hash_bytes_with(std::string_view(row, bytes), seed.start, seed.key);
             }
           });
}

/// The keys of number_keys: rows, by their bytes. `rows` has room for all of them.
template <class T, class Index>
struct row_keys {
  const matrix_view<const T>& in;
  const std::uint64_t* hashes;
  std::pmr::vector<Index>& rows;

  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(in.extent(1)) * sizeof(T); }
  std::uint64_t hash(index_t k) const { return hashes[k]; }
  bool same(index_t k, std::uint32_t number) const {
    const auto first = static_cast<index_t>(rows[number]);
    return hashes[k] == hashes[first] &&
           (bytes() == 0 || std::memcmp(in.row(k), in.row(first), bytes()) == 0);
  }
  void add(index_t k) const { rows.push_back(static_cast<Index>(k)); }
  void again(std::uint32_t) const {}
  void fetch(std::uint32_t number) const { __builtin_prefetch(in.row(static_cast<index_t>(rows[number]))); }
};

}  // namespace detail

/// The distinct rows in the order of their first appearance, and for every row the number of the one it
/// equals.
///
/// @shape    rows (B,D), any row stride · out: rows (U), inverse (B)
/// @dtype    rows: any trivially copyable type, compared by its bytes; numbers of 32 or 64 bits
/// @space    rows on the host
/// @pre      out owns none of the rows
/// @post     row b has the bytes of row out.rows[out.inverse[b]]; out.rows ascends; D = 0: all rows are equal
/// @numerics exact; the same for any number of threads
/// @cost     O(B*D) expected: every row is read once to be hashed, in parallel, and a repeated row once more
///           to be compared. From the context's resource: 24 bytes a row at most; out reserves B numbers.
///           Rows can't be chosen to make it slower, as for unique
/// @threads  reentrant
/// @error    shape_mismatch; unsupported when B does not fit the type of the numbers, or 32 bits, and when
///           out owns memory of the rows; out_of_memory. On an error out is unchanged
/// @example  @snippet tests/ops/dedup_rows_test.cpp dedup_rows
/// @source   sample-aware graph compression of DeepRec
template <class Context, class T, MemorySpace Space, class Index>
DEEPREC_PER_UNIT status dedup_rows(Context&& context_or_executor, matrix_view<T, Space> rows,
                                   unique_rows<Index>& out) {
  static_assert(std::is_trivially_copyable_v<T>,
                "deeprec::dedup_rows: the elements are not trivially copyable. Fix: rows of numbers.");
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "dedup_rows", detail::in_spaces<Space>);
  if (!call) return call.stopped();
  if (const status s = rows.validate("matrix_view: data must not be null", row_overlap::permitted); !s)
    return s.in_operation("dedup_rows");
  const auto count = static_cast<std::uint64_t>(rows.extent(0));
  if (count > static_cast<std::uint64_t>((std::numeric_limits<Index>::max)()) ||
      count > static_cast<std::uint64_t>(detail::most_keys)) {
    return {errc::unsupported,
            "dedup_rows: the number of rows must be below 2^32 - 1 and fit the index type of out"};
  }
  return detail::or_out_of_memory("dedup_rows", [&]() -> status {
    using element = std::remove_const_t<T>;
    const index_t n = rows.extent(0);
    const matrix_view<const element> in(rows);
    if (detail::shares_bytes(detail::arrays_of(out), in))
      return {errc::unsupported, "dedup_rows: out must not own the rows"};
    // All allocations, before anything is written.
    std::pmr::vector<std::uint64_t> hashes(static_cast<std::size_t>(n), ctx.memory);
    std::pmr::vector<std::uint32_t> table(n == 0 ? 0 : detail::key_entries(n), ctx.memory);
    out.rows.reserve(static_cast<std::size_t>(n));
    out.inverse.reserve(static_cast<std::size_t>(n));
    detail::hash_rows(ctx, in, hashes.data());
    out.rows.clear();
    out.inverse.resize(static_cast<std::size_t>(n));
    detail::row_keys<element, Index> keys{in, hashes.data(), out.rows};
    if (n > 0) detail::number_keys(std::span<std::uint32_t>(table), n, keys, out.inverse.data());
    return {};
  });
}

namespace detail {

// A negative number becomes a large one, which is out of range.
template <class Index>
std::uint64_t row_number(const Index* numbers, index_t b) noexcept {
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(numbers[b]));
}

}  // namespace detail

/// out row b = row inverse[b] of rows: undoes dedup_rows, or gathers any rows.
///
/// @shape    rows (U,D), any row stride · inverse (B), as data() and size() · out (B,D), any row stride
/// @dtype    rows and out: one trivially copyable type; inverse: integers of 32 or 64 bits
/// @space    all reachable from the context
/// @pre      out shares no byte with rows or inverse
/// @numerics bits are copied; the same for any number of threads
/// @cost     O(B*D): a copy for each row. No allocation
/// @threads  reentrant
/// @error    shape_mismatch; id_out_of_range (position, value) of the first number outside [0, U). On an
///           error nothing is written
/// @example  @snippet tests/ops/dedup_rows_test.cpp dedup_rows
template <class Context, class Numbers, class T, MemorySpace Space>
DEEPREC_PER_UNIT status gather_rows(Context&& context_or_executor,
                                    matrix_arg<const T, space_for<Context>> rows, const Numbers& inverse,
                                    matrix_view<T, Space> out) {
  static_assert(!std::is_const_v<T>,
                "deeprec::gather_rows: out is read only. Fix: matrix_view<float>, not <const float>.");
  static_assert(std::is_trivially_copyable_v<T>,
                "deeprec::gather_rows: the elements are not trivially copyable. Fix: rows of numbers.");
  static_assert(IdRange<Numbers>,
                "deeprec::gather_rows: inverse is no list of integers of 32 or 64 bits. Fix: "
                "std::span(pointer, count), a std::vector or an array_view of them.");
  const auto ctx = detail::as_context(context_or_executor);
  const auto list = id_view(inverse);
  const detail::host_call call(ctx, "gather_rows", detail::in_spaces<Space, typename decltype(list)::space>);
  if (!call) return call.stopped();
  if (const status s = detail::expect_size(out.extent(1), rows.extent(1),
                                           "gather_rows: out.extent(1) must be rows.extent(1)");
      !s) {
    return s;
  }
  if (const status s = detail::expect_size(out.extent(0), list.size(),
                                           "gather_rows: out.extent(0) must be inverse.size()");
      !s) {
    return s;
  }
  if (out.stride(0) < out.extent(1) && out.extent(0) > 1) {
    return {errc::shape_mismatch, "gather_rows: out.stride(0) must be at least out.extent(1)"};
  }
  if (const status s = rows.validate("matrix_view: data must not be null", row_overlap::permitted); !s)
    return s.in_operation("gather_rows");
  if (const status s = out.validate(); !s) return s.in_operation("gather_rows");
  return detail::or_out_of_memory("gather_rows", [&]() -> status {
    const index_t n = out.extent(0);
    const auto* const numbers = list.data();
    const auto limit = static_cast<std::uint64_t>(rows.extent(0));
    const auto check = [=](index_t begin, index_t end) -> status {
      bool any = false;
      for (index_t b = begin; b < end; ++b) any |= detail::row_number(numbers, b) >= limit;
      if (!any) return {};
      index_t b = begin;
      while (detail::row_number(numbers, b) < limit) ++b;
      return {errc::id_out_of_range,
              "gather_rows: inverse must be in [0, U)",
              {.position = b, .value = static_cast<std::int64_t>(detail::row_number(numbers, b))}};
    };
    if (const status s = detail::first_fault(ctx, {n, index_t{1} << 16, static_cast<double>(n)}, check); !s)
      return s;
    if (out.empty()) return {};
    const auto bytes = static_cast<std::size_t>(out.extent(1)) * sizeof(T);
    const index_t grain = detail::rows_per_piece(static_cast<index_t>(bytes));
    const double ns = detail::ns_of_row(*ctx.tuning, rows.extent(0), static_cast<index_t>(bytes));
    detail::run_bulk(ctx, {n, grain, ns * static_cast<double>(n)}, [&](index_t begin, index_t end, int) {
      for (index_t b = begin; b < end; ++b) {
        std::memcpy(out.row(b), rows.row(static_cast<index_t>(detail::row_number(numbers, b))), bytes);
      }
    });
    return {};
  });
}

}}  // namespace deeprec::DEEPREC_ABI
