// The positions of a batch grouped by row, so that a backward pass touches every row once.
//
//   ids      7 1 9 1 7        groups    (1: positions 1 3) (7: positions 0 4) (9: position 2)
//
// Stable: the positions of a row stay in order, so sums over them are reproducible. A radix sort of keys
// row * 2^position_bits + position, over the row bits; its pieces depend on the number of positions only.
//
// Where the order of groups is free, rows that are used once are not sorted: a filter of two bits an entry,
// seen and seen again, finds them in two passes. They come first, in the order of their positions.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/scratch_block.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail { inline namespace DEEPREC_UNIT {

/// The order of groups: of their rows, or whatever is found sooner (with the same groups).
enum class group_order : unsigned char { ascending, any };

/// Groups as kernels read them.
struct group_keys {
  const std::uint64_t* keys;
  const index_t* starts;  // group g holds the sorted indices [starts[g], starts[g + 1])
  int position_bits;

  [[nodiscard]] DEEPREC_INLINE index_t row(index_t group) const noexcept {
    return static_cast<index_t>(keys[starts[group]] >> position_bits);
  }
  [[nodiscard]] DEEPREC_INLINE index_t position(index_t sorted_index) const noexcept {
    return static_cast<index_t>(keys[sorted_index] & ((std::uint64_t{1} << position_bits) - 1));
  }
  [[nodiscard]] DEEPREC_INLINE index_t first_position(index_t group) const noexcept {
    return position(starts[group]);
  }
};

class row_groups {
 public:
  static index_t bytes_for(index_t positions) noexcept {
    const index_t keys = scratch_block::bytes_of<std::uint64_t>(positions);
    const index_t starts = scratch_block::bytes_of<index_t>(capped_sum(positions, 1));
    return capped_sum(capped_sum(keys, keys),
                      capped_sum(starts, scratch_block::bytes_of<index_t>(counts_for(positions))));
  }

  /// True when a row and a position fit one 64-bit key.
  [[nodiscard]] static bool fits(index_t positions, index_t rows) noexcept {
    return bits_for(positions) + bits_for(rows) <= 64;
  }

  /// Called before add(), with the largest total number of positions. Takes bytes_for(positions) of the
  /// block.
  void reserve(scratch_block& block, index_t positions) {
    position_bits_ = bits_for(positions);
    keys_ = block.take<std::uint64_t>(positions);
    spare_ = block.take<std::uint64_t>(positions);
    counts_ = block.take<index_t>(counts_for(positions));
    starts_ = block.take<index_t>(capped_sum(positions, 1));
  }

  /// Adds the positions [first, first + positions), which follow those added before: position first + k is of
  /// row row_of(k), or left out where that is negative.
  template <class Context, class RowOf>
  void add(const Context& ctx, index_t first, index_t positions, const RowOf& row_of) {
    std::uint64_t* const end_of_keys = keys_.data() + size();
    const int bits = position_bits_;
    const auto key_of = [bits, first](index_t k, index_t row) {
      return static_cast<std::uint64_t>(row) << bits | static_cast<std::uint64_t>(first + k);
    };
    piece_ = piece_of(positions);
    if (positions <= piece_ || !is_shared(ctx, ns_of_pass(positions))) {
      index_t count = 0;
      for (index_t k = 0; k < positions; ++k) {  // without a branch on which it is
        const index_t row = row_of(k);
        end_of_keys[count] = key_of(k, row);
        count += row >= 0 ? 1 : 0;
      }
      size_ += count;
      return;
    }
    const index_t pieces = (positions + piece_ - 1) / piece_;
    in_pieces(ctx, positions, [&](index_t p, index_t begin, index_t end) {
      index_t count = 0;
      for (index_t k = begin; k < end; ++k) count += row_of(k) >= 0 ? 1 : 0;
      counts_[static_cast<std::size_t>(p)] = count;
    });
    size_ += place_pieces(pieces);
    in_pieces(ctx, positions, [&](index_t p, index_t begin, index_t end) {
      std::uint64_t* to = end_of_keys + counts_[static_cast<std::size_t>(p)];
      for (index_t k = begin; k < end; ++k) {
        if (const index_t row = row_of(k); row >= 0) *to++ = key_of(k, row);
      }
    });
  }
  /// The same, where no position is left out.
  template <class Context, class RowOf>
  void add_all(const Context& ctx, index_t first, index_t positions, const RowOf& row_of) {
    std::uint64_t* const to = keys_.data() + size();
    const int bits = position_bits_;
    run_bulk(ctx, {positions, piece_of(positions), ns_of_pass(positions)},
             [&row_of, to, bits, first](index_t begin, index_t end, int) {
               const RowOf row_at = row_of;
               for (index_t k = begin; k < end; ++k) {
                 to[k] =
                     static_cast<std::uint64_t>(row_at(k)) << bits | static_cast<std::uint64_t>(first + k);
               }
             });
    size_ += positions;
  }

  /// Adds positions that the caller numbers: fill(keys, position_bits) writes row << position_bits | number
  /// for numbers that ascend, and returns how many. It may write one key more.
  template <class Fill>
  index_t add_numbered(const Fill& fill) {
    const index_t count = fill(keys_.data() + size(), position_bits_);
    size_ += count;
    return count;
  }

  /// Groups the added positions by rows in [0, rows).
  /// Cost: O(N) for every 11 bits of `rows`; in any order, O(N) for rows that are used once.
  template <class Context>
  void group(const Context& ctx, index_t rows, group_order order) {
    piece_ = piece_of(size());
    singles_ = order == group_order::any ? set_singles_apart(ctx) : 0;
    sort(ctx, rows);
    find_starts(ctx);
  }

  /// Number of different rows.
  [[nodiscard]] index_t groups() const noexcept { return static_cast<index_t>(starts_.size()) - 1; }
  /// Number of positions in groups.
  [[nodiscard]] index_t size() const noexcept { return size_; }
  /// The groups before this one have one position each.
  [[nodiscard]] index_t first_repeated() const noexcept { return singles_; }
  /// Group g holds the sorted indices [starts()[g], starts()[g + 1]).
  [[nodiscard]] const index_t* starts() const noexcept { return starts_.data(); }
  [[nodiscard]] group_keys keys() const noexcept { return {keys_.data(), starts_.data(), position_bits_}; }
  [[nodiscard]] index_t row(index_t group) const noexcept { return keys().row(group); }
  [[nodiscard]] index_t position(index_t sorted_index) const noexcept {
    return keys().position(sorted_index);
  }

 private:
  static constexpr index_t most_pieces = 64;
  static constexpr index_t few = 4096;  // positions; for fewer, a pass sorts 8 bits of a row instead of 11

  static index_t piece_of(index_t positions) noexcept {
    return (std::max)(index_t{1} << 14, (positions + most_pieces - 1) / most_pieces);
  }

  // Upper bound of the counts of all pieces of this number of positions.
  static index_t counts_for(index_t positions) noexcept {
    const index_t pieces = (std::min)(most_pieces, positions / (index_t{1} << 14) + 1);
    return pieces * (positions < few ? index_t{1} << 8 : index_t{1} << 11);
  }

  static int bits_for(index_t largest) noexcept {
    return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(largest > 0 ? largest : 0)));
  }

  // The time of a pass over n keys, about.
  static double ns_of_pass(index_t n) noexcept { return 2.0 * static_cast<double>(n); }

  // Calls f(piece, begin, end) for the pieces of [0, n), in parallel.
  template <class Context, class F>
  void in_pieces(const Context& ctx, index_t n, const F& f) const {
    const index_t pieces = (n + piece_ - 1) / piece_;
    run_bulk(ctx, {pieces, 1, ns_of_pass(n)}, [&](index_t first, index_t last, int) {
      for (index_t p = first; p < last; ++p) f(p, p * piece_, (std::min)(n, (p + 1) * piece_));
    });
  }
  // Turns the count of each piece into its first output index; returns the total.
  index_t place_pieces(index_t pieces) {
    index_t total = 0;
    for (index_t p = 0; p < pieces; ++p) {
      total += std::exchange(counts_[static_cast<std::size_t>(p)], total);
    }
    return total;
  }

  // Sorts the keys behind the singles by row.
  template <class Context>
  void sort(const Context& ctx, index_t rows) {
    const auto first = static_cast<std::size_t>(singles_);
    std::span<std::uint64_t> from = keys_.subspan(first, static_cast<std::size_t>(size() - singles_));
    std::span<std::uint64_t> to = spare_.subspan(first, from.size());
    const int row_bits = from.empty() ? 0 : bits_for(rows - 1);
    const int widest = static_cast<index_t>(from.size()) < few ? 8 : 11;
    const int passes = (row_bits + widest - 1) / widest;
    for (int pass = 0, done = 0; pass < passes; ++pass) {
      const int bits = (row_bits - done + passes - pass - 1) / (passes - pass);
      sort_pass(ctx, from, to, position_bits_ + done, bits);
      std::swap(from, to);
      done += bits;
    }
    if (passes % 2 == 0) return;
    if (singles_ == 0) {
      std::swap(keys_, spare_);
    } else {
      std::copy(from.begin(), from.end(), to.begin());
    }
  }

  template <class Context>
  void sort_pass(const Context& ctx, std::span<const std::uint64_t> from, std::span<std::uint64_t> to,
                 int shift, int bits) {
    const auto digits = std::size_t{1} << bits;
    const auto size = static_cast<index_t>(from.size());
    piece_ = piece_of(size);
    const index_t pieces = (size + piece_ - 1) / piece_;
    std::fill_n(counts_.data(), static_cast<std::size_t>(pieces) * digits, index_t{0});
    in_pieces(ctx, size, [&](index_t p, index_t begin, index_t end) {
      index_t* const count = counts_.data() + static_cast<std::size_t>(p) * digits;
      for (index_t i = begin; i < end; ++i) {
        ++count[from[static_cast<std::size_t>(i)] >> shift & (digits - 1)];
      }
    });
    index_t total = 0;
    for (std::size_t d = 0; d < digits; ++d) {
      for (index_t p = 0; p < pieces; ++p) {
        total += std::exchange(counts_[static_cast<std::size_t>(p) * digits + d], total);
      }
    }
    in_pieces(ctx, size, [&](index_t p, index_t begin, index_t end) {
      index_t* const next = counts_.data() + static_cast<std::size_t>(p) * digits;
      for (index_t i = begin; i < end; ++i) {
        const std::uint64_t key = from[static_cast<std::size_t>(i)];
        to[static_cast<std::size_t>(next[key >> shift & (digits - 1)]++)] = key;
      }
    });
  }

  // The entry of a row in the filter: its word, and its bit for "seen"; that for "again" is 32 higher.
  struct filter_entry {
    std::size_t word;
    int seen;
  };
  [[nodiscard]] DEEPREC_INLINE filter_entry entry_of(std::uint64_t key, int word_bits) const noexcept {
    const std::uint64_t mixed = (key >> position_bits_) * 0x9e3779b97f4a7c15U;
    return {static_cast<std::size_t>(mixed >> (64 - word_bits)),
            static_cast<int>(mixed >> (59 - word_bits) & 31)};
  }

  // Puts the keys whose row has an entry of the filter for itself before the others; returns their number.
  // Both keep their order. Without a branch on which it is: no predictor learns it.
  template <class Context>
  index_t set_singles_apart(const Context& ctx) {
    const index_t count = size();
    if (count < 2) return count;
    // The filter takes the place of the starts, which are not yet known.
    auto* const filter = static_cast<std::uint64_t*>(static_cast<void*>(starts_.data()));
    const int word_bits = std::bit_width(static_cast<std::uint64_t>(count)) - 1;
    std::fill_n(filter, std::size_t{1} << word_bits, std::uint64_t{0});
    const std::uint64_t* const from = keys_.data();
    std::uint64_t* const to = spare_.data();
    const auto is_single = [this, filter, word_bits](std::uint64_t key) {  // 1 or 0
      const filter_entry at = entry_of(key, word_bits);
      return static_cast<index_t>(~filter[at.word] >> (32 + at.seen) & 1);
    };
    index_t singles = 0;
    if (count <= piece_ || !is_shared(ctx, ns_of_pass(count))) {
      for (index_t i = 0; i < count; ++i) {
        const filter_entry at = entry_of(from[i], word_bits);
        const std::uint64_t seen = std::uint64_t{1} << at.seen;
        filter[at.word] |= (filter[at.word] & seen) << 32 | seen;
      }
      std::uint64_t* const last = to + count - 1;
      for (index_t i = 0; i < count; ++i) {
        const std::uint64_t key = from[i];
        to[singles] = key;
        last[singles - i] = key;
        singles += is_single(key);
      }
      std::reverse(to + singles, to + count);
    } else {
      in_pieces(ctx, count, [&](index_t, index_t begin, index_t end) {
        for (index_t i = begin; i < end; ++i) {
          const filter_entry at = entry_of(from[i], word_bits);
          const std::uint64_t seen = std::uint64_t{1} << at.seen;
          const std::atomic_ref word(filter[at.word]);
          if ((word.fetch_or(seen, std::memory_order_relaxed) & seen) != 0) {
            word.fetch_or(seen << 32, std::memory_order_relaxed);
          }
        }
      });
      in_pieces(ctx, count, [&](index_t p, index_t begin, index_t end) {
        index_t here = 0;
        for (index_t i = begin; i < end; ++i) here += is_single(from[i]);
        counts_[static_cast<std::size_t>(p)] = here;
      });
      singles = place_pieces((count + piece_ - 1) / piece_);
      in_pieces(ctx, count, [&](index_t p, index_t begin, index_t end) {
        index_t next = counts_[static_cast<std::size_t>(p)];  // where the next single goes
        for (index_t i = begin; i < end; ++i) {
          const index_t single = is_single(from[i]);
          const index_t other = singles + i - next;
          to[other + (next - other) * single] = from[i];
          next += single;
        }
      });
    }
    std::swap(keys_, spare_);
    return singles;
  }

  template <class Context>
  void find_starts(const Context& ctx) {
    const std::uint64_t* const keys = keys_.data();
    const int bits = position_bits_;
    const index_t singles = singles_, count = size();
    const auto begins = [keys, bits](index_t i) {
      return i == 0 || keys[i] >> bits != keys[i - 1] >> bits ? index_t{1} : index_t{0};
    };
    piece_ = piece_of(count);
    index_t groups = 0;
    if (count <= piece_ || !is_shared(ctx, ns_of_pass(count))) {
      index_t* const starts = starts_.data();
      std::iota(starts, starts + singles, index_t{0});
      groups = singles;
      for (index_t i = singles; i < count; ++i) {  // without a branch on what the next key is
        starts[groups] = i;
        groups += begins(i);
      }
    } else {
      in_pieces(ctx, count, [&](index_t p, index_t begin, index_t end) {
        index_t here = 0;
        for (index_t i = begin; i < end; ++i) here += begins(i);
        counts_[static_cast<std::size_t>(p)] = here;
      });
      groups = place_pieces((count + piece_ - 1) / piece_);
      in_pieces(ctx, count, [&](index_t p, index_t begin, index_t end) {
        index_t* to = starts_.data() + counts_[static_cast<std::size_t>(p)];
        for (index_t i = begin; i < end; ++i) {
          if (begins(i) != 0) *to++ = i;
        }
      });
    }
    starts_ = starts_.first(static_cast<std::size_t>(groups) + 1);
    starts_.back() = size();
  }

  std::span<std::uint64_t> keys_;
  std::span<std::uint64_t> spare_;
  std::span<index_t> starts_;
  std::span<index_t> counts_;
  index_t size_ = 0;
  index_t singles_ = 0;
  index_t piece_ = 1;
  int position_bits_ = 0;
};

}}}}  // namespace deeprec::DEEPREC_ABI::detail::DEEPREC_UNIT
