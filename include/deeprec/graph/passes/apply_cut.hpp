// Rewrites a graph so that its stage boundary is at a given cut.
//
//   parse ─> put "io"   take "io" ─> hash ─> lookup          before: the user's
//   parse ─> hash ─> put "io"        take "io" ─> lookup     after: each value crosses once
//
// The put and the take of a stage imply the order of everything before and after, so a control edge over the
// cut becomes one from the take. A constant that both sides use is there twice. Not here: which cut
// (smart_stage.hpp).
#pragma once

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/passes/detail/cut_rewriter.hpp>
#include <deeprec/graph/passes/stage_cut.hpp>
#include <deeprec/graph/passes/staged_graph.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// A copy of the graph with the cut in it.
///
/// @pre     `cut` was made by smart_stage from this graph
/// @post    the graph has no cycle, not through its stages either; each value crosses once; the staged part
///          is placed where the options said. A cut that changes nothing gives the same graph
/// @cost    O(ops + edges log(edges of an op))
/// @threads reentrant
/// @error   shape_mismatch: the cut is of another graph; as flat_graph_builder::build(), bad_alloc too
/// @example @snippet tests/graph/smart_stage_test.cpp smart_stage
[[nodiscard]] inline result<staged_graph> apply_cut(const flat_graph& graph, const stage_cut& cut) {
  if (status fits =
          detail::expect_size(cut.side.size(), graph.size(), "apply_cut: the cut must be of this graph");
      !fits)
    return fits;
  if (!cut.changes()) {
    staged_graph same{graph, {}, {}, {}};
    for (index_t v = 0; v < graph.size(); ++v) same.origin.push_back(v);
    return same;
  }
  return detail::cut_rewriter(graph, cut).run();
}

}}  // namespace deeprec::DEEPREC_ABI
