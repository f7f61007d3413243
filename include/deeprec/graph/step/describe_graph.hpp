// A step graph in words, and as a picture for Graphviz.
//
//   explain(g)       step_graph: 4 ops
//                      0 'tables': variable
//                      1 'read': source, external
//                      2 'hash C1': hash (buckets = 1000) of 'read'
//                      3 'update': opaque of 'hash C1', writes 'tables', apply, target
//
//   std::ofstream("step.dot") << graphviz(g, cut);      dot -Tsvg step.dot; ops before the cut in a box
//
// Both take a graph with faults as well: an input that is none is a question mark. Not here: why a cut is
// where it is (explain_cut.hpp).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/passes/stage_cut.hpp>
#include <deeprec/graph/step/detail/graph_words.hpp>
#include <deeprec/graph/step/detail/step_core.hpp>
#include <deeprec/graph/step/step_graph.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// A line for each op: number, name, kind and attributes, inputs, effects, role, place, cost.
///
/// @cost    O(ops + inputs)
/// @threads reentrant
/// @error   throws std::bad_alloc
/// @example @snippet tests/graph/step_graph_test.cpp step_graph
[[nodiscard]] inline std::string explain(const step_graph& graph) {
  const detail::step_core& g = graph.core();
  std::string text = "step_graph: " + std::to_string(g.size()) + (g.size() == 1 ? " op\n" : " ops\n");
  for (index_t v = 0; v < g.size(); ++v) text += detail::op_line(g, v);
  return text;
}

/// The graph in DOT. Variables are boxes, a write is a red edge to one, order without data is dashed
/// (after()) or dotted (effects), gradients are dashed ops, ops that apply them bold; what runs before a
/// stage of the user lies in a cluster.
///
/// @cost    as step_graph::flat()
/// @threads reentrant
/// @error   throws std::bad_alloc
[[nodiscard]] inline std::string graphviz(const step_graph& graph) {
  std::vector<bool> staged;
  if (const result<flat_graph> flat = graph.flat()) {
    for (const index_t c : detail::cuts_after(flat.value(), {}, [](index_t) { return true; }))
      staged.push_back(c > 0);
    for (index_t v = 0; v < graph.size(); ++v) {
      if (!graph.is_run(v)) staged[static_cast<std::size_t>(v)] = false;
    }
  }
  return detail::dot_graph(graph.core(), staged);
}
/// The same with the cluster of a cut.
///
/// @pre     `cut` was made by smart_stage from this graph
/// @cost    O(ops + inputs)
/// @threads reentrant
/// @error   throws std::bad_alloc
[[nodiscard]] inline std::string graphviz(const step_graph& graph, const stage_cut& cut) {
  if (!cut.changes()) return graphviz(graph);
  std::vector<bool> staged;
  for (const op_side side : cut.side) staged.push_back(is_before_cut(side) || side == op_side::earlier);
  return detail::dot_graph(graph.core(), staged);
}

}}  // namespace deeprec::DEEPREC_ABI
