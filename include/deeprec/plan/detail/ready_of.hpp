// The ready set of a tag and its memory, and what it learns.
#pragma once

#include <cstddef>
#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/plan/detail/ranked_ops.hpp>
#include <deeprec/plan/detail/ready_ops.hpp>
#include <deeprec/plan/detail/stealing_ops.hpp>
#include <deeprec/plan/op_costs.hpp>
#include <deeprec/plan/ready_sets.hpp>
#include <deeprec/plan/task_plan.hpp>
#include <deeprec/support/scratch_block.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

template <class Tag>
struct ready_of {
  static_assert(sizeof(Tag) == 0,
                "deeprec::basic_plan_run: no ready set. Fix: ready_set::first_in_first_out, work_stealing or "
                "cost_model.");
};
template <>
struct ready_of<ready_set::first_in_first_out> {
  using set = ready_ops<>;
  static constexpr bool learns = false;
  static index_t bytes_of(index_t ops) noexcept { return scratch_block::bytes_of<set::number>(ops); }
  ready_of(const task_plan& plan, scratch_block& block) : ready(block.take<set::number>(plan.size())) {}
  set ready;
};
template <>
struct ready_of<ready_set::work_stealing> {
  using set = stealing_ops<>;
  static constexpr bool learns = false;
  static index_t bytes_of(index_t ops) noexcept {
    return scratch_block::bytes_of<set::number>(ops) + scratch_block::bytes_of<set::deque>(set::deques);
  }
  ready_of(const task_plan& plan, scratch_block& block)
      : ready(block.take<set::number>(plan.size()), block.take<set::deque>(set::deques)) {}
  set ready;
};
template <>
struct ready_of<ready_set::cost_model> {
  using set = ranked_ops<>;
  static constexpr bool learns = true;
  static index_t words(index_t ops) noexcept {
    return static_cast<index_t>(set::words_for(static_cast<std::size_t>(ops)));
  }
  static index_t bytes_of(index_t ops) noexcept {
    return op_costs::bytes_of(ops) + scratch_block::bytes_of<set::word>(words(ops)) +
           scratch_block::bytes_of<std::int32_t>(ops);
  }
  ready_of(const task_plan& plan, scratch_block& block)
      : costs(plan, block),
        ready(costs.ranks(), block.take<set::word>(words(plan.size())),
              block.take<std::int32_t>(plan.size())) {}
  op_costs costs;
  set ready;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
