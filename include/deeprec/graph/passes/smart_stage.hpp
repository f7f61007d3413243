// Moves the user's stage downstream, so that more of the step runs ahead of it, with the same bits.
//
//   read ─> parse ─│put take│─> hash ─> bucket ─> lookup ─> loss        the user's cut
//   read ─> parse ─> hash ─> bucket ─│put take│─> lookup ─> loss        ours: the lookup reads a variable
//
//   stage_cut cut = smart_stage(graph, {.cost_per_byte = 1e-10}).or_throw();
//   std::puts(explain(graph, cut).c_str());
//   staged_graph staged = apply_cut(graph, cut).or_throw();
//
// An op may move if no variable, placeholder, control flow, external op or target reaches it: then it
// computes the same in any step. What the user runs ahead may be external, as a reader is. Not here: graphs
// without a stage of the user; the run (graph/step/staged_program.hpp).
#pragma once

#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/ir/graph_adaptor.hpp>
#include <deeprec/graph/passes/detail/cut_problem.hpp>
#include <deeprec/graph/passes/detail/cut_search.hpp>
#include <deeprec/graph/passes/detail/list_stages.hpp>
#include <deeprec/graph/passes/detail/stage_region.hpp>
#include <deeprec/graph/passes/stage_cut.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Decides which ops run before the cut. The graph is not changed: apply_cut does that to a copy.
///
/// @pre      options.cost_per_byte >= 0, options.stage_threads >= 1
/// @post     no variable, placeholder, control flow or target, and no external op that no stage needs,
///           reaches an op that moved, except by the handle of a table into an id lookup: so external ops
///           keep their order. What a staged op needs is staged; the price is not above that of the farthest
///           cut. A graph without a stage, or one where no value would cross, stays as it is,
///           and `reason` says why
/// @numerics deterministic: the same cut for the same graph. Costs and bytes in a least cut are rounded to 58
///           bits of their sum
/// @cost     O(ops + edges) for the farthest cut; for `balanced` one least cut for each λ at which the cut
///           changes and that may still be better, each on the ops that are undecided there
/// @threads  reentrant
/// @error    invalid_value: options outside of their domain. Throws std::bad_alloc
/// @example  @snippet tests/graph/smart_stage_test.cpp smart_stage
/// @source   the farthest cut: DeepRec, smart_stage_pass.cc. Least cuts of closures: Picard, Management
///           Science 22 (1976); over all λ: Eisner and Severance, JACM 23 (1976); nested: Gallo, Grigoriadis,
///           Tarjan, SIAM J. Comput. 18 (1989)
[[nodiscard]] inline result<stage_cut> smart_stage(const flat_graph& graph,
                                                   const smart_stage_options& options = {}) {
  if (!(options.cost_per_byte >= 0) || options.cost_per_byte > (std::numeric_limits<double>::max)())
    return status(errc::invalid_value, "smart_stage: cost_per_byte must be a number from 0");
  if (options.stage_threads < 1)
    return status(errc::invalid_value, "smart_stage: stage_threads must be at least 1",
                  {.value = options.stage_threads});
  detail::stage_region region(graph);
  stage_cut cut;
  cut.staged_place = options.staged_place;
  for (const detail::stage_pair& pair : region.pairs()) {
    if (!pair.kept.empty()) cut.kept.push_back({pair.name, pair.kept});
  }
  cut.side = region.side();
  cut.farthest_side = region.side();
  const auto unchanged = [&](const char* why) {
    cut.reason = why;
    for (op_side& s : cut.side) s = op_side::rest;
    cut.stage_of.assign(cut.side.size(), -1);
    cut.barrier = std::move(region.barrier());
    return std::move(cut);
  };
  if (!region.any_undone()) {
    return unchanged(region.pairs().empty() ? "the graph has no stage" : "no stage of the graph can move");
  }
  const detail::cut_price price{options.cost_per_byte, static_cast<double>(options.stage_threads)};
  const detail::two_cuts ends = region.ends();
  cut.farthest_cost = detail::priced(ends.farthest, price);
  cut.user_cost = detail::priced(ends.user, price);
  // Hazard H2: a put without inputs is no op.
  if (ends.farthest_values == 0) {
    return unchanged(
        "no value would cross the cut: nothing in the rest of the step reads what is staged. Fix: mark the "
        "ops that belong to the step itself as targets");
  }
  cut.choice = cut_choice::farthest;
  cut.cost = cut.farthest_cost;
  if (options.rule == stage_rule::balanced && ends.movable <= options.most_searched) {
    std::vector<flat_graph::number> ops;
    const detail::cut_problem problem = region.problem(ops);
    const detail::op_set in = detail::cut_search(problem, price).run(cut.choice);
    // Sums in the order of the search, so that prices compare as they did there.
    cut.farthest_cost = detail::priced(problem.figures(detail::op_set(ops.size(), 1)), price);
    cut.user_cost = detail::priced(problem.figures(detail::op_set(ops.size(), 0)), price);
    cut.cost = detail::priced(problem.figures(in), price);
    for (std::size_t i = 0; i < ops.size(); ++i) {
      if (in[i] == 0) cut.side[static_cast<std::size_t>(ops[i])] = op_side::rest;
    }
  } else if (options.rule == stage_rule::balanced && ends.user_values > 0 &&
             cut.user_cost.price < cut.farthest_cost.price) {
    cut.choice = cut_choice::user;
    cut.cost = cut.user_cost;
    for (op_side& s : cut.side) {
      if (s == op_side::moved || s == op_side::companion) s = op_side::rest;
    }
  }
  detail::list_stages(graph, region, cut);
  cut.barrier = std::move(region.barrier());
  return cut;
}

/// The same, for a graph that is not ours: copies it first. apply_cut and explain need the copy: flatten()
/// makes it.
template <AdaptedGraph G>
[[nodiscard]] result<stage_cut> smart_stage(const G& graph, const smart_stage_options& options = {}) {
  result<flat_graph> flat = flatten(graph);
  if (!flat) return flat.fault();
  return smart_stage(flat.value(), options);
}

}}  // namespace deeprec::DEEPREC_ABI
