// Random graphs of tasks for the tests of plans, and what a step over one must compute: each op mixes the
// values of its predecessors, so a value tells whether they had ended.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/hash.hpp>
#include <deeprec/plan/task_plan.hpp>

namespace deeprec_test {

using namespace deeprec;

struct task_graph {
  std::vector<std::vector<index_t>> before;  // of each op, ascending
  std::vector<int> kind;

  [[nodiscard]] std::size_t size() const { return before.size(); }
};

/// One step in flight.
struct graph_step {
  explicit graph_step(const task_graph& of) : graph(&of), value(of.size()), ran(of.size()) {}

  const task_graph* graph;
  std::vector<std::uint64_t> value;  // plain: a thread sanitizer sees a dependency that is not kept
  std::vector<int> ran;
  std::vector<char> fails = {}, throws = {};
  index_t stops = -1;
  std::stop_source stop = {};
};

inline status run_op(graph_step& step, index_t op) {
  const auto i = static_cast<std::size_t>(op);
  ++step.ran[i];
  std::uint64_t mixed = mix64(i + 1);
  for (const index_t u : step.graph->before[i])
    mixed = mix64(mixed ^ step.value[static_cast<std::size_t>(u)]);
  step.value[i] = mixed;
  if (op == step.stops) step.stop.request_stop();
#if DEEPREC_EXCEPTIONS
  if (!step.throws.empty() && step.throws[i] != 0) throw std::runtime_error("thrown");
#endif
  if (!step.fails.empty() && step.fails[i] != 0) return {errc::io_error, "run_op: the file must exist"};
  return {};
}

template <int Kind>
struct op_of_kind {
  status operator()(const task_call& call) const { return run_op(call.in<graph_step>(), call.op); }
};
inline status op_function(void* state, const task_call& call) {
  static_cast<void>(state);
  return run_op(call.in<graph_step>(), call.op);
}

inline task_graph random_graph(std::mt19937_64& random, std::size_t ops, double edges, int kinds = 4) {
  task_graph made;
  std::uniform_real_distribution<double> unit(0, 1);
  std::vector<index_t> rank(ops);  // so that edges go in both directions of the numbers
  for (std::size_t i = 0; i < ops; ++i) rank[i] = static_cast<index_t>(i);
  if (random() % 2 == 0) std::shuffle(rank.begin(), rank.end(), random);
  made.before.resize(ops);
  for (std::size_t v = 0; v < ops; ++v) {
    made.kind.push_back(static_cast<int>(random() % static_cast<unsigned>(kinds)));
    for (std::size_t u = 0; u < ops; ++u) {
      if (rank[u] < rank[v] && unit(random) < edges) made.before[v].push_back(static_cast<index_t>(u));
    }
  }
  return made;
}

/// The list of a graph. One edge may be left out: a plan that is wrong.
inline task_list list_of(const task_graph& graph, std::pair<index_t, index_t> without = {-1, -1}) {
  task_list made;
  for (std::size_t v = 0; v < graph.size(); ++v) {
    const std::string name = "t" + std::to_string(v);
    switch (graph.kind[v]) {
      case 0:
        made.add(name, op_of_kind<0>());
        break;
      case 1:
        made.add(name, op_of_kind<1>());
        break;
      case 2:
        made.add(name, op_function, nullptr);
        break;
      default:
        made.add(name, op_of_kind<3>());
    }
  }
  for (std::size_t v = 0; v < graph.size(); ++v) {
    for (const index_t u : graph.before[v]) {
      if (std::pair(u, static_cast<index_t>(v)) != without) made.edge(u, static_cast<index_t>(v));
    }
  }
  return made;
}

/// The values of a step, by definition: an op when all of its predecessors have been interpreted.
inline std::vector<std::uint64_t> interpreted(const task_graph& graph) {
  graph_step step(graph);
  for (bool more = true; more;) {
    more = false;
    for (std::size_t v = 0; v < graph.size(); ++v) {
      bool ready = step.ran[v] == 0;
      for (const index_t u : graph.before[v]) ready = ready && step.ran[static_cast<std::size_t>(u)] == 1;
      if (!ready) continue;
      static_cast<void>(run_op(step, static_cast<index_t>(v)));
      more = true;
    }
  }
  return step.value;
}

/// What is wrong with a step that ran to its end; empty: nothing.
inline std::string step_fault(const graph_step& step, const std::vector<std::uint64_t>& expected) {
  for (std::size_t v = 0; v < step.ran.size(); ++v) {
    if (step.ran[v] != 1) return "t" + std::to_string(v) + " ran " + std::to_string(step.ran[v]) + " times";
    if (step.value[v] != expected[v]) return "t" + std::to_string(v) + " ran too early";
  }
  return {};
}

}  // namespace deeprec_test
