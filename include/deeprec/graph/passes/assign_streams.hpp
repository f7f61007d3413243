// Gives the ops of a graph streams, so that independent parts of a step overlap on a device.
//
//   table ─> lookup user ─> mlp user ──┐            stream 0   lookup user  mlp user ────> loss
//   table ─> lookup item ─> mlp item ──┴─> loss     stream 1   lookup item  mlp item ──/
//
//   const stream_assignment made = assign_streams(graph, 4, {.scopes = {{"item", 1}}}).or_throw();
//   std::puts(explain(graph, made).c_str());                     explain_streams.hpp
//   pool.run(made.plan, launch).or_throw();                      cuda_stream_pool.hpp
//
// What is there before a step (constants, handles of variables, placeholders) is on no stream, and nothing
// waits for it. Chains, waits and the order of launches are those of plan_streams. Not here: where ops run.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/ir/graph_adaptor.hpp>
#include <deeprec/graph/passes/detail/op_words.hpp>
#include <deeprec/graph/passes/detail/stream_wishes.hpp>
#include <deeprec/graph/passes/stream_assignment.hpp>
#include <deeprec/plan/stream_plan.hpp>
#include <deeprec/plan/task_plan.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Assigns the ops of a graph to streams 0 ... streams - 1; stream 0 is the caller's. The graph is not
/// changed.
///
/// @post     every op is ordered after what it needs, takes of a stage after its puts; no wait is implied by
///           the others. An op is on the stream of its leader, at the end of a chain of leaders too; else on
///           that of its innermost scope
/// @numerics deterministic: the same assignment for the same graph and requests
/// @cost     as plan_streams
/// @threads  reentrant
/// @error    invalid_value, named in the text: streams below 1; a scope of a stream that does not exist
///           (value = the stream), of no op, without a name or given twice; a colocation of an op that does
///           not exist, with itself, with two leaders or in a circle (item = the op). Costs, edges and cycles
///           are checked by flat_graph_builder::build(). Throws std::bad_alloc
/// @example  @snippet tests/graph/assign_streams_test.cpp assign_streams
/// @source   streams of a model's parts: DeepRec, multi_stream_optimizer.cc
[[nodiscard]] inline result<stream_assignment> assign_streams(const flat_graph& graph, int streams,
                                                              const stream_requests& wanted = {}) {
  if (streams < 1) {
    return detail::refused("assign_streams: streams must be at least 1", std::to_string(streams), -1,
                           streams);
  }
  stream_assignment made;
  detail::stream_wishes wishes(graph, made);
  if (auto wrong = wishes.read(wanted, streams)) return std::move(*wrong);
  const task_list work = wishes.work();
  result<task_plan> tasks = task_plan::compile(work, task_order::as_added);
  if (!tasks) return tasks.fault();
  if (const status s = plan_streams(tasks.value(), streams, made.plan); !s) return s;

  const auto at = [](auto i) { return static_cast<std::size_t>(i); };
  const auto number = [&](index_t& task) { task = wishes.ops[at(task)]; };
  made.stream.assign(at(graph.size()), -1);
  made.load.assign(at(streams), 0);
  for (stream_plan::step& step : made.plan.steps) {
    number(step.op);
    for (index_t& u : step.waits) number(u);
    // Equal plans of the numbers of tasks may be of other ops.
    made.plan.topology = mix64(made.plan.topology ^ static_cast<std::uint64_t>(step.op));
    made.stream[at(step.op)] = step.stream;
    made.stream[at(made.leader[at(step.op)])] = step.stream;
    made.load[at(step.stream)] += wishes.cost(step.op);
    made.work += wishes.cost(step.op);
  }
  for (index_t& u : made.plan.joins) number(u);
  std::vector<double> ends(at(tasks.value().size()));
  for (const std::int32_t task : tasks.value().order()) {
    double begin = 0;
    for (const std::int32_t u : tasks.value().predecessors(task)) begin = (std::max)(begin, ends[at(u)]);
    ends[at(task)] = begin + tasks.value().cost(task);
    made.longest_path = (std::max)(made.longest_path, ends[at(task)]);
  }
  // Who leads somebody is on a stream, though it may be no task; whoever follows it and is none, is too.
  for (index_t v = 0; v < graph.size(); ++v) {
    if (made.stream[at(v)] < 0) made.stream[at(v)] = made.stream[at(made.leader[at(v)])];
  }
  return made;
}

/// The same, for a graph that is not ours: copies it first.
template <AdaptedGraph G>
[[nodiscard]] result<stream_assignment> assign_streams(const G& graph, int streams,
                                                       const stream_requests& wanted = {}) {
  result<flat_graph> flat = flatten(graph);
  if (!flat) return flat.fault();
  return assign_streams(flat.value(), streams, wanted);
}

}}  // namespace deeprec::DEEPREC_ABI
