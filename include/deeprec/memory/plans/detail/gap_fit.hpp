// Blocks placed in a given order, each into a gap among the placed blocks that overlap it in time.
//
//   placed, overlapping  ▐██▌   ▐███▌ ▐█▌          by offset
//   gaps                     \_/     '   \__ ...   the smallest that fits, or the lowest; the last is endless
//
//   moments  |   |   |   |   |      each placed block is kept in the smallest interval of a tree that holds
//            |       |       |      its life, and an interval keeps its blocks by offset: what overlaps is in
//            |               |      few intervals, and most of it is sorted already
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/memory/plans/detail/block_problem.hpp>
#include <deeprec/memory/plans/detail/work_budget.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

enum class gap_rule : std::uint8_t { smallest, lowest };

/// @threads one thread at a time
class gap_fit {
 public:
  explicit gap_fit(const block_problem& problem)
      : blocks_(problem.blocks),
        extents_(blocks_.size()),
        found_(blocks_.size() + 1),
        most_(blocks_.size() + 1) {
    const auto moments = static_cast<std::uint32_t>(problem.live_at.size());
    for (int bits = least_bits;; ++bits) {
      levels_.push_back(intervals_.size());
      intervals_.resize(intervals_.size() + (moments >> bits) + 1);
      if (moments >> bits == 0) break;
    }
  }

  /// Places all blocks in `order`; false where the budget ended before. A step is a look at a block.
  bool place(std::span<const std::size_t> order, gap_rule rule, std::span<std::uint64_t> offsets,
             work_budget& budget) {
    for (auto& interval : intervals_) interval.clear();
    for (const std::size_t i : order) {
      if (budget.is_over()) return false;
      budget.take(collect(blocks_[i]));
      const std::uint64_t offset = gap_for(blocks_[i], rule);
      offsets[i] = offset;
      add(i, {offset, offset + blocks_[i].bytes});
    }
    return true;
  }

 private:
  struct extent {
    std::uint64_t begin, end;
  };
  static constexpr int least_bits = 7;

  /// The interval of a block, and the moments in it.
  void add(std::size_t i, extent at) {
    const moment_block& b = blocks_[i];
    const auto first = static_cast<std::uint32_t>(b.first), last = static_cast<std::uint32_t>(b.last - 1);
    const int bits = (std::max)(least_bits, static_cast<int>(std::bit_width(first ^ last)));
    auto& interval = intervals_[levels_[static_cast<std::size_t>(bits - least_bits)] + (first >> bits)];
    extents_[i] = at;
    const auto place = std::upper_bound(
        interval.begin(), interval.end(), at.begin,
        [&](std::uint64_t begin, const entry& e) { return begin < extents_[e.block].begin; });
    interval.insert(place, {b.first, b.last, static_cast<std::uint32_t>(i)});
  }
  /// Collects the placed blocks that overlap one; returns how many it looked at.
  std::uint64_t collect(const moment_block& b) {
    const auto first = static_cast<std::uint32_t>(b.first), last = static_cast<std::uint32_t>(b.last - 1);
    std::uint64_t looks = 1;
    most_found_ = 0;
    others_.clear();
    for (std::size_t level = levels_.size(); level-- > 0;) {
      const int bits = static_cast<int>(level) + least_bits;
      for (std::size_t t = first >> bits; t <= last >> bits; ++t) {
        const std::vector<entry>& interval = intervals_[levels_[level] + t];
        looks += interval.size() + 1;
        std::size_t found = 0;
        for (const entry& e : interval) {
          found_[found] = e.block;
          found += static_cast<std::size_t>(e.first < b.last) & static_cast<std::size_t>(b.first < e.last);
        }
        if (found > most_found_) {
          std::swap(found_, most_);
          std::swap(found, most_found_);
        }
        for (std::size_t k = 0; k < found; ++k) others_.push_back(extents_[found_[k]]);
      }
    }
    std::sort(others_.begin(), others_.end(),
              [](const extent& x, const extent& y) { return x.begin < y.begin; });
    return looks + 4 * others_.size();
  }
  [[nodiscard]] std::uint64_t gap_for(const moment_block& b, gap_rule rule) const noexcept {
    std::uint64_t top = 0, least = none, chosen = 0;
    auto one = most_.begin();
    const auto most_end = one + static_cast<std::ptrdiff_t>(most_found_);
    auto other = others_.begin();
    while (one != most_end || other != others_.end()) {
      const bool takes_one =
          other == others_.end() || (one != most_end && extents_[*one].begin < other->begin);
      const extent& e = takes_one ? extents_[*one++] : *other++;
      const std::uint64_t offset = aligned_up(top, b.alignment);
      if (offset + b.bytes <= e.begin && e.begin - top < least) {
        if (rule == gap_rule::lowest) return offset;
        least = e.begin - top;
        chosen = offset;
      }
      top = (std::max)(top, e.end);
    }
    return least == none ? aligned_up(top, b.alignment) : chosen;
  }

  struct entry {
    std::int32_t first, last;
    std::uint32_t block;
  };
  static constexpr std::uint64_t none = (std::numeric_limits<std::uint64_t>::max)();
  std::span<const moment_block> blocks_;
  std::vector<extent> extents_;                // of placed blocks
  std::vector<std::size_t> levels_;            // of the tree: the first interval of each, the smallest first
  std::vector<std::vector<entry>> intervals_;  // placed blocks by offset
  // By offset: of the interval that has the most, and of the others.
  std::vector<std::uint32_t> found_, most_;
  std::size_t most_found_ = 0;
  std::vector<extent> others_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
