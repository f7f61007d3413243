// A cut in words: what moved, what it costs, and why the rest did not move.
//
//   smart_stage: stage 'io': 2 ops moved before the cut, 1 value of 4096 bytes crosses
//     moved: 'hash', 'bucket'
//     stays: 'lookup', which is reached from 'table' (a variable)
//     stays: 'concat', which is reached from 'table' (a variable) by way of 'lookup'
//
// The paths are shortest ones, and only ops at the border are listed: what lies behind them stays as well.
// why_stays(graph, cut, op) returns the reason for any op.
#pragma once

#include <cstddef>
#include <string>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/passes/detail/cut_words.hpp>
#include <deeprec/graph/passes/stage_cut.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// What smart_stage decided, in words. Lists of ops end after `most_listed`.
///
/// @pre     `cut` was made by smart_stage from this graph
/// @cost    O(ops + edges)
/// @threads reentrant
/// @error   none
/// @example @snippet tests/graph/smart_stage_test.cpp smart_stage
[[nodiscard]] inline std::string explain(const flat_graph& graph, const stage_cut& cut,
                                         index_t most_listed = 12) {
  return detail::cut_words(graph, cut, most_listed).text();
}

/// Why an op runs after the cut, as explain() has it of the ops at the border: the shortest path from a
/// barrier, or that no stage leads to the op. Empty: the op runs before the cut, or is on both sides; in a
/// graph that stays as it is also where no barrier reaches the op.
///
/// @pre     as explain(); the graph has the op
/// @cost    O(length of the path + inputs of the op)
/// @threads reentrant
/// @error   none
/// @example @snippet tests/graph/smart_stage_test.cpp smart_stage
[[nodiscard]] inline std::string why_stays(const flat_graph& graph, const stage_cut& cut, index_t op,
                                           index_t most_listed = 12) {
  std::string why = detail::cut_words(graph, cut, most_listed).reason(op);
  const bool rest = cut.changes() && cut.side[static_cast<std::size_t>(op)] == op_side::rest;
  return why.empty() && rest ? "no stage leads to it" : why;
}

}}  // namespace deeprec::DEEPREC_ABI
