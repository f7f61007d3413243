// Blocks placed as an allocator would that knows nothing of the future: in the order of their begins, each
// into the smallest gap that fits, among those that are live then. In n log n steps, whatever overlaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/memory/plans/detail/block_problem.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Free ranges of memory; the last one is endless.
class free_ranges {
 public:
  /// Takes bytes from the smallest range that fits. With alignments above 1 a few small ones are tried, then
  /// one that fits at any offset.
  std::uint64_t take(std::uint64_t bytes, std::uint64_t alignment) {
    auto range = by_size_.lower_bound({bytes, 0});
    for (int tries = 0; range != by_size_.end(); ++tries) {
      const std::uint64_t offset = aligned_up(range->second, alignment);
      if (offset + bytes <= range->second + range->first)
        return cut(range->second, range->first, offset, bytes);
      range = tries < most_tries ? std::next(range) : by_size_.lower_bound({bytes + alignment - 1, 0});
    }
    const std::uint64_t offset = aligned_up(top_, alignment);
    if (offset > top_) add(top_, offset - top_);
    top_ = offset + bytes;
    return offset;
  }
  void give_back(std::uint64_t begin, std::uint64_t bytes) {
    std::uint64_t end = begin + bytes;
    auto next = sizes_.lower_bound(begin);
    if (next != sizes_.end() && next->first == end) {
      end += next->second;
      next = remove(next);
    }
    if (next != sizes_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == begin) {
        begin = before->first;
        remove(before);
      }
    }
    if (end == top_) {
      top_ = begin;
    } else {
      add(begin, end - begin);
    }
  }

 private:
  static constexpr int most_tries = 8;
  using sizes = std::map<std::uint64_t, std::uint64_t>;

  void add(std::uint64_t begin, std::uint64_t bytes) {
    sizes_.emplace(begin, bytes);
    by_size_.emplace(bytes, begin);
  }
  sizes::iterator remove(sizes::iterator range) {
    by_size_.erase({range->second, range->first});
    return sizes_.erase(range);
  }
  std::uint64_t cut(std::uint64_t begin, std::uint64_t bytes, std::uint64_t offset, std::uint64_t taken) {
    remove(sizes_.find(begin));
    if (offset > begin) add(begin, offset - begin);
    const std::uint64_t end = offset + taken;
    if (end < begin + bytes) add(end, begin + bytes - end);
    return offset;
  }

  sizes sizes_;                                                // of the range that begins at an offset
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_size_;  // size, begin
  std::uint64_t top_ = 0;                                      // here the endless range begins
};

/// Places the blocks i for which wanted(i).
template <class Wanted>
void start_fit(const block_problem& problem, std::span<std::uint64_t> offsets, const Wanted& wanted) {
  free_ranges ranges;
  std::size_t ended = 0;
  for (std::size_t i = 0; i < problem.blocks.size(); ++i) {
    const moment_block& b = problem.blocks[i];
    for (; problem.blocks[problem.by_end[ended]].last <= b.first; ++ended) {
      const std::size_t k = problem.by_end[ended];
      if (wanted(k)) ranges.give_back(offsets[k], problem.blocks[k].bytes);
    }
    if (wanted(i)) offsets[i] = ranges.take(b.bytes, b.alignment);
  }
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
