// Keys numbered 0, 1, 2 ... in the order of their first appearance, by one hash table that holds numbers only.
//
//   key      x y x z y           hash of x ──> [ . 1 . 3 2 . . . ]   number + 1, 0: free; linear probing
//   number   0 1 0 2 1
//
// The table is 2 to 4 times as large as there are keys. Where it does not fit the second-level cache, positions
// are fetched ahead, and then the keys that they name.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <span>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {
inline namespace DEEPREC_UNIT {

/// As many keys as fit the table's numbers.
inline constexpr index_t most_keys = index_t{(std::numeric_limits<std::uint32_t>::max)()} - 1;

/// The positions of a table for n keys; it begins as zeros.
inline std::size_t key_positions(index_t n) noexcept {
  return std::size_t{1} << (std::max)(6, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(2 * n - 1))));
}

/// Keys are asked by these members:
///   hash(k)          64 bits, the upper ones used; by numbers that nobody knows (key_seed.hpp)
///   same(k, number)  is key k the one with that number?
///   add(k)           key k is new: it gets the next number
///   again(number)    it has been seen before
///   fetch(number)    it will be compared soon
/// Cost: O(n) expected; no allocation. table: key_positions(n) zeros, 16 bytes a key at most.
template <class Keys, class Index>
void number_keys(std::span<std::uint32_t> table, index_t n, Keys& keys, Index* numbers) {
  constexpr index_t positions_ahead = 32;
  constexpr index_t keys_ahead = 16;
  const int shift = 64 - std::countr_zero(table.size());
  const std::size_t mask = table.size() - 1;
  std::uint32_t* const positions = table.data();
  const bool fetches = table.size() * sizeof(std::uint32_t) > std::size_t{1} << 18;
  std::uint32_t known = 0;
  for (index_t k = 0; k < n; ++k) {
    if (fetches) {
      if (k + positions_ahead < n) __builtin_prefetch(positions + (keys.hash(k + positions_ahead) >> shift));
      if (k + keys_ahead < n) {
        const std::uint32_t next = positions[keys.hash(k + keys_ahead) >> shift];
        if (next != 0) keys.fetch(next - 1);
      }
    }
    for (std::size_t position = keys.hash(k) >> shift;; position = (position + 1) & mask) {
      const std::uint32_t seen = positions[position];
      if (seen == 0) {
        numbers[k] = static_cast<Index>(known);
        positions[position] = ++known;
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

}  // namespace DEEPREC_UNIT
}}}  // namespace deeprec::DEEPREC_ABI::detail
