// Offsets for blocks of memory whose lifetimes are known, so that blocks which are live together do not
// overlap and the whole is small.
//
//   bytes  ├──────────────┐     lifetimes {begin, end, bytes, alignment}: of a step that was recorded, or
//          │ B   ┌────────┤     from the compiler of a graph
//          ├─────┤    C   │
//          │ A   └──┬─────┤     block_plan plan = plan_blocks(lifetimes).or_throw();
//          │        │  D  │     place of block i: base + plan.offsets[i]
//          └────────┴─────┘
//               time
//
// Pure: nothing is allocated for the blocks. An allocator that serves a plan should check it first
// (check_block_plan.hpp).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/memory/plans/block_lifetime.hpp>
#include <deeprec/memory/plans/block_policy.hpp>
#include <deeprec/memory/plans/detail/block_planner.hpp>
#include <deeprec/memory/plans/detail/check_lifetimes.hpp>
#include <deeprec/memory/plans/detail/work_budget.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

struct block_plan_options {
  /// What is tried. The smallest plan is taken, of equal ones that of the first in the order of block_policy.
  block_policies policies = {block_policy::by_size,   block_policy::by_size_lowest, block_policy::by_area,
                             block_policy::by_length, block_policy::by_start,       block_policy::by_breadth,
                             block_policy::search};
  /// The most that each order and each interval of `binned` may take, in looks at a block; what would take
  /// more is left out. 2^28 take about half a second. by_start is never left out.
  std::uint64_t order_steps = std::uint64_t{1} << 28;
  /// The most that `search` may take, in looks at a block at a moment. 2^29 take about a second.
  std::uint64_t search_steps = std::uint64_t{1} << 29;
  /// The most time that the call may take, but for by_start. With a limit the plan may depend on the clock;
  /// without one, the default, no clock is read.
  std::optional<std::chrono::nanoseconds> time_limit{};
};

/// Where blocks lie.
///
/// @threads immutable once made; thread-safe
struct block_plan {
  std::vector<std::size_t> offsets;  ///< of each block; of blocks of 0 bytes 0
  std::size_t bytes = 0;             ///< of the whole
  std::size_t live_bytes = 0;        ///< the most bytes that are live at one time
  std::size_t bound = 0;  ///< no plan is smaller: live_bytes, more by alignment or where the search proved it
  block_policy policy = block_policy::by_start;  ///< made the plan of the section that takes the most
  std::uint64_t search_steps = 0;                ///< that the search took

  /// Whether no plan is smaller.
  [[nodiscard]] bool optimal() const noexcept { return bytes == bound; }
};

/// Finds offsets for blocks.
///
/// Time is cut into sections where no block is live across; each takes its smallest plan. `search` begins
/// with that, and improves the sections of up to 2048 blocks that stand in the way of a smaller whole. Where
/// no policy comes to an end within its budget, the plan is that of by_start.
///
/// @post     what check_block_plan checks; bytes >= bound >= live_bytes
/// @numerics deterministic without a time limit; the order of `blocks` has no influence, but that equal
///           blocks may change places
/// @cost     by_start O(n log n); another order O(n (log n + k log k)) where a block overlaps k others, and
///           at most order_steps; search at most search_steps. Memory O(n); search O(m^2) for sections of m
///           blocks
/// @threads  reentrant
/// @error    invalid_value: a block, at place().item, whose end is not after its begin, whose alignment is
///           not a power of two, or with which the sum of all bytes and alignments reaches 2^62; 2^31 blocks;
///           policies that are none, or not of block_policy. Throws std::bad_alloc
/// @example  @snippet tests/memory/block_plan_test.cpp plan_blocks
/// @source   orders: TensorFlow Lite's arena planner (by_size, by_breadth), XLA's heap simulator; binned:
///           DeepRec's MemoryPlanner; search: Moffitt, MiniMalloc (ASPLOS'23), and restarts by conflicts
[[nodiscard]] inline result<block_plan> plan_blocks(std::span<const block_lifetime> blocks,
                                                    const block_plan_options& options = {}) {
  if (blocks.size() > detail::most_planned_blocks) {
    return status(errc::invalid_value, "plan_blocks: blocks must be fewer than 2^31",
                  {.value = static_cast<std::int64_t>(blocks.size())});
  }
  if (options.policies.empty())
    return status(errc::invalid_value, "plan_blocks: policies must name one at least");
  if (!options.policies.are_known())
    return status(errc::invalid_value, "plan_blocks: policies must be of block_policy");
  if (const status s = detail::check_lifetimes(blocks); !s.ok()) return s;
  std::optional<detail::work_budget::clock::time_point> deadline;
  if (options.time_limit) deadline = detail::work_budget::after(*options.time_limit);
  const detail::block_problem problem(blocks);
  detail::block_planner planner(problem, deadline);
  block_plan plan;
  for (const block_policy p : {block_policy::by_size, block_policy::by_size_lowest, block_policy::by_area,
                               block_policy::by_length, block_policy::by_start, block_policy::by_breadth}) {
    if (options.policies.has(p)) planner.place(p, options.order_steps);
  }
  if (options.policies.has(block_policy::binned)) planner.place_in_bins(options.order_steps);
  if (options.policies.has(block_policy::search)) plan.search_steps = planner.search(options.search_steps);
  if (!planner.has_plan()) planner.place(block_policy::by_start, 0);
  plan.bytes = planner.bytes();
  plan.live_bytes = problem.live_bytes();
  plan.bound = planner.bound();
  plan.policy = planner.policy();
  plan.offsets.assign(blocks.size(), 0);
  for (std::size_t i = 0; i < problem.number.size(); ++i)
    plan.offsets[problem.number[i]] = planner.offsets()[i];
  return plan;
}

}}  // namespace deeprec::DEEPREC_ABI
