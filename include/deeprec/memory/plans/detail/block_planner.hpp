// Runs policies, and keeps the smallest plan of each section.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/memory/plans/block_policy.hpp>
#include <deeprec/memory/plans/detail/bin_fit.hpp>
#include <deeprec/memory/plans/detail/block_problem.hpp>
#include <deeprec/memory/plans/detail/gap_fit.hpp>
#include <deeprec/memory/plans/detail/section_search.hpp>
#include <deeprec/memory/plans/detail/start_fit.hpp>
#include <deeprec/memory/plans/detail/work_budget.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// @threads one thread at a time
class block_planner {
 public:
  using deadline = std::optional<work_budget::clock::time_point>;

  block_planner(const block_problem& problem, deadline at_most)
      : problem_(problem),
        deadline_(at_most),
        breadths_(problem.breadths()),
        fit_(problem),
        offsets_(problem.blocks.size()),
        tried_(offsets_.size()) {
    for (const block_problem::section& s : problem.sections) plans_.push_back({s.bound});
  }

  /// One of the orders.
  void place(block_policy policy, std::uint64_t steps) {
    if (policy == block_policy::by_start) {
      start_fit(problem_, tried_, [](std::size_t) { return true; });
      return keep_smaller(policy);
    }
    work_budget budget(steps, deadline_);
    const gap_rule rule = policy == block_policy::by_size_lowest ? gap_rule::lowest : gap_rule::smallest;
    if (fit_.place(order(policy), rule, tried_, budget)) keep_smaller(policy);
  }
  /// Starts from by_start where no order made a plan. Returns the steps taken.
  std::uint64_t search(std::uint64_t steps) {
    if (height() == unplanned) place(block_policy::by_start, 0);
    work_budget budget(steps, deadline_);
    std::vector<std::unique_ptr<section_search>> searches(plans_.size());
    // The highest section, until another one is.
    while (height() > bound() && !budget.is_over()) {
      const std::size_t s = highest();
      plan& best = plans_[s];
      const block_problem::section& section = problem_.sections[s];
      const std::size_t blocks = section.end - section.begin;
      if (blocks > section_search::most_blocks) break;
      if (!searches[s]) searches[s] = std::make_unique<section_search>(problem_, section, breadths_);
      const std::uint64_t before = std::exchange(best.height, 0);
      const std::uint64_t second = height();
      best.height = before;
      searches[s]->run(bound(), second, best.bound, best.height,
                       std::span(offsets_).subspan(section.begin, blocks), budget);
      if (best.height < before) best.policy = block_policy::search;
    }
    return budget.used();
  }
  void place_in_bins(std::uint64_t steps) {
    for (const std::uint64_t interval : bin_fit::intervals) {
      bin_fit bins(problem_, interval);
      work_budget budget(steps, deadline_);
      if (!bins.place(tried_, budget) || bins.bytes() >= binned_bytes_) continue;
      binned_bytes_ = bins.bytes();
      binned_offsets_ = tried_;
    }
  }

  /// False where no policy came to an end.
  [[nodiscard]] bool has_plan() const { return bytes() != unplanned; }
  [[nodiscard]] std::uint64_t bytes() const { return (std::min)(height(), binned_bytes_); }
  [[nodiscard]] std::span<const std::uint64_t> offsets() const {
    return is_binned() ? binned_offsets_ : offsets_;
  }
  [[nodiscard]] block_policy policy() const {
    return is_binned()      ? block_policy::binned
           : plans_.empty() ? block_policy::by_start
                            : plans_[highest()].policy;
  }
  [[nodiscard]] std::uint64_t bound() const {
    std::uint64_t most = 0;
    for (const plan& p : plans_) most = (std::max)(most, p.bound);
    return most;
  }

 private:
  static constexpr std::uint64_t unplanned = (std::numeric_limits<std::uint64_t>::max)();
  // Of a section.
  struct plan {
    std::uint64_t bound;
    std::uint64_t height = unplanned;
    block_policy policy = block_policy::by_start;
  };

  /// The highest section, the first of several.
  [[nodiscard]] std::size_t highest() const {
    const auto lower = [](const plan& a, const plan& b) { return a.height < b.height; };
    return static_cast<std::size_t>(std::max_element(plans_.begin(), plans_.end(), lower) - plans_.begin());
  }
  [[nodiscard]] std::uint64_t height() const { return plans_.empty() ? 0 : plans_[highest()].height; }
  [[nodiscard]] bool is_binned() const { return binned_bytes_ < height(); }

  /// Blocks, the first to be placed first: descending in two numbers, then as they are.
  [[nodiscard]] std::vector<std::size_t> order(block_policy policy) const {
    struct key {
      int128 major;
      std::uint64_t minor;
      std::size_t block;
    };
    std::vector<key> keys;
    keys.reserve(problem_.blocks.size());
    for (std::size_t i = 0; i < problem_.blocks.size(); ++i) {
      const moment_block& b = problem_.blocks[i];
      keys.push_back(policy == block_policy::by_area      ? key{int128{b.bytes} * b.length, b.bytes, i}
                     : policy == block_policy::by_length  ? key{b.length, b.bytes, i}
                     : policy == block_policy::by_breadth ? key{breadths_[i], b.bytes, i}
                                                          : key{b.bytes, b.length, i});
    }
    std::sort(keys.begin(), keys.end(), [](const key& a, const key& b) {
      return a.major != b.major   ? a.major > b.major
             : a.minor != b.minor ? a.minor > b.minor
                                  : a.block < b.block;
    });
    std::vector<std::size_t> blocks;
    blocks.reserve(keys.size());
    for (const key& k : keys) blocks.push_back(k.block);
    return blocks;
  }
  void keep_smaller(block_policy policy) {
    for (std::size_t s = 0; s < plans_.size(); ++s) {
      std::uint64_t height = 0;
      const block_problem::section& section = problem_.sections[s];
      for (std::size_t i = section.begin; i < section.end; ++i)
        height = (std::max)(height, tried_[i] + problem_.blocks[i].bytes);
      if (height >= plans_[s].height) continue;
      plans_[s].height = height;
      plans_[s].policy = policy;
      for (std::size_t i = section.begin; i < section.end; ++i) offsets_[i] = tried_[i];
    }
  }

  const block_problem& problem_;
  deadline deadline_;
  std::vector<std::uint64_t> breadths_;
  gap_fit fit_;
  std::vector<std::uint64_t> offsets_, tried_, binned_offsets_;
  std::uint64_t binned_bytes_ = unplanned;
  std::vector<plan> plans_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
