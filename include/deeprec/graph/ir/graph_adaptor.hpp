// Lets the passes read a graph that is not ours: three functions say what its ops and edges are.
//
//   template <> struct deeprec::graph_adaptor<their_graph> {
//     static index_t size(const their_graph& g) { return g.nodes.size(); }
//     static op_info op(const their_graph& g, index_t i) { return {.name = g.nodes[i].label, ...}; }
//     template <class Each>
//     static void for_each_edge(const their_graph& g, Each each) { each(edge_info{...}); }
//   };
//   result<flat_graph> flat = flatten(their_graph);     one copy, checked; the passes work on it
//
// The graph itself is never changed: what a pass returns refers to ops by their numbers.
#pragma once

#include <concepts>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// To be specialized for a graph: `size(g)`, `op(g, i)` and `for_each_edge(g, each)`, all static. The texts
/// of an op_info need to live until `op` is called again.
template <class G>
struct graph_adaptor;

namespace detail {
struct edge_taker {
  void operator()(const edge_info&) const noexcept {}
};
}  // namespace detail

/// A graph with a graph_adaptor.
template <class G>
concept AdaptedGraph = requires(const G& g, index_t i, detail::edge_taker each) {
  { graph_adaptor<G>::size(g) } -> std::convertible_to<index_t>;
  { graph_adaptor<G>::op(g, i) } -> std::convertible_to<op_info>;
  graph_adaptor<G>::for_each_edge(g, each);
};

/// A flat graph is one already.
template <>
struct graph_adaptor<flat_graph> {
  static index_t size(const flat_graph& g) noexcept { return g.size(); }
  static op_info op(const flat_graph& g, index_t i) noexcept { return g.op(i); }
  template <class Each>
  static void for_each_edge(const flat_graph& g, Each each) {
    for (index_t e = 0; e < g.edge_count(); ++e) each(g.edge(e));
  }
};

/// Copies a graph into arrays, and checks it.
///
/// @cost    as flat_graph_builder::build()
/// @threads reentrant
/// @error   as flat_graph_builder::build()
/// @example @snippet tests/graph/flat_graph_test.cpp graph_adaptor
template <class G>
[[nodiscard]] result<flat_graph> flatten(const G& graph) {
  static_assert(
      AdaptedGraph<G>,
      "deeprec::flatten: this type has no graph_adaptor. Fix: specialize deeprec::graph_adaptor for it, with "
      "the static functions size, op and for_each_edge");
  flat_graph_builder builder;
  const index_t ops = graph_adaptor<G>::size(graph);
  builder.reserve(ops, 0);
  for (index_t i = 0; i < ops; ++i) builder.add(op_info(graph_adaptor<G>::op(graph, i)));
  graph_adaptor<G>::for_each_edge(graph, [&](const edge_info& edge) { builder.add(edge); });
  return builder.build();
}

}}  // namespace deeprec::DEEPREC_ABI
