// Replaces groups of ops by one op each, which does the same in one pass over memory, or with one call.
//
//   const fused_graph made = fuse(g, {scale_add, bias_relu}).or_throw();
//   std::puts(explain(made).c_str());        bias_relu: 'product', 'biased', 'hidden' -> 'hidden', dense
//   step_program::compile(made.graph)        the bits of g, where each macro op has those of its ops
//
// A match is private: nobody outside takes, and the caller does not keep, a value that the macro op does not
// make. It is convex: no path leaves it and comes back. Its ops have one role, one place, lie before the same
// stages and are neither external nor id lookups; the macro op comes after all that they come after, and
// before all that comes after one of them. So a value that is read from the state of a program is kept first
// (step_graph::keep), and read through `moved`.
#pragma once

#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/step/fusion/detail/graph_fuser.hpp>
#include <deeprec/graph/step/fusion/fused_graph.hpp>
#include <deeprec/graph/step/fusion/step_pattern.hpp>
#include <deeprec/graph/step/step_graph.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

struct fuse_options {
  /// How many refusals are told.
  index_t most_refused = 32;
};

/// The graph with macro ops in the place of what the patterns match, until none of them matches: no two
/// matches overlap, and none is left. Where they would overlap, the earlier pattern comes first, then the
/// match whose last op comes first in the order of the graph; a macro op of the type in which its pattern
/// ends is the last op of the next match, where there is one. The first graph is not changed.
///
/// @post     the ops of `graph` are numbered in an order in which they may run, in that of the first graph
///           where there is a choice
/// @numerics deterministic. Bits are those of the first graph, where each macro op gives those of its ops
/// @cost     O(ops + inputs) for each round, of which there are few, and the search for each op of the type
///           of a pattern's last one: its tries, and the ops between the first and the last one of a match
/// @threads  reentrant
/// @error    invalid_value, and nothing is made: a pattern, by its name, that has no macro op, whose ops are
///           not connected, that matches what it makes, alone or with others, or whose macro op leaves an
///           access of a variable out; as step_graph::flat(), for the graph and for what would have been
///           made. What a pattern's function throws passes through
/// @example  @snippet tests/graph/fuse_test.cpp fuse
/// @source   DeepRec, optimizer_fusion_engine_impl.cc, whose templates lose interior values that others take
///           and try inputs in one order
[[nodiscard]] inline result<fused_graph> fuse(const step_graph& graph,
                                              const std::vector<step_pattern>& patterns,
                                              const fuse_options& options = {}) {
  if (result<void> fine = detail::check_patterns(patterns); !fine) return fine.fault();
  const result<flat_graph> flat = graph.flat();
  if (!flat) return flat.fault();
  return detail::graph_fuser<>(graph, flat.value()).run(patterns, options.most_refused);
}

/// All matches of a pattern in a graph, those that overlap as well: the numbers of their ops, by the ops of
/// the pattern, in the order of their last ops.
///
/// @cost    as one round of fuse()
/// @threads reentrant
/// @error   as fuse()
[[nodiscard]] inline result<std::vector<std::vector<index_t>>> find_matches(const step_graph& graph,
                                                                            const step_pattern& pattern) {
  if (result<void> fine = detail::check_pattern(pattern.parts()); !fine) return fine.fault();
  const result<flat_graph> flat = graph.flat();
  if (!flat) return flat.fault();
  return detail::graph_fuser<>(graph, flat.value()).matches(pattern.parts());
}

}}  // namespace deeprec::DEEPREC_ABI
