// DeepRec's plan of host memory: chunks of rounded sizes, shared by blocks that don't overlap in time.
//
//   48 KB   |▐█▌ ▐██▌ |     a bin for each size: 32 KB + 1, 2, 3 ... intervals. The largest bin first, its
//   40 KB   |▐█▌   ▐█▌|     blocks as they end: into a chunk of their bin, or else of a larger one, or else a
//           |  ▐███▌  |     new one. Of intervals of 4, 8 and 16 KB the one with the least sum of chunks
//
// Blocks of up to 32 KB, which DeepRec leaves to malloc, are placed behind the chunks by start_fit. Not here:
// DeepRec's 64 bytes before each block; its clock, in which equal times overlap, since events are distinct.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/memory/plans/detail/block_problem.hpp>
#include <deeprec/memory/plans/detail/start_fit.hpp>
#include <deeprec/memory/plans/detail/work_budget.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The plan with one interval.
///
/// @threads one thread at a time
/// @source  DeepRec, memory_planner.cc (LifetimePolicy::BestFit)
class bin_fit {
 public:
  static constexpr std::uint64_t intervals[] = {4096, 8192, 16384};

  bin_fit(const block_problem& problem, std::uint64_t interval) : problem_(problem), interval_(interval) {}

  /// False where the budget ended before. A step is a look at a chunk.
  bool place(std::span<std::uint64_t> offsets, work_budget& budget) {
    std::map<std::uint64_t, std::vector<std::size_t>, std::greater<>> blocks_of;  // by end
    for (const std::size_t i : problem_.by_end) {
      if (!is_small(i)) blocks_of[aligned_up(problem_.blocks[i].bytes, interval_)].push_back(i);
    }
    for (const auto& [size, blocks] : blocks_of) {
      bins_.push_back({size});
      for (const std::size_t i : blocks) {
        if (budget.is_over()) return false;
        chunk_for(i, budget).insert(i, problem_.blocks[i]);
      }
    }
    lay_out(offsets);
    return true;
  }
  /// The sum of the chunks, and what the small blocks take.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  static constexpr std::uint64_t most_small = 32768;
  struct chunk {
    std::map<std::int32_t, std::int32_t> lives;  // first, last
    std::vector<std::size_t> blocks;
    std::uint64_t alignment = 1;

    [[nodiscard]] bool has_room(const moment_block& b) const {
      const auto after = lives.lower_bound(b.first);
      return (after == lives.end() || b.last <= after->first) &&
             (after == lives.begin() || std::prev(after)->second <= b.first);
    }
    void insert(std::size_t i, const moment_block& b) {
      lives.emplace(b.first, b.last);
      blocks.push_back(i);
      alignment = (std::max)(alignment, b.alignment);
    }
  };
  struct bin {
    std::uint64_t size;
    std::vector<chunk> chunks{};
  };

  [[nodiscard]] bool is_small(std::size_t i) const noexcept { return problem_.blocks[i].bytes <= most_small; }
  /// Of the last bin, or else of the bins before it, which are larger: the nearest first.
  chunk& chunk_for(std::size_t i, work_budget& budget) {
    for (std::size_t b = bins_.size(); b-- > 0;) {
      for (chunk& c : bins_[b].chunks) {
        budget.take(1);
        if (c.has_room(problem_.blocks[i])) return c;
      }
    }
    budget.take(1);
    return bins_.back().chunks.emplace_back();
  }
  void lay_out(std::span<std::uint64_t> offsets) {
    for (const bin& b : bins_) {
      std::uint64_t alignment = 1;
      for (const chunk& c : b.chunks) alignment = (std::max)(alignment, c.alignment);
      bytes_ = aligned_up(bytes_, alignment);
      for (const chunk& c : b.chunks) {
        for (const std::size_t i : c.blocks) offsets[i] = bytes_;
        bytes_ += aligned_up(b.size, alignment);
      }
    }
    start_fit(problem_, offsets, [&](std::size_t i) { return is_small(i); });
    std::uint64_t alignment = 1, height = 0;
    for (std::size_t i = 0; i < problem_.blocks.size(); ++i) {
      if (is_small(i)) alignment = (std::max)(alignment, problem_.blocks[i].alignment);
    }
    const std::uint64_t begin = aligned_up(bytes_, alignment);
    for (std::size_t i = 0; i < problem_.blocks.size(); ++i) {
      if (!is_small(i)) continue;
      height = (std::max)(height, offsets[i] + problem_.blocks[i].bytes);
      offsets[i] += begin;
    }
    if (height > 0) bytes_ = begin + height;
  }

  const block_problem& problem_;
  std::uint64_t interval_, bytes_ = 0;
  std::vector<bin> bins_;  // from large to small
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
