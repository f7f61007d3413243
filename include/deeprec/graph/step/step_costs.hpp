// Costs and sizes of a step graph as they were measured: what smart_stage balances.
//
//   trace_recorder trace;   context ctx{pool};   ctx.trace = &trace;
//   for (int i = 0; i < 20; ++i) program.run(ctx, state).or_throw();
//   take_costs(g, trace);                        seconds of each op
//   take_bytes(g, state);                        bytes of each value
//   stage_cut cut = smart_stage(g.flat().or_throw(), {.cost_per_byte = 1e-10}).or_throw();
#pragma once

#include <cstdint>
#include <string_view>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/step/detail/step_core.hpp>
#include <deeprec/graph/step/detail/step_layout.hpp>
#include <deeprec/graph/step/step_graph.hpp>
#include <deeprec/graph/step/step_program.hpp>
#include <deeprec/plan/trace_recorder.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Sets the cost of each op that was recorded to the mean of its spans, in seconds; returns how many were.
///
/// @pre     the recorder saw no other graph whose ops have the same numbers and names
/// @cost    as trace_recorder::costs
/// @threads as trace_recorder::costs; one at a time for a graph
/// @error   throws std::bad_alloc
inline index_t take_costs(step_graph& graph, const trace_recorder& trace) {
  index_t taken = 0;
  for (const trace_cost& c : trace.costs()) {
    if (c.op < 0 || c.op >= graph.size() || graph.name(c.op) != std::string_view(c.name)) continue;
    graph.set_cost(c.op, 1e-9 * c.mean_ns);
    ++taken;
  }
  return taken;
}

/// Sets the size of each value to that of the value in a state: batch_traits<T>::bytes, else that of a
/// contiguous range with its elements, else sizeof(T).
///
/// @pre     the state is of a program of this graph
/// @cost    O(values)
/// @threads one at a time
/// @error   none
inline void take_bytes(step_graph& graph, const step_state& state) {
  const detail::step_storage& step = detail::state_access::storage(state);
  for (index_t v = 0; v < graph.size(); ++v) {
    if (graph.kind(v) == op_kind::stage) continue;
    for (index_t port = 0; port < graph.outputs(v); ++port) {
      const std::int32_t slot = step.layout().slot_of(v, port);
      const auto& type = *step.layout().slots()[static_cast<std::size_t>(slot)].type;
      graph.set_bytes(v, port, type.bytes(step.place(slot)));
    }
  }
}

}}  // namespace deeprec::DEEPREC_ABI
