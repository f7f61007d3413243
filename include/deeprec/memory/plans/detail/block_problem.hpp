// Lifetimes as the planner wants them: sorted, in moments instead of events, cut where nothing is live.
//
//   events   ├─a─┤ ├──b──┤         ├──d──┤        a moment: blocks that are live together, and no more could
//              ├──c──┤                            be. Blocks overlap where they have a moment in common
//   moments    0     1             2
//   sections   [──────────)        [─────)        no block is live across: each is planned alone
//
// The order of the user's blocks has no influence: only numbers say which is which.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/memory/plans/block_lifetime.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

struct moment_block {
  std::int32_t first = 0, last = 0;  // moments [first, last)
  std::uint64_t bytes = 0, alignment = 1;
  std::uint64_t length = 0;  // events
};

[[nodiscard]] constexpr std::uint64_t aligned_up(std::uint64_t offset, std::uint64_t alignment) noexcept {
  return (offset + alignment - 1) & ~(alignment - 1);
}

/// @pre     lifetimes are sound; the sum of their bytes and alignments is below 2^62
/// @threads immutable once made
struct block_problem {
  struct section {
    std::size_t begin, end;                  // of blocks
    std::int32_t first_moment, last_moment;  // [first, last)
    std::uint64_t bound;                     // no plan of it is smaller
  };

  std::vector<moment_block> blocks;    // by begin, end, bytes, alignment; none of 0 bytes
  std::vector<std::size_t> number;     // the user's
  std::vector<std::size_t> by_end;     // indices of blocks
  std::vector<std::uint64_t> live_at;  // of a moment: live bytes
  std::vector<section> sections;

  explicit block_problem(std::span<const block_lifetime> lifetimes) {
    struct key {
      block_lifetime block;
      std::size_t number;
    };
    std::vector<key> keys;
    keys.reserve(lifetimes.size());
    for (std::size_t i = 0; i < lifetimes.size(); ++i) {
      if (lifetimes[i].bytes > 0) keys.push_back({lifetimes[i], i});
    }
    const auto tied = [](const key& k) {
      return std::tie(k.block.begin, k.block.end, k.block.bytes, k.block.alignment, k.number);
    };
    std::sort(keys.begin(), keys.end(), [&](const key& a, const key& b) { return tied(a) < tied(b); });
    std::vector<std::pair<std::int64_t, std::size_t>> ends;
    ends.reserve(keys.size());
    for (const auto& [b, i] : keys) {
      ends.emplace_back(b.end, ends.size());
      number.push_back(i);
      blocks.push_back({0, 0, b.bytes, b.alignment,
                        static_cast<std::uint64_t>(b.end) - static_cast<std::uint64_t>(b.begin)});
    }
    std::sort(ends.begin(), ends.end());
    for (const auto& [end, i] : ends) by_end.push_back(i);
    number_moments(lifetimes);
    find_bounds();
  }

  [[nodiscard]] std::uint64_t live_bytes() const noexcept {
    return live_at.empty() ? 0 : *std::max_element(live_at.begin(), live_at.end());
  }
  /// The most live bytes during each block's life.
  [[nodiscard]] std::vector<std::uint64_t> breadths() const {
    std::vector<std::uint64_t> most(blocks.size());
    std::vector<std::int32_t> falling;  // moments, each with more live bytes than all after it
    std::int32_t next = 0;
    for (const std::size_t i : by_end) {
      for (; next < blocks[i].last; ++next) {
        while (!falling.empty() && live(falling.back()) <= live(next)) falling.pop_back();
        falling.push_back(next);
      }
      most[i] = live(*std::lower_bound(falling.begin(), falling.end(), blocks[i].first));
    }
    return most;
  }

 private:
  [[nodiscard]] std::uint64_t live(std::int32_t moment) const noexcept {
    return live_at[static_cast<std::size_t>(moment)];
  }
  void number_moments(std::span<const block_lifetime> lifetimes) {
    std::size_t ended = 0;
    bool is_new = true;  // the next begin opens a moment
    std::uint64_t now = 0;
    const auto moments = [&] { return static_cast<std::int32_t>(live_at.size()); };
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      for (; lifetimes[number[by_end[ended]]].end <= lifetimes[number[i]].begin; ++ended) {
        blocks[by_end[ended]].last = moments();
        now -= blocks[by_end[ended]].bytes;
        is_new = true;
      }
      if (is_new && ended == i) {
        if (i > 0) end_section(i);
        sections.push_back({i, i, moments(), 0, 0});
      }
      if (is_new) live_at.push_back(0);
      is_new = false;
      blocks[i].first = moments() - 1;
      live_at.back() = now += blocks[i].bytes;
    }
    for (; ended < blocks.size(); ++ended) blocks[by_end[ended]].last = moments();
    if (!blocks.empty()) end_section(blocks.size());
  }
  void end_section(std::size_t end) {
    sections.back().end = end;
    sections.back().last_moment = static_cast<std::int32_t>(live_at.size());
  }
  // Live bytes; with each block but the highest one rounded up to the least alignment.
  void find_bounds() {
    std::size_t ended = 0;
    for (section& s : sections) {
      std::uint64_t alignment = blocks[s.begin].alignment, padding = 0, now = 0, most = 0;
      for (std::size_t i = s.begin; i < s.end; ++i) alignment = (std::min)(alignment, blocks[i].alignment);
      const auto rounded = [&](std::size_t i) { return aligned_up(blocks[i].bytes, alignment); };
      for (std::size_t i = s.begin; i < s.end; ++i) {
        for (; blocks[by_end[ended]].last <= blocks[i].first; ++ended) now -= rounded(by_end[ended]);
        padding = (std::max)(padding, rounded(i) - blocks[i].bytes);
        most = (std::max)(most, now += rounded(i));
      }
      ended = s.end;
      s.bound = most - padding;
      for (std::int32_t t = s.first_moment; t < s.last_moment; ++t) s.bound = (std::max)(s.bound, live(t));
    }
  }
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
