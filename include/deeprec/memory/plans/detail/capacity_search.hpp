// Whether the blocks of one section fit below a capacity: branch and bound over the order of their offsets.
//
//   capacity ├──────────────┤    each block lies on the highest top below it, so a plan is an order: no block
//            │   ┌──┐ ┌─────┤    is lower than the one before it. Of the blocks that wait, at each moment
//            ├───┤c │ │  b  │        least offset + sum of sizes <= capacity
//            │ a └──┴─┴─────┤
//            └── moments ───┘    what waits and overlaps nothing else that waits is a problem of its own
//
// Not here: which capacity, in which order blocks are tried, and for how long (section_search.hpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/memory/plans/detail/work_budget.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// A block in units that all offsets are multiples of.
struct search_block {
  std::int32_t first = 0, last = 0;  // moments [first, last)
  std::int64_t size = 0;
  std::int64_t alignment = 1;
  std::int64_t highest = 0;  // offset that the capacity permits

  friend bool operator==(const search_block&, const search_block&) = default;
};

/// @threads one thread at a time
/// @source  canonical orders, the bound and independent parts: Moffitt, MiniMalloc (ASPLOS'23). What cannot
///          lie lowest lies above what can: edge finding (Carlier and Pinson 1989), a moment as a machine
class capacity_search {
 public:
  enum class answer : std::uint8_t { fits, does_not_fit, unknown };

  /// @param blocks   ascending in `first`; one section; they may change between runs
  /// @param moments  no `last` is above that
  capacity_search(std::span<const search_block> blocks, std::int32_t moments)
      : blocks_(blocks),
        offsets_(blocks.size()),
        conflicts_(blocks.size()),
        latest_(at(moments)),
        lowest_(latest_.size()),
        least_top_(latest_.size()) {}

  /// @param capacity  at each moment
  /// @param rank      of each block; of blocks that can have one offset the one of least rank is tried first
  /// @param nodes     partial plans to look at, at most
  answer run(std::int64_t capacity, std::span<const std::int32_t> rank, std::uint64_t nodes,
             work_budget& budget) {
    begin(capacity, rank, nodes);
    state now = open({0, waiting_.size()}, 0, -1, budget);
    while (!frames_.empty() && now != state::out_of_budget) {
      frame& top = frames_.back();
      if (now == state::solved) ++top.part;
      if (now == state::failed) take_back(top);
      if (!top.trying && !next_trial(top)) {
        now = close(state::failed);
      } else if (top.part == parts_.size()) {
        now = close(state::solved);
      } else {
        const trial& placed = trials_[top.trial - 1];
        now = open(parts_[top.part], placed.offset, rank_[at(placed.block)], budget);
      }
    }
    if (now == state::out_of_budget) return answer::unknown;
    return now == state::solved ? answer::fits : answer::does_not_fit;
  }

  /// Of each block, after `fits`.
  [[nodiscard]] std::span<const std::int64_t> offsets() const noexcept { return offsets_; }
  /// How often each block was among those that did not fit, in the last run.
  [[nodiscard]] std::span<const std::int64_t> conflicts() const noexcept { return conflicts_; }

 private:
  enum class state : std::uint8_t { open, solved, failed, out_of_budget };
  struct trial {
    std::int32_t block;
    std::int64_t offset;  // the least possible
  };
  struct range {
    std::size_t begin, end;
    [[nodiscard]] std::size_t size() const noexcept { return end - begin; }
  };
  // Blocks that wait and are connected by overlaps, with the block that is tried as their lowest.
  struct frame {
    range members;        // of waiting_
    std::int64_t level;   // nothing is lower, and at this offset no rank is below that of the block before
    std::int32_t rank;    // which has this one
    std::size_t waiting;  // where the stacks begin that trials fill
    std::size_t trials;
    std::size_t parts;
    std::size_t trial;  // of trials_, the next one
    std::size_t part;   // of parts_, the first that isn't solved
    bool trying = false;
  };
  static constexpr std::int64_t none = (std::numeric_limits<std::int64_t>::max)();

  static constexpr std::size_t at(std::int32_t i) noexcept { return static_cast<std::size_t>(i); }
  static constexpr std::ptrdiff_t far(std::size_t i) noexcept { return static_cast<std::ptrdiff_t>(i); }
  const search_block& block(std::int32_t i) const noexcept { return blocks_[at(i)]; }
  static std::int64_t aligned(std::int64_t offset, std::int64_t alignment) noexcept {
    return (offset + alignment - 1) & -alignment;
  }

  void begin(std::int64_t capacity, std::span<const std::int32_t> rank, std::uint64_t nodes) {
    rank_ = rank;
    nodes_ = nodes;
    std::fill(conflicts_.begin(), conflicts_.end(), 0);
    std::fill(latest_.begin(), latest_.end(), capacity);
    waiting_.clear();
    trials_.clear();
    parts_.clear();
    frames_.clear();
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      waiting_.push_back({static_cast<std::int32_t>(i), 0});
      raise_latest(blocks_[i], -blocks_[i].size);
    }
  }
  void raise_latest(const search_block& b, std::int64_t size) noexcept {
    for (std::int32_t t = b.first; t < b.last; ++t) latest_[at(t)] += size;
  }

  /// Begins a problem: it is solved or fails at once, or becomes a frame.
  state open(range members, std::int64_t level, std::int32_t rank, work_budget& budget) {
    const std::span<trial> list(waiting_.data() + members.begin, members.size());
    if (list.size() == 1) {
      offsets_[at(list[0].block)] = list[0].offset;
      return list[0].offset <= block(list[0].block).highest ? state::solved : state::failed;
    }
    if (nodes_ == 0 || budget.is_over()) return state::out_of_budget;
    --nodes_;
    if (!raise_offsets(list, budget)) return state::failed;
    // A block that isn't below the top of another one leaves room for that below itself: no such order.
    std::int64_t least_top = none;
    for (const trial& w : list) least_top = (std::min)(least_top, w.offset + block(w.block).size);
    const frame f{members,        level,         rank,           waiting_.size(),
                  trials_.size(), parts_.size(), trials_.size(), parts_.size()};
    for (const trial& w : list) {
      if (w.offset < least_top) trials_.push_back(w);
    }
    std::sort(trials_.begin() + far(f.trials), trials_.end(), [&](const trial& a, const trial& b) {
      return a.offset != b.offset ? a.offset < b.offset : rank_[at(a.block)] < rank_[at(b.block)];
    });
    frames_.push_back(f);
    return state::open;
  }

  /// Raises the least offsets as far as the capacity requires; false where it can't be met.
  bool raise_offsets(std::span<trial> list, work_budget& budget) {
    const std::int32_t begin = block(list.front().block).first;
    std::int32_t end = begin;
    for (const trial& w : list) end = (std::max)(end, block(w.block).last);
    for (bool changed = true; changed;) {
      changed = false;
      std::fill(lowest_.begin() + begin, lowest_.begin() + end, none);
      std::fill(least_top_.begin() + begin, least_top_.begin() + end, none);
      std::uint64_t looks = 0;
      for (const trial& w : list) {
        const search_block& b = block(w.block);
        const std::int64_t top = w.offset + b.size;
        looks += static_cast<std::uint64_t>(b.last - b.first) + 1;
        for (std::int32_t t = b.first; t < b.last; ++t) {
          lowest_[at(t)] = (std::min)(lowest_[at(t)], w.offset);
          if (w.offset <= latest_[at(t)]) least_top_[at(t)] = (std::min)(least_top_[at(t)], top);
        }
      }
      budget.take(looks);
      for (std::int32_t t = begin; t < end; ++t) {
        if (least_top_[at(t)] != none || lowest_[at(t)] == none) continue;
        for (const trial& w : list) {
          if (block(w.block).first <= t && t < block(w.block).last) ++conflicts_[at(w.block)];
        }
        return false;
      }
      for (trial& w : list) {
        const search_block& b = block(w.block);
        std::int64_t least = w.offset;
        for (std::int32_t t = b.first; t < b.last; ++t) {
          if (w.offset > latest_[at(t)]) least = (std::max)(least, least_top_[at(t)]);
        }
        if (least == w.offset) continue;
        w.offset = aligned(least, b.alignment);
        changed = true;
        if (w.offset <= b.highest) continue;
        ++conflicts_[at(w.block)];
        return false;
      }
    }
    return true;
  }

  /// Places the next block that can be the lowest one; false where there is none.
  bool next_trial(frame& f) {
    for (; f.trial < trials_.size(); ++f.trial) {
      const trial now = trials_[f.trial];
      if (now.offset == f.level && rank_[at(now.block)] < f.rank) continue;
      const auto is_twin = [&](const trial& t) { return block(t.block) == block(now.block); };
      if (std::any_of(trials_.begin() + far(f.trials), trials_.begin() + far(f.trial), is_twin)) continue;
      if (!split(f, now)) continue;
      offsets_[at(now.block)] = now.offset;
      raise_latest(block(now.block), block(now.block).size);
      ++f.trial;
      f.trying = true;
      return true;
    }
    return false;
  }
  /// What waits once a block is placed, in parts that overlap at no moment; false where something does not
  /// fit.
  bool split(frame& f, const trial& now) {
    const search_block& placed = block(now.block);
    waiting_.resize(f.waiting);
    parts_.resize(f.parts);
    f.part = f.parts;
    std::int32_t end = -1;
    for (std::size_t i = f.members.begin; i < f.members.end; ++i) {
      trial w = waiting_[i];
      if (w.block == now.block) continue;
      const search_block& b = block(w.block);
      const bool overlaps = b.first < placed.last && placed.first < b.last;
      const std::int64_t least = overlaps ? now.offset + placed.size : now.offset;
      if (w.offset < least) w.offset = aligned(least, b.alignment);
      if (w.offset > b.highest) {
        ++conflicts_[at(w.block)];
        ++conflicts_[at(now.block)];
        return false;
      }
      if (b.first >= end) parts_.push_back({waiting_.size(), waiting_.size()});
      end = (std::max)(end, b.last);
      waiting_.push_back(w);
      parts_.back().end = waiting_.size();
    }
    // The smallest first: where one fails, the others were not looked at.
    std::stable_sort(parts_.begin() + far(f.parts), parts_.end(),
                     [](const range& a, const range& b) { return a.size() < b.size(); });
    return true;
  }

  void take_back(frame& f) {
    const search_block& placed = block(trials_[f.trial - 1].block);
    raise_latest(placed, -placed.size);
    f.trying = false;
    waiting_.resize(f.waiting);
    trials_.resize(trials_.size());
    parts_.resize(f.parts);
  }
  state close(state end) {
    frame& f = frames_.back();
    if (f.trying) take_back(f);
    waiting_.resize(f.waiting);
    parts_.resize(f.parts);
    trials_.resize(f.trials);
    frames_.pop_back();
    return end;
  }

  std::span<const search_block> blocks_;
  std::vector<std::int64_t> offsets_, conflicts_;
  std::span<const std::int32_t> rank_;
  std::vector<std::int64_t> latest_;     // of a moment: the capacity less the sizes of what waits
  std::vector<std::int64_t> lowest_;     // of a moment: the least offset of what waits
  std::vector<std::int64_t> least_top_;  // of a moment: the least top of what can lie lowest
  std::vector<trial> waiting_, trials_;
  std::vector<range> parts_;
  std::vector<frame> frames_;
  std::uint64_t nodes_ = 0;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
