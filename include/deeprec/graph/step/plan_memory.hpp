// One block for the values of a step, in which those share bytes that are never needed at once.
//
//   program.run(pool, state).or_throw();                                   tells the sizes
//   value_plan plan = plan_memory(program, state).or_throw();
//   place_values(program, state, plan).or_throw();
//
//   ops      0     1     2     3     4            one block
//   a        made──used                           | a   | d        |
//   b              made────────used               | b        | e   |
//   d                    made──used               a value lives from the op that makes it to the last one
//   e                                made         that takes it, or takes what may refer to it
//
// Only values whose batch_traits have place() take part, with the bytes that they hold themselves. An output
// that holds none refers to inputs of its op, those that its memory() overlaps; one whose type has no
// memory() may refer to all of them. Inputs live as long as what refers to them.
// Not here: scratch memory of ops (memory/planned_resource.hpp).
#pragma once

#include <deeprec/core/config.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/graph/step/detail/value_places.hpp>
#include <deeprec/graph/step/staged_program.hpp>
#include <deeprec/graph/step/step_program.hpp>
#include <deeprec/graph/step/value_plan.hpp>
#include <deeprec/memory/plans/block_plan.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Plans the memory of the values of a step.
///
/// @param sizes  a state in which a step has run: values are as large as they are there
/// @pre     an op that leaves a reference to an input in a variable is followed only by ops that take this
///          input too
/// @numerics deterministic, as plan_blocks
/// @cost    O(ops + inputs), and plan_blocks of the values
/// @threads reentrant
/// @error   unsupported: a program whose ops run for parts or on threads; as plan_blocks. Throws
///          std::bad_alloc
/// @example @snippet tests/graph/plan_memory_test.cpp plan_memory
[[nodiscard]] inline result<value_plan> plan_memory(const step_program& program, const step_state& sizes,
                                                    const block_plan_options& options = {}) {
  return detail::plan_values(detail::state_access::storage(sizes), program.plan(),
                             detail::state_access::storage(sizes).runner == nullptr, options);
}
/// The same, for the values that are there once: of the ops behind the last cut.
[[nodiscard]] inline result<value_plan> plan_memory(const staged_program& program,
                                                    const block_plan_options& options = {}) {
  return detail::plan_values(detail::staged_access::home(program), detail::staged_access::rest(program),
                             detail::staged_access::runs_in_turn(program), options);
}

/// Moves the values of a state to their places, in a block of the state's resource.
///
/// @pre     no step of the state is in flight
/// @post    steps have the same bits. After a step, values that an op took and that are not kept
///          (step_graph::keep) have no content. A value that gets larger than its place takes memory of its
///          own
/// @cost    one allocation
/// @threads one at a time for one state
/// @error   unsupported: as plan_memory; shape_mismatch: the plan is of another graph. Throws what the
///          resource throws: the state is as it was
inline result<void> place_values(step_state& state, const value_plan& memory) {
  detail::step_storage& storage = detail::state_access::storage(state);
  return detail::place_in(storage, memory, storage.runner == nullptr);
}
/// The same, for the values behind the last cut.
inline result<void> place_values(staged_program& program, const value_plan& memory) {
  return detail::place_in(detail::staged_access::home(program), memory,
                          detail::staged_access::runs_in_turn(program));
}

}}  // namespace deeprec::DEEPREC_ABI
