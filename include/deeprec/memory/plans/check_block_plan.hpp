// Whether a plan of memory is right: what an allocator that serves one asks first.
//
//   block_plan plan = plan_blocks(lifetimes).or_throw();
//   check_block_plan(lifetimes, plan.offsets, plan.bytes).or_throw();
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/memory/plans/block_lifetime.hpp>
#include <deeprec/memory/plans/detail/check_lifetimes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Checks that each block is aligned and inside of `bytes`, and that no two blocks that are live at one time
/// share a byte. Independent of how plans are made.
///
/// @shape   offsets: one for each block
/// @cost    O(n log n)
/// @threads reentrant
/// @error   shape_mismatch; invalid_value: the block at place().item. Of two blocks that share bytes that is
///          the one that begins later, and the text names both; of several pairs the first in time. As
///          plan_blocks for lifetimes. Throws std::bad_alloc
[[nodiscard]] inline result<void> check_block_plan(std::span<const block_lifetime> blocks,
                                                   std::span<const std::size_t> offsets, std::size_t bytes) {
  if (const status s = detail::expect_size(offsets.size(), blocks.size(),
                                           "check_block_plan: offsets must be one for each block");
      !s.ok())
    return s;
  if (const status s = detail::check_lifetimes(blocks); !s.ok()) return s;
  std::vector<std::size_t> begins, ends;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const fault_place place{.value = static_cast<std::int64_t>(offsets[i]), .item = static_cast<index_t>(i)};
    if (offsets[i] % blocks[i].alignment != 0)
      return status(errc::invalid_value, "check_block_plan: offset must be a multiple of the alignment",
                    place);
    if (blocks[i].bytes > bytes || offsets[i] > bytes - blocks[i].bytes)
      return status(errc::invalid_value, "check_block_plan: block must end inside of the plan's bytes",
                    place);
    if (blocks[i].bytes > 0) begins.push_back(i);
  }
  ends = begins;
  std::stable_sort(begins.begin(), begins.end(),
                   [&](std::size_t a, std::size_t b) { return blocks[a].begin < blocks[b].begin; });
  std::stable_sort(ends.begin(), ends.end(),
                   [&](std::size_t a, std::size_t b) { return blocks[a].end < blocks[b].end; });
  std::map<std::size_t, std::size_t> live;  // offset -> block; disjoint
  std::size_t ended = 0;
  for (const std::size_t i : begins) {
    for (; blocks[ends[ended]].end <= blocks[i].begin; ++ended) live.erase(offsets[ends[ended]]);
    const auto above = live.lower_bound(offsets[i]);
    const auto shares = [&](std::size_t k) {
      return offsets[k] < offsets[i] + blocks[i].bytes && offsets[i] < offsets[k] + blocks[k].bytes;
    };
    std::size_t other = i;
    if (above != live.end() && shares(above->second)) other = above->second;
    if (above != live.begin() && shares(std::prev(above)->second)) other = std::prev(above)->second;
    if (other != i) {
      return fault(status(errc::invalid_value, nullptr, {.item = static_cast<index_t>(i)}), {},
                   "check_block_plan: blocks that are live at one time must not share bytes (blocks " +
                       std::to_string(other) + " and " + std::to_string(i) + " do, at " +
                       std::to_string((std::max)(offsets[i], offsets[other])) + ")");
    }
    live.emplace(offsets[i], i);
  }
  return {};
}

}}  // namespace deeprec::DEEPREC_ABI
