// The distinct ids of a list by first appearance, and a slot for each of them that its positions find.
//
// Up to 65,536 ids, by first positions, without a branch on what the ids are:
//
//   id      7 1 9 1 7      written, from the last to the first:  table[h(7)] = 4 0, [h(1)] = 3 1, [h(9)] = 2
//   first   0 1 2 1 0      read: the entry of an id holds the first position of all ids that share it
//
// A position that finds another id takes part in one more round, with another hash. Small ids are their own
// entries, and need no other round. Entries are read only after they were written, so nothing is cleared.
// Hashes are products with secret odd factors: two ids share an entry with probability 2 / entries at most,
// whatever they are (Dietzfelbinger et al. 1997).
//
// Beyond, by number_keys: it has fewer passes, and fetches ahead. There a branch on whether an id is new
// costs less than memory; where the table lies in the second-level cache it costs twice the rest.
//
// Lists have these members:
//   bytes()              of scratch that find() takes
//   find(block)          finds the distinct ids, distinct() of them
//   id(u)                the u-th; first_position(u): where it comes first
//   set_slot(u, slot)    the slot of id(u), below N; for all u, after the last id(u)
//   slot_at(k)           the slot of the id at position k; after set_slot
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/support/key_hash.hpp>
#include <deeprec/support/number_keys.hpp>
#include <deeprec/support/scratch_block.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail { inline namespace DEEPREC_UNIT {

/// The most ids of which positions fit 16 bits.
inline constexpr index_t most_short_ids = index_t{1} << 16;

/// Whether all ids are below a limit, as unsigned numbers; `largest` is then no less than the largest. Reads
/// the first few where they are not.
template <class Id>
bool all_below(std::span<const Id> ids, std::uint64_t limit, std::uint64_t& largest) noexcept {
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

/// At most 65,536 small ids: a table indexed by id holds first positions, then slots.
template <class Id>
class direct_list {
 public:
  using number_type = std::uint16_t;

  direct_list(std::span<const Id> ids, std::uint64_t largest) noexcept
      : ids_(ids.data()),
        size_(static_cast<index_t>(ids.size())),
        entries_(ids.empty() ? 0 : static_cast<index_t>(largest) + 1) {}

  [[nodiscard]] index_t bytes() const noexcept {
    return scratch_block::bytes_of<number_type>(entries_) + scratch_block::bytes_of<number_type>(size_);
  }
  void find(scratch_block& block) {
    number_type* const table = block.take<number_type>(entries_).data();
    number_type* const firsts = block.take<number_type>(size_).data();
    for (index_t k = size_; k-- > 0;) table[entry_of(ids_[k])] = static_cast<number_type>(k);
    index_t distinct = 0;
    for (index_t k = 0; k < size_; ++k) {
      firsts[distinct] = static_cast<number_type>(k);
      distinct += table[entry_of(ids_[k])] == static_cast<number_type>(k) ? 1 : 0;
    }
    table_ = table;
    firsts_ = firsts;
    distinct_ = distinct;
  }
  [[nodiscard]] index_t distinct() const noexcept { return distinct_; }
  [[nodiscard]] DEEPREC_INLINE Id id(index_t u) const noexcept { return ids_[firsts_[u]]; }
  [[nodiscard]] index_t first_position(index_t u) const noexcept { return firsts_[u]; }
  DEEPREC_INLINE void set_slot(index_t u, number_type slot) const noexcept { table_[entry_of(id(u))] = slot; }
  [[nodiscard]] DEEPREC_INLINE number_type slot_at(index_t k) const noexcept {
    return table_[entry_of(ids_[k])];
  }

 private:
  static std::uint64_t entry_of(Id id) noexcept { return static_cast<std::uint64_t>(id); }

  const Id* ids_;
  index_t size_;
  index_t entries_;
  index_t distinct_ = 0;
  number_type* table_ = nullptr;
  const number_type* firsts_ = nullptr;
};

/// At most 65,536 ids, of any value.
template <class Id>
class short_list {
 public:
  using number_type = std::uint16_t;

  explicit short_list(std::span<const Id> ids) noexcept
      : ids_(ids.data()),
        size_(static_cast<index_t>(ids.size())),
        entries_((std::min)(static_cast<index_t>(key_entries(size_)), most_short_ids)) {}

  [[nodiscard]] index_t bytes() const noexcept {
    return scratch_block::bytes_of<number_type>(entries_) + 3 * scratch_block::bytes_of<number_type>(size_);
  }
  void find(scratch_block& block) {
    number_type* const table = block.take<number_type>(entries_).data();
    number_type* const found_at = block.take<number_type>(size_).data();
    number_type* const firsts = block.take<number_type>(size_).data();
    number_type* const others = firsts;  // positions that found another id, until firsts are listed
    slot_of_ = block.take<number_type>(size_).data();
    const int shift = 64 - std::countr_zero(static_cast<std::uint64_t>(entries_));
    const key_seed& seed = process_key_seed();
    std::uint64_t factor = seed.key[1];
    // Twice the product costs less than to keep it.
    const auto entry_of = [shift](Id id, std::uint64_t by) {
      return static_cast<std::uint64_t>(id) * by >> shift;
    };
    constexpr index_t ids_ahead = 256;
    for (index_t k = size_; k-- > 0;) {
      __builtin_prefetch(ids_ + (k > ids_ahead ? k - ids_ahead : 0));
      table[entry_of(ids_[k], factor)] = static_cast<number_type>(k);
    }
    index_t left = 0;
    for (index_t k = 0; k < size_; ++k) {
      const Id id = ids_[k];
      const number_type found = table[entry_of(id, factor)];
      found_at[k] = found;
      others[left] = static_cast<number_type>(k);
      left += ids_[found] != id ? 1 : 0;
    }
    for (std::uint64_t round = 1; left > 0; ++round) {  // the first one left finds itself
      factor = mix64(seed.start + round) | 1;
      for (index_t i = left; i-- > 0;) table[entry_of(ids_[others[i]], factor)] = others[i];
      const index_t count = left;
      left = 0;
      for (index_t i = 0; i < count; ++i) {
        const number_type k = others[i];
        const number_type found = table[entry_of(ids_[k], factor)];
        found_at[k] = found;
        others[left] = k;
        left += ids_[found] != ids_[k] ? 1 : 0;
      }
    }
    distinct_ = list_firsts(found_at, firsts);
    found_at_ = found_at;
    firsts_ = firsts;
  }
  [[nodiscard]] index_t distinct() const noexcept { return distinct_; }
  [[nodiscard]] DEEPREC_INLINE Id id(index_t u) const noexcept { return ids_[firsts_[u]]; }
  [[nodiscard]] index_t first_position(index_t u) const noexcept { return firsts_[u]; }
  DEEPREC_INLINE void set_slot(index_t u, number_type slot) const noexcept { slot_of_[firsts_[u]] = slot; }
  [[nodiscard]] DEEPREC_INLINE number_type slot_at(index_t k) const noexcept {
    return slot_of_[found_at_[k]];
  }

 private:
  // The positions that are their own first ones; four are compared at once.
  index_t list_firsts(const number_type* found_at, number_type* firsts) const noexcept {
    index_t distinct = 0, k = 0;
    const auto see = [&](index_t at, bool is_first) {
      firsts[distinct] = static_cast<number_type>(at);
      distinct += is_first ? 1 : 0;
    };
    if constexpr (std::endian::native == std::endian::little) {
      for (; k + 4 <= size_; k += 4) {
        std::uint64_t four;
        std::memcpy(&four, found_at + k, sizeof(four));
        four ^= static_cast<std::uint64_t>(k) * 0x0001000100010001 + 0x0003000200010000;  // k is below 65,536
        see(k, (four & 0xffff) == 0);
        see(k + 1, (four & 0xffff0000) == 0);
        see(k + 2, (four & 0xffff00000000) == 0);
        see(k + 3, four >> 48 == 0);
      }
    }
    for (; k < size_; ++k) see(k, found_at[k] == static_cast<number_type>(k));
    return distinct;
  }

  const Id* ids_;
  index_t size_;
  index_t entries_;
  index_t distinct_ = 0;
  const number_type* found_at_ = nullptr;  // the first position with the id of a position
  const number_type* firsts_ = nullptr;
  number_type* slot_of_ = nullptr;  // of a first position
};

/// Any ids that number_keys takes.
template <class Id>
class long_list {
 public:
  using number_type = std::uint32_t;

  explicit long_list(std::span<const Id> ids) noexcept : long_list(ids, bits_of_all(ids)) {}
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
    slot_of_ = block.take<number_type>(size_).data();
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
  [[nodiscard]] DEEPREC_INLINE Id id(index_t u) const noexcept { return known_[u]; }
  [[nodiscard]] index_t first_position(index_t u) const noexcept {
    return std::find(numbers_, numbers_ + size_, static_cast<number_type>(u)) - numbers_;
  }
  DEEPREC_INLINE void set_slot(index_t u, number_type slot) const noexcept { slot_of_[u] = slot; }
  [[nodiscard]] DEEPREC_INLINE number_type slot_at(index_t k) const noexcept { return slot_of_[numbers_[k]]; }

 private:
  long_list(std::span<const Id> ids, std::uint64_t bits) noexcept
      : ids_(ids.data()),
        size_(static_cast<index_t>(ids.size())),
        direct_(size_ > 0 && bits < 4 * ids.size()),
        entries_(size_ == 0 ? 0
                 : direct_  ? static_cast<index_t>(bits) + 1
                            : static_cast<index_t>(key_entries(size_))) {}

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
  number_type* slot_of_ = nullptr;
  Id* known_ = nullptr;
};

}}}}  // namespace deeprec::DEEPREC_ABI::detail::DEEPREC_UNIT
