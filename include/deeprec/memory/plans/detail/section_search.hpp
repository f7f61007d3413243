// The search for a smaller plan of one section: which capacities are tried, in which orders, for how long.
//
//   bound ├────────┬────────┤ height    in turn at the bound and halfway to the best plan: where they fit the
//         ×        ×                    height falls, where they do not the bound rises
//
// A run that finds nothing soon finds nothing for long: runs are short, and each phase doubles them. A phase
// has four fixed orders, and those with what did not fit in earlier runs first.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/memory/plans/detail/block_problem.hpp>
#include <deeprec/memory/plans/detail/capacity_search.hpp>
#include <deeprec/memory/plans/detail/work_budget.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// @threads one thread at a time
class section_search {
 public:
  /// With more blocks than that a first descent alone takes too long.
  static constexpr std::size_t most_blocks = 2048;

  /// @param breadth  of each block of the problem
  section_search(const block_problem& problem, const block_problem::section& section,
                 std::span<const std::uint64_t> breadth)
      : moments_(problem.blocks.data() + section.begin, section.end - section.begin),
        breadth_(breadth.subspan(section.begin, moments_.size())),
        unit_(unit_of(moments_)),
        blocks_(moments_.size()),
        search_(blocks_, section.last_moment - section.first_moment),
        weights_(moments_.size()),
        rank_(moments_.size()),
        nodes_(1000 + 4 * moments_.size()) {
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      const moment_block& b = moments_[i];
      const std::uint64_t size = (b.bytes + unit_ - 1) / unit_;
      blocks_[i] = {b.first - section.first_moment, b.last - section.first_moment,
                    static_cast<std::int64_t>(size),
                    b.alignment > unit_ ? static_cast<std::int64_t>(b.alignment / unit_) : 1};
      padding_ = (std::max)(padding_, size * unit_ - b.bytes);
    }
  }

  /// Looks for plans of at most `enough` bytes, until `height` is below `until` or no more than `enough` or
  /// `bound`, or the budget is over. The next call goes on from there.
  ///
  /// @param bound    no plan is smaller; may rise
  /// @param height   of the plan in `offsets`; falls with each better one
  void run(std::uint64_t enough, std::uint64_t until, std::uint64_t& bound, std::uint64_t& height,
           std::span<std::uint64_t> offsets, work_budget& budget) {
    while (height >= until && height > (std::max)(enough, bound) && !budget.is_over()) {
      const std::uint64_t least = (std::max)(enough, bound);
      const std::size_t k = turn_ / 2;
      if (turn_ % 2 == 0 || height - least > unit_) {
        const std::uint64_t capacity = turn_ % 2 == 0 ? least : least + (height - least) / 2;
        order(k % fixed_orders, k >= fixed_orders);
        const auto answer = attempt(capacity, budget);
        if (answer == capacity_search::answer::fits) {
          height = take(offsets);
        } else if (answer == capacity_search::answer::does_not_fit) {
          bound = next_capacity();
          continue;
        }
      }
      if (++turn_ < 2 * orders) continue;
      turn_ = 0;
      nodes_ *= 2;
    }
  }

 private:
  static constexpr std::size_t fixed_orders = 4, orders = 4 * fixed_orders;

  /// What each offset of a plan whose blocks all lie on others is a multiple of.
  static std::uint64_t unit_of(std::span<const moment_block> blocks) {
    std::uint64_t least = blocks[0].alignment, most = least, sizes = 0;
    for (const moment_block& b : blocks) {
      least = (std::min)(least, b.alignment);
      most = (std::max)(most, b.alignment);
    }
    for (const moment_block& b : blocks) sizes = std::gcd(sizes, aligned_up(b.bytes, least));
    return sizes % most == 0 ? sizes : std::gcd(sizes, most);
  }

  capacity_search::answer attempt(std::uint64_t capacity, work_budget& budget) {
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      blocks_[i].highest = capacity < moments_[i].bytes
                               ? -1
                               : static_cast<std::int64_t>((capacity - moments_[i].bytes) / unit_);
    }
    units_ = (capacity + padding_) / unit_;
    const auto answer = search_.run(static_cast<std::int64_t>(units_), rank_, nodes_, budget);
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      weights_[i] +=
          search_.conflicts()[i] * conflict_weight / static_cast<std::int64_t>(nodes_) - weights_[i] / 8;
    }
    return answer;
  }
  /// The least one that permits more than the last one tried.
  [[nodiscard]] std::uint64_t next_capacity() const noexcept {
    std::uint64_t least = (units_ + 1) * unit_ - padding_;
    for (std::size_t i = 0; i < blocks_.size(); ++i)
      least =
          (std::min)(least, static_cast<std::uint64_t>(blocks_[i].highest + 1) * unit_ + moments_[i].bytes);
    return least;
  }
  std::uint64_t take(std::span<std::uint64_t> offsets) const {
    std::uint64_t height = 0;
    for (std::size_t i = 0; i < offsets.size(); ++i) {
      offsets[i] = static_cast<std::uint64_t>(search_.offsets()[i]) * unit_;
      height = (std::max)(height, offsets[i] + moments_[i].bytes);
    }
    return height;
  }

  void order(std::size_t fixed, bool by_weight) {
    std::vector<std::size_t> blocks(blocks_.size());
    std::iota(blocks.begin(), blocks.end(), std::size_t{0});
    std::vector<std::array<double, 4>> keys(blocks.size());
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const auto breadth = static_cast<double>(breadth_[i]);
      const auto length = static_cast<double>(moments_[i].length);
      const double area = length * static_cast<double>(moments_[i].bytes);
      const double weight = by_weight ? static_cast<double>(weights_[i]) : 0;
      keys[i] = fixed == 0   ? std::array{weight, breadth, length, area}
                : fixed == 1 ? std::array{weight, breadth, area, length}
                : fixed == 2 ? std::array{weight, length, area, breadth}
                             : std::array{weight, area, length, breadth};
    }
    std::stable_sort(blocks.begin(), blocks.end(),
                     [&](std::size_t a, std::size_t b) { return keys[a] > keys[b]; });
    for (std::size_t i = 0; i < blocks.size(); ++i) rank_[blocks[i]] = static_cast<std::int32_t>(i);
  }

  static constexpr std::int64_t conflict_weight = 1 << 16;
  std::span<const moment_block> moments_;
  std::span<const std::uint64_t> breadth_;
  std::uint64_t unit_, padding_ = 0, units_ = 0;
  std::vector<search_block> blocks_;
  capacity_search search_;
  std::vector<std::int64_t> weights_;
  std::vector<std::int32_t> rank_;
  std::uint64_t nodes_;   // that a run may look at
  std::size_t turn_ = 0;  // of a phase: an order, at the bound and then halfway
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
