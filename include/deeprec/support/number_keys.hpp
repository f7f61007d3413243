// Numbers keys 0, 1, 2 ... in the order of their first appearance, with a hash table of numbers only.
//
//   key      x y x z y           hash of x ──> [ . 1 . 3 2 . . . ]   number + 1, 0: free; linear probing
//   number   0 1 0 2 1
//
// The table has 2 to 4 times as many entries as there are keys. Where it does not fit the second-level cache,
// entries are prefetched, and then the keys that they refer to. Small ids are their own entries.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <span>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail { inline namespace DEEPREC_UNIT {

/// The most keys that the table's numbers can count.
inline constexpr index_t most_keys = index_t{(std::numeric_limits<std::uint32_t>::max)()} - 1;

/// The entries of a table for n keys, n >= 0, 64 at least; all are 0 at first.
inline std::size_t key_entries(index_t n) noexcept {
  const auto most = static_cast<std::uint64_t>(2 * (std::max)(n, index_t{1}) - 1);
  return std::size_t{1} << (std::max)(6, static_cast<int>(std::bit_width(most)));
}

/// Keys has these members:
///   hash(k)          64 bits, of which the upper are used; with secret seeds (key_hash.hpp)
///   same(k, number)  true when key k is the key with that number
///   add(k)           called when key k is new: it gets the next number
///   again(number)    called when the key with that number comes again
///   fetch(number)    prefetches the key with that number, which is compared soon
/// Cost: O(n) expected; no allocation. table: key_entries(n) zeros, 16 bytes a key at most.
template <class Keys, class Index>
void number_keys(std::span<std::uint32_t> table, index_t n, Keys& keys, Index* numbers) {
  constexpr index_t entries_ahead = 32;
  constexpr index_t keys_ahead = 16;
  const int shift = 64 - std::countr_zero(table.size());
  const std::size_t mask = table.size() - 1;
  std::uint32_t* const entries = table.data();
  const bool fetches = table.size() * sizeof(std::uint32_t) > std::size_t{1} << 18;
  std::uint32_t known = 0;
  for (index_t k = 0; k < n; ++k) {
    if (fetches) {
      if (k + entries_ahead < n) __builtin_prefetch(entries + (keys.hash(k + entries_ahead) >> shift));
      if (k + keys_ahead < n) {
        const std::uint32_t next = entries[keys.hash(k + keys_ahead) >> shift];
        if (next != 0) keys.fetch(next - 1);
      }
    }
    for (std::size_t entry = keys.hash(k) >> shift;; entry = (entry + 1) & mask) {
      const std::uint32_t seen = entries[entry];
      if (seen == 0) {
        numbers[k] = static_cast<Index>(known);
        entries[entry] = ++known;
        keys.add(k);
        break;
      }
      if (keys.same(k, seen - 1)) {
        numbers[k] = static_cast<Index>(seen - 1);
        keys.again(seen - 1);
        break;
      }
    }
  }
}

/// Small ids need no hash: a table indexed by id holds their numbers.
template <class Id, class Index, class Keys>
void number_small_ids(std::span<std::uint32_t> table, std::span<const Id> ids, Keys& keys, Index* inverse) {
  std::uint32_t* const numbers = table.data();
  std::uint32_t known = 0;
  for (std::size_t k = 0; k < ids.size(); ++k) {
    std::uint32_t& seen = numbers[static_cast<std::size_t>(ids[k])];
    if (seen == 0) {
      inverse[k] = static_cast<Index>(known);
      seen = ++known;
      keys.add(static_cast<index_t>(k));
    } else {
      inverse[k] = static_cast<Index>(seen - 1);
      keys.again(seen - 1);
    }
  }
}

/// The bitwise or of all ids: no id is larger, as an unsigned number.
template <class Id>
std::uint64_t bits_of_all(std::span<const Id> ids) noexcept {
  std::uint64_t all = 0;
  for (const Id id : ids) all |= static_cast<std::uint64_t>(id);
  return all;
}

}}}}  // namespace deeprec::DEEPREC_ABI::detail::DEEPREC_UNIT
