// Whether the blocks of one section fit below a capacity: branch and bound over the order of their offsets.
//
//   capacity ├──────────────┤    each block lies on the highest top below it, so a plan is an order: no block
//            │   ┌──┐ ┌─────┤    is lower than the one before it. Of the blocks that wait, at each moment
//            ├───┤c │ │  b  │        least offset + sum of sizes <= capacity
//            │ a └──┴─┴─────┤
//            └── moments ───┘    what waits and overlaps nothing else that waits is a problem of its own
//
// Of the plans that fit, the rules below keep one with the least sum of offsets. Not here: which capacity, in
// which order blocks are tried, and for how long (section_search.hpp).
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
        least_top_(latest_.size()) {}

  /// @param capacity  at each moment
  /// @param rank      of each block; of blocks that can have one offset the one of least rank is tried first
  /// @param nodes     partial plans to look at, at most
  answer run(std::int64_t capacity, std::span<const std::int32_t> rank, std::uint64_t nodes,
             work_budget& budget) {
    budget_ = &budget;
    begin(capacity, rank, nodes);
    state now = open({0, waiting_.size(), 0, static_cast<std::int32_t>(latest_.size())}, 0, -1);
    while (!frames_.empty() && now != state::out_of_budget) {
      frame& top = frames_.back();
      if (now == state::solved) ++top.part;
      if (now == state::failed) take_back(top);
      if (!top.trying && (top.decided || !next_trial(top))) {
        now = close(state::failed);
      } else if (top.part == parts_.size()) {
        now = close(state::solved);
      } else {
        const place& placed = trials_[top.trial - 1];
        now = top.decided ? open(parts_[top.part], top.level, top.rank)
                          : open(parts_[top.part], placed.offset, rank_[at(placed.block)]);
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
  struct place {
    std::int32_t block;
    std::int64_t offset;  // the least possible
  };
  struct range {
    std::size_t begin, end;    // of waiting_
    std::int32_t first, last;  // moments where something changed since raise_offsets saw them
    [[nodiscard]] std::size_t size() const noexcept { return end - begin; }
    void add(const search_block& b) noexcept {
      first = (std::min)(first, b.first);
      last = (std::max)(last, b.last);
    }
  };
  // Blocks that wait and are connected by overlaps, with the block that is tried as their lowest.
  struct frame {
    range members;                       // of waiting_
    std::int64_t level;                  // nothing is lower
    std::int32_t rank;                   // and nothing of that offset has a rank below that
    std::size_t waiting, trials, parts;  // what it has of these stacks begins there
    std::size_t trial;                   // of trials_, the next one
    std::size_t part;                    // of parts_, the first that isn't solved
    bool trying = false;
    bool decided = false;  // what is tried hinders nothing that waits, so that nothing else can do better
  };
  static constexpr std::int64_t none = (std::numeric_limits<std::int64_t>::max)();

  static constexpr std::size_t at(std::int32_t i) noexcept { return static_cast<std::size_t>(i); }
  const search_block& block(std::int32_t i) const noexcept { return blocks_[at(i)]; }
  static std::int64_t aligned(std::int64_t offset, std::int64_t alignment) noexcept {
    return (offset + alignment - 1) & -alignment;
  }

  void begin(std::int64_t capacity, std::span<const std::int32_t> rank, std::uint64_t nodes) {
    capacity_ = capacity;
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
  state open(range members, std::int64_t level, std::int32_t rank) {
    const std::span<place> list(waiting_.data() + members.begin, members.size());
    if (list.size() == 1) {
      offsets_[at(list[0].block)] = list[0].offset;
      return list[0].offset <= block(list[0].block).highest ? state::solved : state::failed;
    }
    if (nodes_ == 0 || budget_->is_over()) return state::out_of_budget;
    --nodes_;
    if (!raise_offsets(list, members)) return state::failed;
    // A block at or above the least top leaves room below itself for the block of that: which is lower.
    std::int64_t least_top = none;
    for (const place& w : list) least_top = (std::min)(least_top, w.offset + block(w.block).size);
    const frame f{members,        level,         rank,           waiting_.size(),
                  trials_.size(), parts_.size(), trials_.size(), parts_.size()};
    for (const place& w : list) {
      if (w.offset < least_top) trials_.push_back(w);
    }
    std::sort(trials_.data() + f.trials, trials_.data() + trials_.size(),
              [&](const place& a, const place& b) {
                return a.offset != b.offset ? a.offset < b.offset : rank_[at(a.block)] < rank_[at(b.block)];
              });
    frames_.push_back(f);
    return state::open;
  }

  /// Raises the least offsets as far as the capacity requires; false where it can't be met. At each moment
  /// one block lies lowest, with the sizes of all others above it.
  bool raise_offsets(std::span<place> list, range changed) {
    while (changed.first < changed.last && !budget_->is_over()) {
      const std::int32_t begin = changed.first, end = changed.last;
      std::fill(least_top_.begin() + begin, least_top_.begin() + end, none);
      std::uint64_t looks = list.size();
      not_lowest_.clear();
      for (place& w : list) {
        const search_block& b = block(w.block);
        const std::int32_t first = (std::max)(b.first, begin), last = (std::min)(b.last, end);
        if (first >= last) continue;
        looks += static_cast<std::uint64_t>(last - first);
        if (add_top(first, last, w.offset, w.offset + b.size)) not_lowest_.push_back(&w);
      }
      budget_->take(looks);
      for (std::int32_t t = begin; t < end; ++t) {
        if (least_top_[at(t)] != none || latest_[at(t)] == capacity_) continue;
        for (const place& w : list) {
          if (block(w.block).first <= t && t < block(w.block).last) ++conflicts_[at(w.block)];
        }
        return false;
      }
      changed.first = end;
      changed.last = begin;
      for (place* const w : not_lowest_) {
        const search_block& b = block(w->block);
        const std::int64_t least =
            above_lowest((std::max)(b.first, begin), (std::min)(b.last, end), w->offset);
        if (least == w->offset) continue;
        w->offset = aligned(least, b.alignment);
        changed.add(b);
        if (w->offset <= b.highest) continue;
        ++conflicts_[at(w->block)];
        return false;
      }
    }
    return true;
  }
  /// Enters a block where it can lie lowest; true: there are moments where it can't.
  bool add_top(std::int32_t first, std::int32_t last, std::int64_t offset, std::int64_t top) noexcept {
    const std::int64_t* const latest = latest_.data();
    std::int64_t* const least_top = least_top_.data();
    bool anywhere_else = false;
    for (std::int32_t t = first; t < last; ++t) {
      const bool can = offset <= latest[t];
      anywhere_else |= !can;
      least_top[t] = (std::min)(least_top[t], can ? top : none);
    }
    return anywhere_else;
  }
  /// The least offset of a block that lies above the lowest one wherever it can't be that itself.
  std::int64_t above_lowest(std::int32_t first, std::int32_t last, std::int64_t offset) const noexcept {
    std::int64_t least = offset;
    for (std::int32_t t = first; t < last; ++t)
      least = (std::max)(least, offset <= latest_[at(t)] ? offset : least_top_[at(t)]);
    return least;
  }

  /// Places the next block that can be the lowest one; false where there is none.
  bool next_trial(frame& f) {
    for (; f.trial < trials_.size(); ++f.trial) {
      const place now = trials_[f.trial];
      // Blocks of one offset come in the order of their ranks; of equal blocks so do the offsets.
      if (now.offset == f.level && rank_[at(now.block)] < f.rank) continue;
      const auto is_twin = [&](const place& t) { return block(t.block) == block(now.block); };
      if (std::any_of(trials_.data() + f.trials, trials_.data() + f.trial, is_twin)) continue;
      budget_->take(f.members.size());
      f.decided = hinders_nothing(f, now);
      if (!split(f, now)) {
        if (f.decided) return false;
        continue;
      }
      offsets_[at(now.block)] = now.offset;
      raise_latest(block(now.block), block(now.block).size);
      ++f.trial;
      f.trying = true;
      return true;
    }
    return false;
  }
  /// Whether everything that waits can lie where it could before.
  bool hinders_nothing(const frame& f, const place& now) const noexcept {
    const search_block& placed = block(now.block);
    for (std::size_t i = f.members.begin; i < f.members.end; ++i) {
      const search_block& b = block(waiting_[i].block);
      if (waiting_[i].offset < now.offset + placed.size && b.first < placed.last && placed.first < b.last &&
          waiting_[i].block != now.block)
        return false;
    }
    return true;
  }
  /// What waits once a block is placed, in parts that overlap at no moment; false where something does not
  /// fit.
  bool split(frame& f, const place& now) {
    const search_block& placed = block(now.block);
    waiting_.resize(f.waiting);
    parts_.resize(f.parts);
    f.part = f.parts;
    std::int32_t end = -1;
    for (std::size_t i = f.members.begin; i < f.members.end; ++i) {
      place w = waiting_[i];
      if (w.block == now.block) continue;
      const search_block& b = block(w.block);
      const bool overlaps = b.first < placed.last && placed.first < b.last;
      const std::int64_t least = overlaps ? now.offset + placed.size : f.decided ? 0 : now.offset;
      const bool rises = w.offset < least;
      if (rises) w.offset = aligned(least, b.alignment);
      if (w.offset > b.highest) {
        ++conflicts_[at(w.block)];
        ++conflicts_[at(now.block)];
        return false;
      }
      if (b.first >= end)
        parts_.push_back({waiting_.size(), 0, (std::numeric_limits<std::int32_t>::max)(), 0});
      end = (std::max)(end, b.last);
      waiting_.push_back(w);
      range& part = parts_.back();
      part.end = waiting_.size();
      if (rises || overlaps) part.add(b);
    }
    // The smallest first: where one fails, the others were not looked at.
    std::stable_sort(parts_.data() + f.parts, parts_.data() + parts_.size(),
                     [](const range& a, const range& b) { return a.size() < b.size(); });
    return true;
  }

  void take_back(frame& f) {
    const search_block& placed = block(trials_[f.trial - 1].block);
    raise_latest(placed, -placed.size);
    f.trying = false;
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
  std::vector<std::int64_t> least_top_;  // of a moment: the least top of what can lie lowest
  std::vector<place> waiting_, trials_;
  std::vector<range> parts_;
  std::vector<frame> frames_;
  std::vector<place*> not_lowest_;
  work_budget* budget_ = nullptr;  // during a run
  std::int64_t capacity_ = 0;
  std::uint64_t nodes_ = 0;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
