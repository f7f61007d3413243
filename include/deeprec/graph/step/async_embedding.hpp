// Makes the lookups of a step run ahead of it, on rows that are some updates old: DeepRec's asynchronous
// embedding lookup, with a bound.
//
//   read ─│io│─ hash ─ lookup ─ loss ─ update        becomes, with a window of W,
//   read ─│io│─ hash ─ lookup (stale_read, W) ─│async embedding│─ loss ─ update
//
//   async_graph ahead = async_embedding(g, {.window = 2}).or_throw();
//   staged_program program = staged_program::compile(ahead.graph).or_throw();
//
// Lookup t sees the updates up to t - W and no others (staged_program.hpp). What a lookup needs runs ahead
// with it, all that smart_stage would move included; the rest stays. Not here: tables at a server
// (schedule/stale_loop.hpp).
#pragma once

#include <string>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/step/any_value.hpp>
#include <deeprec/graph/step/async_graph.hpp>
#include <deeprec/graph/step/detail/async_embedding_pass.hpp>
#include <deeprec/graph/step/step_graph.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// A copy of a graph in which the ops of some kinds read what training changes W - 1 steps ahead.
///
/// @post    the graph is unchanged. What a lookup needs is before the new stage; a value that ops on both
///          sides take crosses it once
/// @numerics with a window of 1 the same bits; with another one they depend on the window only
/// @cost    O(ops + inputs), and as step_graph::check()
/// @threads reentrant
/// @error   as step_graph::flat() of the graph; invalid_value: a window below 1; no op of these kinds, or
///          none that reads what an op behind it changes; and of the graph that was made, with the ops'
///          names: what runs ahead changes what a lookup reads, as keys that are admitted do, or reads what
///          changes without being a lookup. Throws std::bad_alloc
/// @example @snippet tests/graph/async_embedding_test.cpp async_embedding
/// @source  DeepRec, async_embedding_stage.py; the bound is ours
[[nodiscard]] inline result<async_graph> async_embedding(const step_graph& graph,
                                                         const async_embedding_options& options = {}) {
  if (options.window < 1) {
    return fault(errc::invalid_value, "async_embedding: the window must be at least 1 (was " +
                                          std::to_string(options.window) + ')');
  }
  const result<flat_graph> flat = graph.flat();
  if (!flat) return flat.fault();
  return detail::async_embedding_pass(graph, flat.value(), options).run();
}

/// The lookups, and what crosses the new stage.
///
/// @cost    O(ops)
/// @threads reentrant
/// @error   throws std::bad_alloc
[[nodiscard]] inline std::string explain(const async_graph& made) {
  const auto names = [&](const std::vector<index_t>& ops) {
    std::string all;
    for (const index_t v : ops) all += (all.empty() ? "'" : ", '") + std::string(made.graph.name(v)) + "'";
    return all;
  };
  if (made.stage < 0)
    return "async_embedding: a window of 1 is synchronous, in the step: " + names(made.lookups) + '\n';
  std::string text = "async_embedding: window " + std::to_string(made.window) + ", lookups " +
                     names(made.lookups) + "\n  ahead: " + names(made.ahead) + "\n  across '" +
                     std::string(made.graph.name(made.stage)) + "':";
  for (index_t i = 0; i < made.graph.inputs(made.stage); ++i) {
    const any_value v = made.graph.input(made.stage, i);
    text += (i == 0 ? " '" : ", '") + std::string(made.graph.name(v.op())) + "'";
    if (v.port() > 0) text += " (output " + std::to_string(v.port()) + ')';
  }
  return text + '\n';
}

}}  // namespace deeprec::DEEPREC_ABI
