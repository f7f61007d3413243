// Streams in words: who is where, why, and who waits for whom.
//
//   assign_streams: 5 ops on 2 streams, work 8, longest path 5; 1 wait of streams for each other, ...
//     stream 0: 3 ops, cost 5: 'lookup user', 'mlp user', 'loss'
//     stream 1: 2 ops, cost 3: 'lookup item', 'mlp item'
//     'item' is a scope of stream 1: 2 ops
//     'loss' on stream 0 waits for 'mlp item' on stream 1
//     there before the step, on no stream: 'table'
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/passes/detail/op_words.hpp>
#include <deeprec/graph/passes/stream_assignment.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// What assign_streams decided, in words. Lists end after `most_listed`.
///
/// @pre     `made` is of this graph
/// @cost    O(ops + streams + waits)
/// @threads reentrant
/// @error   bad_alloc
/// @example @snippet tests/graph/assign_streams_test.cpp assign_streams
[[nodiscard]] inline std::string explain(const flat_graph& graph, const stream_assignment& made,
                                         index_t most_listed = 12) {
  using words = detail::op_words;
  const words in{graph, most_listed};
  const auto at = [](auto i) { return static_cast<std::size_t>(i); };
  const stream_plan& plan = made.plan;
  const auto size = [](const auto& list) { return static_cast<index_t>(list.size()); };
  const index_t events = std::count_if(plan.steps.begin(), plan.steps.end(),
                                       [](const stream_plan::step& s) { return s.recorded; });
  std::string text = "assign_streams: " + words::counted(size(plan.steps), "op") + " on " +
                     words::counted(plan.streams, "stream") + ", work " + words::number(made.work) +
                     ", longest path " + words::number(made.longest_path) +
                     (made.costs_known ? "" : " (no costs: each op counts as one)") + "; " +
                     words::counted(plan.waits(), "wait") + " of streams for each other, " +
                     words::counted(size(plan.forks), "stream") + " after the start, " +
                     words::counted(size(plan.joins), "wait") + " at the end, " +
                     words::counted(events + (plan.forks.empty() ? 0 : 1), "event") + '\n';
  std::vector<std::vector<index_t>> on(at(plan.streams)), in_scope(made.scopes.size());
  std::vector<index_t> idle;
  for (const stream_plan::step& step : plan.steps) on[at(step.stream)].push_back(step.op);
  std::vector<index_t> led;
  for (index_t v = 0; v < graph.size(); ++v) {
    if (made.scope[at(v)] >= 0) in_scope[at(made.scope[at(v)])].push_back(v);
    if (made.stream[at(v)] < 0) idle.push_back(v);
    if (made.leader[at(v)] != v) led.push_back(v);
  }
  for (std::size_t s = 0; s < on.size(); ++s) {
    text += "  stream " + std::to_string(s) + ": " + words::counted(size(on[s]), "op") + ", cost " +
            words::number(made.load[s]) + (on[s].empty() ? "" : ": ") + in.listed(on[s]) + '\n';
  }
  for (std::size_t s = 0; s < in_scope.size(); ++s) {
    const int stream = made.scopes[s].stream;
    text += "  '" + made.scopes[s].name + "' is a scope of " +
            (stream < 0 ? std::string("any stream") : "stream " + std::to_string(stream)) + ": " +
            words::counted(size(in_scope[s]), "op") + '\n';
  }
  for (std::size_t i = 0; i < led.size(); ++i) {
    if (static_cast<index_t>(i) == most_listed) {
      text += "  and " + words::counted(size(led) - most_listed, "op") + " more with a leader\n";
      break;
    }
    text += "  " + in.named(led[i]) + " is on the stream of " + in.named(made.leader[at(led[i])]) + '\n';
  }
  index_t said = 0;
  for (const stream_plan::step& step : plan.steps) {
    for (const index_t u : step.waits) {
      if (said++ >= most_listed) continue;
      text += "  " + in.named(step.op) + " on stream " + std::to_string(step.stream) + " waits for " +
              in.named(u) + " on stream " + std::to_string(made.stream[at(u)]) + '\n';
    }
  }
  if (said > most_listed) text += "  and " + words::counted(said - most_listed, "wait") + " more\n";
  if (!idle.empty()) text += "  there before the step, on no stream: " + in.listed(idle) + '\n';
  return text;
}

}}  // namespace deeprec::DEEPREC_ABI
