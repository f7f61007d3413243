// Cuts a graph into a worker's part and parts that the servers of its variables run in one call each.
//
//   ids ─> unique ─> gather(table) ─> sum ─> mlp ─> ... ─> gradient ─> update(table)
//   worker │ server 0, a pull             │ worker                   │ server 0, a push
//
//   const graph_parts parts = subgraph_partition(graph, 8, {{table, 0}, ...}).or_throw();
//   std::puts(explain(graph, parts).c_str());                        explain_parts.hpp
//   for (const part_step& step : parts.steps)                        the worker's program
//     step.part >= 0 ? call(parts.parts[step.part]) : run(step.op);
//
// Ops that access a variable run at its server, and ops beside them where that saves more bytes and messages
// than the move costs. Not here: sending; a server that keeps values between calls.
#pragma once

#include <cmath>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/ir/graph_adaptor.hpp>
#include <deeprec/graph/passes/detail/part_calls.hpp>
#include <deeprec/graph/passes/detail/part_rules.hpp>
#include <deeprec/graph/passes/detail/part_search.hpp>
#include <deeprec/graph/passes/detail/part_writer.hpp>
#include <deeprec/graph/passes/graph_parts.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Decides which ops the servers 0 ... servers - 1 run, and in which calls. The graph is not changed.
///
/// @post     an op that accesses a server's variable by an edge from its handle is at that server; stages,
///           placeholders, control flow, external ops, targets, what is placed on a device or accesses other
///           variables is at the worker, or at its variable's server. No call needs what it makes by way of
///           others or of the worker: the calls in their order, and the worker's ops between them, are a
///           topological order. Ops of one call have the same stages ahead of them, and what control flow
///           reaches is alone in its call. The price is not above that of moving nothing
/// @numerics deterministic: the same parts for the same graph
/// @cost     one plan of calls, O((ops + edges) * (servers + calls)), for each partition that is compared;
///           for each server one least cut of bytes and costs at most four times
/// @threads  reentrant
/// @error    invalid_value, with the op's name in the text and its number as item: servers below 1; an owner
///           of an op that does not exist, that is no variable or needs something, or that is given two
///           servers or one that does not exist (value = the server); an op that accesses variables of two
///           servers, or one that can't run at a server; options that are negative or not finite. Throws
///           std::bad_alloc
/// @example  @snippet tests/graph/subgraph_partition_test.cpp subgraph_partition
/// @source   pull and push parts: DeepRec, star_server_graph_partition.cc
[[nodiscard]] inline result<graph_parts> subgraph_partition(const flat_graph& graph, index_t servers,
                                                            const std::vector<variable_owner>& owners,
                                                            const partition_options& options = {}) {
  const auto domain = [](double x) { return x >= 0 && std::isfinite(x); };
  if (!domain(options.cost_per_byte))
    return status(errc::invalid_value, "subgraph_partition: cost_per_byte must be a number from 0");
  if (!domain(options.cost_per_message))
    return status(errc::invalid_value, "subgraph_partition: cost_per_message must be a number from 0");
  if (!domain(options.server_cost))
    return status(errc::invalid_value, "subgraph_partition: server_cost must be a number from 0");
  if (options.most_priced < 0) {
    return status(errc::invalid_value, "subgraph_partition: most_priced must not be negative",
                  {.value = options.most_priced});
  }
  detail::part_rules rules(graph);
  if (auto wrong = rules.read(servers, owners)) return std::move(*wrong);
  const detail::part_graph parts(graph, rules);
  detail::part_search search(graph, rules, parts, servers, options);
  detail::part_calls calls(parts, rules);

  graph_parts made;
  calls.plan(rules.home);
  made.unmoved = calls.traffic();
  made.unmoved_price = search.priced(rules.home);
  const auto where = search.run();
  made.price = search.priced(where);
  calls.plan(where);
  made.traffic = calls.traffic();
  const detail::part_writer writer(graph, rules, parts, calls);
  made.separate = writer.separate();
  writer.write(made);
  made.bound = std::move(rules.why);
  return made;
}

/// The same, for a graph that is not ours: copies it first.
template <AdaptedGraph G>
[[nodiscard]] result<graph_parts> subgraph_partition(const G& graph, index_t servers,
                                                     const std::vector<variable_owner>& owners,
                                                     const partition_options& options = {}) {
  result<flat_graph> flat = flatten(graph);
  if (!flat) return flat.fault();
  return subgraph_partition(flat.value(), servers, owners, options);
}

}}  // namespace deeprec::DEEPREC_ABI
