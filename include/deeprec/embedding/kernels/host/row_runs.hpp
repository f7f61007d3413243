// Rows of consecutive positions, as the lookup kernels read them: in place, by the numbers that are stored,
// or from a window of addresses.
//
//   begin ........ ready ........ end      the run is read up to `ready`; the rows from there to `end`, which
//                                          are `ahead` more, are only prefetched
//
// Compiled once for all regions and elements.
#pragma once

#include <cstddef>
#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The row of a number. By integers: the base of addresses is null.
DEEPREC_INLINE const std::byte* row_of_number(std::uintptr_t base, index_t stride, std::int64_t number) {
  return reinterpret_cast<const std::byte*>(base + static_cast<std::uintptr_t>(number) *
                                                       static_cast<std::uintptr_t>(stride));
}

/// Numbers of 64 bits whose rows lie at base + number * stride.
struct stored_numbers {
  const char* numbers;  // null: none
  std::uintptr_t base;
  index_t stride;
  std::uint64_t least;  // numbers are valid in [least, least + count)
  std::uint64_t count;
  std::int64_t padding;
  const float* pruned_by;

  DEEPREC_INLINE const std::byte* row(index_t k) const {
    std::int64_t number;  // memcpy, since numbers may be of another type of this size
    __builtin_memcpy(&number, numbers + 8 * k, 8);
    return row_of_number(base, stride, number);
  }
  [[nodiscard]] DEEPREC_INLINE bool in_range(index_t k) const {
    std::uint64_t number;
    __builtin_memcpy(&number, numbers + 8 * k, 8);
    return number - least < count;
  }
  /// Whether the id counts as absent, where ids are filtered.
  [[nodiscard]] DEEPREC_INLINE bool absent(index_t k) const {
    std::int64_t number;
    __builtin_memcpy(&number, numbers + 8 * k, 8);
    return !in_range(k) || number == padding || (pruned_by != nullptr && !(pruned_by[k] > 0.0F));
  }
  /// Rows by their addresses; 0: the id is absent.
  static DEEPREC_INLINE stored_numbers addresses(const std::uint64_t* of) {
    return {static_cast<const char*>(static_cast<const void*>(of)), 0, 1, 1, ~std::uint64_t{0}, -1, nullptr};
  }
};

/// Rows that are folded or copied one after another.
struct located_run {
  stored_numbers rows;
  const float* factors;  // null: all 1
  index_t count;
  index_t fetched;  // the first so many rows have one to prefetch, `ahead` later
  index_t ahead;
  bool filters;  // rows may be absent

  [[nodiscard]] DEEPREC_INLINE bool absent(index_t k) const { return filters && rows.absent(k); }
  [[nodiscard]] DEEPREC_INLINE float factor(index_t k) const {
    return factors == nullptr ? 1.0F : factors[k];
  }
};

/// The positions of a run that moves over a batch, and room for the addresses of their rows.
struct row_window {
  static constexpr index_t room = 256;
  static constexpr index_t most_ahead = room / 2;
  static constexpr index_t most_located = room / 8;  // ahead, of rows that are filtered or clipped

  index_t ahead;  // prefetch distance in rows; 0: none is prefetched
  index_t stop;   // no position from here on is read
  index_t begin;
  index_t ready;
  index_t end;                   // of the positions that are read
  bool skips;                    // rows that are absent are left out
  std::int32_t index[room + 1];  // then the number of present rows before each position, and before `end`
  std::uint64_t located[room];   // addresses of rows; 0: absent
  float scaled[room];            // their factors, where they are not the batch's

  /// Before the positions [from, to) of a batch that ends at last.
  DEEPREC_INLINE void open(index_t rows_ahead, index_t from, index_t to, index_t last) {
    ahead = rows_ahead;
    stop = to + ahead < last ? to + ahead : last;
    begin = ready = end = from;
    skips = false;
  }
  /// The next positions, from a position on.
  DEEPREC_INLINE void move_to(index_t position) {
    begin = position;
    end = stop - position < room ? stop : position + room;
    ready = end == stop ? stop : end - ahead;
  }
  /// The row of a position from begin to ready, by its number in the run.
  [[nodiscard]] DEEPREC_INLINE index_t row_at(index_t position) const {
    return skips ? index_t{index[position - begin]} : position - begin;
  }
  /// The run of `count` rows.
  [[nodiscard]] DEEPREC_INLINE located_run run(const stored_numbers& rows, index_t count,
                                               const float* factors, bool filters) const {
    return {rows, factors, count, ahead == 0 ? 0 : count - ahead, ahead, filters};
  }
};

// Loops that compilers may vectorise have the compiler flags of their unit in their names, as kernels do.
inline namespace DEEPREC_UNIT {

/// True when one of the rows [begin, end) is absent.
DEEPREC_APART inline bool any_absent_from(const stored_numbers& rows, index_t begin, index_t end) {
  bool any = false;
  for (index_t k = begin; k < end; ++k) any |= rows.absent(k);
  return any;
}

/// Writes the addresses of a window's rows. weights: of the batch; null: all 1.
template <class Rows>
DEEPREC_APART located_run locate_rows(const Rows& rows, const float* weights, bool filters,
                                      row_window& window) {
  const Rows row_of = rows;  // no store changes it
  const index_t begin = window.begin, count = window.end - begin;
  std::uint64_t* const to = window.located;
  const float* factors = weights == nullptr ? nullptr : weights + begin;
  index_t present = count;
  if (window.skips) {
    std::int32_t before = 0;
    row_of.for_each(begin, count, [&](index_t k, const std::byte* row, bool absent) {
      to[before] = reinterpret_cast<std::uintptr_t>(row);
      if (factors != nullptr) window.scaled[before] = factors[k];
      window.index[k] = before;
      before += absent ? 0 : 1;
    });
    window.index[count] = before;
    present = before;
    if (factors != nullptr) factors = window.scaled;
  } else {
    row_of.for_each(begin, count, [to, filters](index_t k, const std::byte* row, bool absent) {
      to[k] = filters && absent ? 0 : reinterpret_cast<std::uintptr_t>(row);
    });
  }
  return window.run(stored_numbers::addresses(to), present, factors, filters && !window.skips);
}

}  // namespace DEEPREC_UNIT

}}}  // namespace deeprec::DEEPREC_ABI::detail
