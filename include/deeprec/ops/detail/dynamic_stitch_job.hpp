// The checks of dynamic_stitch, and its work on several threads.
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
#include <deeprec/simd/dispatch.hpp>
#include <deeprec/simd/vectors.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/first_fault.hpp>
#include <deeprec/support/scratch_block.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Refuses data[k] and indices[k] that do not fit each other or out.
template <class Indices, class Matrix>
status stitch_operand_fits(const Indices& numbers, const Matrix& rows, index_t width) noexcept {
  if (const status s = expect_size(rows.extent(0), numbers.size(),
                                   "dynamic_stitch: data[k].extent(0) must be indices[k].size()");
      !s) {
    return s;
  }
  if (const status s =
          expect_size(rows.extent(1), width, "dynamic_stitch: data[k].extent(1) must be out.extent(1)");
      !s) {
    return s;
  }
  if (!numbers.valid()) return {errc::shape_mismatch, "dynamic_stitch: indices[k] must not be null"};
  if (rows.stride(0) < 0) {
    return {errc::shape_mismatch, "dynamic_stitch: data[k].stride(0) must not be negative"};
  }
  return rows.validate("dynamic_stitch: data[k] must not be null", row_overlap::permitted);
}

template <class Index>
status stitch_overlap(const byte_rows<const std::byte>& rows, const Index* numbers,
                      const byte_rows<const std::byte>& out) noexcept {
  if (rows.count == 0 || out.count == 0 || out.width == 0) return {};
  if (share_bytes(rows, out)) return {errc::unsupported, "dynamic_stitch: out must not overlap data[k]"};
  const byte_rows<const std::byte> list{reinterpret_cast<const std::byte*>(numbers), 1, 0,
                                        rows.count * index_t{sizeof(Index)}};
  if (share_bytes(list, out)) return {errc::unsupported, "dynamic_stitch: out must not overlap indices[k]"};
  return {};
}

template <class Index>
status stitch_fault(index_t table, index_t position, Index number) noexcept {
  return {errc::id_out_of_range,
          "dynamic_stitch: indices must be in [0, out.extent(0))",
          {.table = table, .position = position, .value = std::int64_t{number}}};
}

/// The operands one after the other: the place of row i of operand k is starts[k] + i.
struct stitch_places {
  std::span<const index_t> starts;  // one more than operands

  /// Calls f(operand, begin, end) for the rows of the places [begin, end), in their order, until f returns
  /// false.
  template <class F>
  void each(index_t begin, index_t end, const F& f) const {
    auto k =
        static_cast<std::size_t>(std::upper_bound(starts.begin(), starts.end(), begin) - starts.begin() - 1);
    while (begin < end) {
      const index_t stop = (std::min)(end, starts[k + 1]);
      if (begin < stop && !f(k, begin - starts[k], stop - starts[k])) return;
      begin = stop;
      ++k;
    }
  }
};

/// Records that the row at `place` is written to the row of `last`, unless a later one was recorded.
inline void stitch_record(std::uint64_t* last, std::uint64_t place) noexcept {
  std::uint64_t seen = __atomic_load_n(last, __ATOMIC_RELAXED);
  while (seen < place &&
         !__atomic_compare_exchange_n(last, &seen, place, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

/// The rows of all operands, and how they are shared between threads.
struct stitch_job {
  index_t rows;
  index_t grain;
  double ns;
  index_t out_rows;
  bool has_columns;
};

/// Each thread takes a piece of the rows of all operands. check(k, begin, end) refuses indices of operand k;
/// stitch(k, begin, end, last, start) copies its rows that `last`, by their places, says are written last.
template <class Context, class List, class Check, class Stitch>
DEEPREC_PER_UNIT status stitch_in_parallel(const Context& ctx, const stitch_job& job, std::span<List> indices,
                                           const Check& check, const Stitch& stitch) {
  const auto operands = static_cast<index_t>(indices.size());
  scratch_block scratch(ctx.memory, capped_sum(scratch_block::bytes_of<index_t>(operands + 1),
                                               scratch_block::bytes_of<std::uint64_t>(job.out_rows)));
  const std::span<index_t> starts = scratch.take<index_t>(operands + 1);
  const std::span<std::uint64_t> last = scratch.take<std::uint64_t>(job.out_rows);
  starts[0] = 0;
  for (std::size_t k = 0; k < indices.size(); ++k) starts[k + 1] = capped_sum(starts[k], indices[k].size());
  const stitch_places places{starts};
  constexpr index_t check_grain = index_t{1} << 15;
  run_bulk(ctx, {job.out_rows, check_grain, ns_of_bytes(*ctx.tuning, 8 * job.out_rows)},
           [&](index_t begin, index_t end, int) {
             for (index_t b = begin; b < end; ++b) last[static_cast<std::size_t>(b)] = 0;
           });
  const auto check_places = [&](index_t begin, index_t end) {
    status found;
    places.each(begin, end, [&](std::size_t k, index_t first, index_t stop) {
      found = check(k, first, stop);
      if (!found) return false;
      const auto* const numbers = indices[k].data();
      const auto place = static_cast<std::uint64_t>(starts[k]) + 1;
      for (index_t i = first; i < stop; ++i) {
        stitch_record(&last[static_cast<std::size_t>(numbers[i])], place + static_cast<std::uint64_t>(i));
      }
      return true;
    });
    return found;
  };
  const double check_ns = 3.0 * static_cast<double>(job.rows);
  if (const status s = first_fault(ctx, {job.rows, check_grain, check_ns}, check_places); !s) return s;
  if (!job.has_columns) return {};
  run_bulk(ctx, {job.rows, job.grain, job.ns}, [&](index_t begin, index_t end, int) {
    places.each(begin, end, [&](std::size_t k, index_t first, index_t stop) {
      stitch(k, first, stop, last.data(), starts[k]);
      return true;
    });
  });
  return {};
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
