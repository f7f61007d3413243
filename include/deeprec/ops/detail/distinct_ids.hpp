// The distinct ids of a list by first appearance, and which of them each position has.
//
// Up to 65,536 ids, by first positions, without a branch on what the ids are:
//
//   id        7 1 9 1 7      written, from the last to the first:  table[h(7)] = 4 0, [h(1)] = 3 1, [h(9)] = 2
//   number    0 1 2 1 0      read: the entry of an id holds the first position of all ids that share it
//
// A position that finds another id takes part in one more round, with another hash. Small ids are their own
// entries, and need no other round. Entries are read only after they were written, so nothing is cleared.
// Hashes are products with secret odd factors: two ids share an entry with probability 2 / entries at most,
// whatever they are (Dietzfelbinger et al. 1997).
//
// Beyond, by number_keys: it has fewer passes, and fetches ahead. There a branch on whether an id is new costs
// less than memory; where the table lies in the second-level cache it costs twice the rest.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/support/key_hash.hpp>
#include <deeprec/support/number_keys.hpp>
#include <deeprec/support/scratch_block.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail { inline namespace DEEPREC_UNIT {

/// Distinct ids where positions fit 16 bits. The number of an id is its first position.
template <class Id>
class short_list {
 public:
  using number_type = std::uint16_t;
  static constexpr index_t most = index_t{1} << 16;

  /// Reads the ids once where they are small.
  explicit short_list(std::span<const Id> ids) noexcept
      : ids_(ids.data()), size_(static_cast<index_t>(ids.size())) {
    std::uint64_t largest = 0;
    direct_ = all_below(ids, 8 * ids.size(), largest);
    if (size_ == 0) return;
    entries_ = direct_ ? static_cast<index_t>(largest) + 1
                       : (std::min)(static_cast<index_t>(key_entries(size_)), most);  // entries are stored too
  }
  /// Bytes of scratch that find() takes.
  [[nodiscard]] index_t bytes() const noexcept {
    return scratch_block::bytes_of<number_type>(entries_) +
           3 * scratch_block::bytes_of<number_type>(size_);
  }
  void find(scratch_block& block) {
    number_type* const table = block.take<number_type>(entries_).data();
    numbers_ = block.take<number_type>(size_).data();
    firsts_ = block.take<number_type>(size_).data();
    spare_ = block.take<number_type>(size_).data();
    direct_ ? find_direct(table) : find_by_hash(table);
  }

  /// Number of distinct ids.
  [[nodiscard]] index_t distinct() const noexcept { return distinct_; }
  /// (N): the number of the id at each position.
  [[nodiscard]] const number_type* numbers() const noexcept { return numbers_; }
  /// The number of the u-th distinct id; numbers are below N.
  [[nodiscard]] DEEPREC_INLINE index_t number(index_t u) const noexcept { return firsts_[u]; }
  [[nodiscard]] DEEPREC_INLINE Id id(index_t u) const noexcept { return ids_[firsts_[u]]; }
  [[nodiscard]] index_t first_position(index_t u) const noexcept { return firsts_[u]; }
  /// (N) numbers that are free after find().
  [[nodiscard]] number_type* spare() const noexcept { return spare_; }

 private:
  // Whether all ids are below a limit, as unsigned numbers; `largest` is then no less than the largest.
  static bool all_below(std::span<const Id> ids, std::uint64_t limit, std::uint64_t& largest) noexcept {
    constexpr std::size_t at_once = 256;
    std::uint64_t all[4] = {};
    for (std::size_t k = 0; k < ids.size();) {
      const std::size_t end = (std::min)(ids.size(), k + at_once);
      for (; k + 4 <= end; k += 4) {
        for (std::size_t i = 0; i < 4; ++i) all[i] |= static_cast<std::uint64_t>(ids[k + i]);
      }
      for (; k < end; ++k) all[0] |= static_cast<std::uint64_t>(ids[k]);
      largest = all[0] | all[1] | all[2] | all[3];
      if (largest >= limit) return false;
    }
    return true;
  }

  void find_direct(number_type* table) noexcept {
    for (index_t k = size_; k-- > 0;) {
      table[static_cast<std::uint64_t>(ids_[k])] = static_cast<number_type>(k);
    }
    index_t distinct = 0;
    for (index_t k = 0; k < size_; ++k) {
      const number_type found = table[static_cast<std::uint64_t>(ids_[k])];
      numbers_[k] = found;
      firsts_[distinct] = static_cast<number_type>(k);
      distinct += found == static_cast<number_type>(k) ? 1 : 0;
    }
    distinct_ = distinct;
  }

  void find_by_hash(number_type* table) noexcept {
    number_type* const entry_of = spare_;
    number_type* const others = firsts_;  // positions that found another id, until firsts are listed
    const int shift = 64 - std::countr_zero(static_cast<std::uint64_t>(entries_));
    const key_seed& seed = process_key_seed();
    std::uint64_t factor = seed.key[1];
    for (index_t k = size_; k-- > 0;) {
      const auto entry = static_cast<number_type>(static_cast<std::uint64_t>(ids_[k]) * factor >> shift);
      entry_of[k] = entry;
      table[entry] = static_cast<number_type>(k);
    }
    index_t left = 0;
    for (index_t k = 0; k < size_; ++k) {
      const number_type found = table[entry_of[k]];
      numbers_[k] = found;
      others[left] = static_cast<number_type>(k);
      left += ids_[found] != ids_[k] ? 1 : 0;
    }
    for (std::uint64_t round = 1; left > 0; ++round) {  // the first one left finds itself
      factor = mix64(seed.start + round) | 1;
      for (index_t i = left; i-- > 0;) {
        const auto entry =
            static_cast<number_type>(static_cast<std::uint64_t>(ids_[others[i]]) * factor >> shift);
        entry_of[i] = entry;
        table[entry] = others[i];
      }
      const index_t count = left;
      left = 0;
      for (index_t i = 0; i < count; ++i) {
        const number_type k = others[i], found = table[entry_of[i]];
        numbers_[k] = found;
        others[left] = k;
        left += ids_[found] != ids_[k] ? 1 : 0;
      }
    }
    index_t distinct = 0;
    for (index_t k = 0; k < size_; ++k) {
      firsts_[distinct] = static_cast<number_type>(k);
      distinct += numbers_[k] == static_cast<number_type>(k) ? 1 : 0;
    }
    distinct_ = distinct;
  }

  const Id* ids_;
  index_t size_;
  index_t entries_ = 0;
  index_t distinct_ = 0;
  bool direct_ = false;  // ids are their own entries
  number_type* numbers_ = nullptr;
  number_type* firsts_ = nullptr;
  number_type* spare_ = nullptr;
};

/// Distinct ids of any list that number_keys takes. Their numbers are 0, 1, 2 ...
template <class Id>
class long_list {
 public:
  using number_type = std::uint32_t;

  explicit long_list(std::span<const Id> ids) noexcept
      : ids_(ids.data()),
        size_(static_cast<index_t>(ids.size())),
        direct_(size_ > 0 && bits_of_all(ids) < 4 * ids.size()),
        entries_(size_ == 0 ? 0
                 : direct_  ? static_cast<index_t>(bits_of_all(ids)) + 1
                            : static_cast<index_t>(key_entries(size_))) {}
  [[nodiscard]] index_t bytes() const noexcept {
    const index_t numbers = scratch_block::bytes_of<number_type>(size_);
    index_t bytes = scratch_block::bytes_of<number_type>(entries_);
    for (const index_t part : {numbers, numbers, scratch_block::bytes_of<Id>(size_)}) {
      bytes = capped_sum(bytes, part);
    }
    return bytes;
  }
  void find(scratch_block& block) {
    const std::span<number_type> table = block.take<number_type>(entries_);
    numbers_ = block.take<number_type>(size_).data();
    spare_ = block.take<number_type>(size_).data();
    known_ = block.take<Id>(size_).data();
    std::fill(table.begin(), table.end(), number_type{0});
    keys each{ids_, known_, process_key_seed()};
    if (direct_) {
      number_small_ids(table, std::span(ids_, static_cast<std::size_t>(size_)), each, numbers_);
    } else if (size_ > 0) {
      number_keys(table, size_, each, numbers_);
    }
    distinct_ = each.size;
  }

  [[nodiscard]] index_t distinct() const noexcept { return distinct_; }
  [[nodiscard]] const number_type* numbers() const noexcept { return numbers_; }
  [[nodiscard]] DEEPREC_INLINE index_t number(index_t u) const noexcept { return u; }
  [[nodiscard]] DEEPREC_INLINE Id id(index_t u) const noexcept { return known_[u]; }
  [[nodiscard]] index_t first_position(index_t u) const noexcept {
    return std::find(numbers_, numbers_ + size_, static_cast<number_type>(u)) - numbers_;
  }
  [[nodiscard]] number_type* spare() const noexcept { return spare_; }

 private:
  struct keys {
    const Id* ids;
    Id* known;
    key_seed seed;
    index_t size = 0;

    [[nodiscard]] std::uint64_t hash(index_t k) const {
      return id_hash(seed, static_cast<std::uint64_t>(ids[k]));
    }
    [[nodiscard]] bool same(index_t k, std::uint32_t number) const { return known[number] == ids[k]; }
    void fetch(std::uint32_t number) const { __builtin_prefetch(known + number); }
    void again(std::uint32_t) const {}
    void add(index_t k) { known[size++] = ids[k]; }
  };

  const Id* ids_;
  index_t size_;
  bool direct_;  // a table indexed by id
  index_t entries_;
  index_t distinct_ = 0;
  number_type* numbers_ = nullptr;
  number_type* spare_ = nullptr;
  Id* known_ = nullptr;
};

}}}}  // namespace deeprec::DEEPREC_ABI::detail::DEEPREC_UNIT
