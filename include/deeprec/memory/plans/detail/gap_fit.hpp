// Blocks placed in a given order, each into a gap among the placed blocks that overlap it in time.
//
//   placed, overlapping  ▐██▌   ▐███▌ ▐█▌            sorted by offset
//   gaps                     \_/     '   \____ ...   the smallest that fits, or the lowest; the last is endless
//
// Blocks are numbered by their first moment, so those that overlap block i are among the first reach[i], and
// a tree over the ends of the placed ones finds them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/memory/plans/detail/block_problem.hpp>
#include <deeprec/memory/plans/detail/work_budget.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The last moments of placed blocks, and of 16, 256 ... consecutive ones the largest.
class placed_ends {
 public:
  explicit placed_ends(std::size_t blocks) {
    for (std::size_t n = blocks;; n = (n + width - 1) / width) {
      levels_.emplace_back(n, 0);
      if (n <= width) return;
    }
  }
  void clear() {
    for (auto& level : levels_) std::fill(level.begin(), level.end(), 0);
  }
  void add(std::size_t i, std::int32_t last) noexcept {
    for (auto& level : levels_) {
      if (level[i] >= last) return;
      level[i] = last;
      i /= width;
    }
  }
  /// Calls f(i) for placed blocks below `reach` that end after `first`; returns how many it looked at.
  template <class F>
  std::uint64_t for_each(std::size_t reach, std::int32_t first, const F& f) const {
    return visit(levels_.size() - 1, 0, reach, first, f);
  }

 private:
  static constexpr std::size_t width = 16;

  template <class F>
  std::uint64_t visit(std::size_t l, std::size_t begin, std::size_t reach, std::int32_t first,
                      const F& f) const {
    std::size_t blocks = 1;  // below one entry
    for (std::size_t k = 0; k < l; ++k) blocks *= width;
    const std::vector<std::int32_t>& level = levels_[l];
    const std::size_t end = (std::min)({begin + width, level.size(), (reach + blocks - 1) / blocks});
    std::uint64_t looks = 0;
    for (std::size_t i = begin; i < end; ++i) {
      ++looks;
      if (level[i] <= first) continue;
      if (l == 0) {
        f(i);
      } else {
        looks += visit(l - 1, i * width, reach, first, f);
      }
    }
    return looks;
  }
  std::vector<std::vector<std::int32_t>> levels_;
};

enum class gap_rule : std::uint8_t { smallest, lowest };

/// @threads one thread at a time
class gap_fit {
 public:
  explicit gap_fit(const block_problem& problem)
      : blocks_(problem.blocks), ends_(blocks_.size()), reach_(blocks_.size()) {
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      const auto begins_before = [&](const moment_block& b, std::int32_t last) { return b.first < last; };
      reach_[i] = static_cast<std::size_t>(
          std::lower_bound(blocks_.begin(), blocks_.end(), blocks_[i].last, begins_before) - blocks_.begin());
    }
  }

  /// Places all blocks in `order`; false where the budget ended before. A step is a look at a block.
  bool place(std::span<const std::size_t> order, gap_rule rule, std::span<std::uint64_t> offsets,
             work_budget& budget) {
    ends_.clear();
    for (const std::size_t i : order) {
      if (budget.is_over()) return false;
      const moment_block& b = blocks_[i];
      overlapping_.clear();
      const std::uint64_t looks = ends_.for_each(reach_[i], b.first, [&](std::size_t k) {
        overlapping_.push_back({offsets[k], offsets[k] + blocks_[k].bytes});
      });
      budget.take(looks + 4 * overlapping_.size() + 1);
      std::sort(overlapping_.begin(), overlapping_.end(),
                [](const extent& x, const extent& y) { return x.begin < y.begin; });
      offsets[i] = gap_for(b, rule);
      ends_.add(i, b.last);
    }
    return true;
  }

 private:
  struct extent {
    std::uint64_t begin, end;
  };
  [[nodiscard]] std::uint64_t gap_for(const moment_block& b, gap_rule rule) const noexcept {
    std::uint64_t top = 0, least = (std::numeric_limits<std::uint64_t>::max)(), chosen = 0;
    for (const extent& e : overlapping_) {
      const std::uint64_t offset = aligned_up(top, b.alignment);
      if (offset + b.bytes <= e.begin && e.begin - top < least) {
        least = e.begin - top;
        chosen = offset;
        if (rule == gap_rule::lowest) return chosen;
      }
      top = (std::max)(top, e.end);
    }
    return least == (std::numeric_limits<std::uint64_t>::max)() ? aligned_up(top, b.alignment) : chosen;
  }

  std::span<const moment_block> blocks_;
  placed_ends ends_;
  std::vector<std::size_t> reach_;
  std::vector<extent> overlapping_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
