// Positions grouped by a small key, stably: a counting sort whose result depends on the keys only.
//
//   key        2 0 2 - 0        offsets    0 2 2 4        sorted_index   2 0 3 - 1        - in no group
//
//   pieces of positions ──count, in parallel──> counts (pieces, groups) ──prefix sums──> first sorted_index
//   of each piece in each group ──in parallel──> sorted_index of every position
#pragma once

#include <algorithm>
#include <memory_resource>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/support/bulk.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail { inline namespace DEEPREC_UNIT {

/// The key of a position that is in no group.
inline constexpr index_t no_group = -1;

/// Scratch of group_positions: 8 * (positions + groups) bytes at most, allocated before anything is written.
struct group_counts {
  group_counts(std::pmr::memory_resource* memory, index_t position_count, index_t group_count)
      : positions(position_count),
        groups(group_count),
        piece((std::max)(index_t{1} << 16, groups)),
        pieces(positions > 0 ? (positions - 1) / piece + 1 : 0),
        next(static_cast<std::size_t>(capped_product(pieces, groups)), memory) {}

  index_t positions;
  index_t groups;
  index_t piece;
  index_t pieces;
  std::pmr::vector<index_t> next;  // (pieces, groups)
};

/// Writes offsets (groups + 1), calls prepare(n) with the number of positions in groups, and then
/// place(position, key, sorted_index) for each of them, from many threads. key_at(position) returns a key in
/// [0, groups) or no_group; it is called twice for each position.
/// Cost: O(positions + groups); no allocation.
template <class Context, class KeyAt, class Offset, class Prepare, class Place>
void group_positions(const Context& ctx, group_counts& room, const KeyAt& key_at, Offset* offsets,
                     const Prepare& prepare, const Place& place) {
  const index_t positions = room.positions;
  const index_t groups = room.groups;
  const index_t piece = room.piece;
  const index_t pieces = room.pieces;
  std::pmr::vector<index_t>& next = room.next;
  // A body may be given several pieces.
  const auto for_each_piece = [&](const auto& body) {
    run_bulk(ctx, {positions, piece, 2.0 * static_cast<double>(positions)},
             [&](index_t begin, index_t end, int) {
               for (index_t first = begin; first < end; first += piece) {
                 body(next.data() + first / piece * groups, first, (std::min)(end, first + piece));
               }
             });
  };
  for_each_piece([&](index_t* counts, index_t begin, index_t end) {
    for (index_t position = begin; position < end; ++position) {
      const index_t key = key_at(position);
      if (key != no_group) ++counts[key];
    }
  });
  index_t total = 0;
  for (index_t group = 0; group < groups; ++group) {
    offsets[group] = static_cast<Offset>(total);
    for (index_t p = 0; p < pieces; ++p) {
      index_t& count = next[static_cast<std::size_t>(p * groups + group)];
      const index_t begin = total;
      total += count;
      count = begin;
    }
  }
  offsets[groups] = static_cast<Offset>(total);
  prepare(total);
  for_each_piece([&](index_t* sorted_index, index_t begin, index_t end) {
    for (index_t position = begin; position < end; ++position) {
      const index_t key = key_at(position);
      if (key != no_group) place(position, key, sorted_index[key]++);
    }
  });
}

}}}}  // namespace deeprec::DEEPREC_ABI::detail::DEEPREC_UNIT
