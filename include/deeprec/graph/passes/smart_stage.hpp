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

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/ir/graph_adaptor.hpp>
#include <deeprec/graph/passes/detail/cut_problem.hpp>
#include <deeprec/graph/passes/detail/stage_region.hpp>
#include <deeprec/graph/passes/stage_cut.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {

/// The least price among closed sets: all ops, none, the least cuts of all λ, and a descent from each of the
/// best.
class cut_search {
 public:
  cut_search(const cut_problem& problem, const cut_price& price) : p_(problem), price_(price) {}

  /// The set; equal prices leave the farthest cut as it is.
  op_set run(cut_choice& choice) {
    best_ = op_set(p_.size(), 1);
    least_ = price_(p_.figures(best_));
    choice = cut_choice::farthest;
    const op_set none(p_.size(), 0);
    if (consider(none, p_.figures(none))) choice = cut_choice::user;
    if (p_.size() == 0) return best_;
    bool found = false;
    std::vector<std::pair<double, op_set>> starts;
    starts.emplace_back(least_, op_set(p_.size(), 1));
    starts.emplace_back(least_, none);
    // Few ops: every cut is a start. Many: those that may be better than the best so far, and of them the
    // best.
    const bool few = p_.size() <= 256;
    const std::size_t most = few ? 1000 : (std::max)(std::size_t{4}, std::size_t{100000} / p_.size());
    // Nested cuts put the ops into an order: those of the least cut first, and so on to those of none.
    std::vector<std::int32_t> rank(p_.size());
    single_moves moves(p_);
    std::vector<std::int32_t> in_order(p_.size());
    for (std::size_t v = 0; v < in_order.size(); ++v) in_order[v] = static_cast<std::int32_t>(v);
    std::vector<std::int32_t> in_depth = depth_first(p_);
    const auto walk = [&] {
      for (std::vector<std::int32_t>* order : {&in_order, &in_depth}) {
        std::stable_sort(order->begin(), order->end(), [&](std::int32_t a, std::int32_t b) {
          return rank[static_cast<std::size_t>(a)] < rank[static_cast<std::size_t>(b)];
        });
        starts.emplace_back(0, moves.best_on_way(*order, price_));
        found = consider(starts.back().second, p_.figures(starts.back().second)) || found;
      }
    };
    walk();  // a good cut to begin with spares the sweep much
    lambda_sweep(p_).run(price_, few ? std::numeric_limits<double>::infinity() : least_,
                         [&](const op_set& in, const cut_figures& f) {
                           found = consider(in, f) || found;
                           for (std::size_t v = 0; v < in.size(); ++v) rank[v] += in[v] == 0 ? 1 : 0;
                           starts.emplace_back(price_(f), in);
                           if (starts.size() > 2 * most + 8) cut_down(starts, most);
                           return few ? std::numeric_limits<double>::infinity() : least_;
                         });
    cut_down(starts, most);
    walk();
    for (auto& start : starts) {
      const cut_figures f = moves.descend(start.second, price_, few ? 64 : 8);
      found = consider(start.second, f) || found;
    }
    // From the best one: each op over the cut, with what it needs or with what needs it, and down again.
    bool again = few;
    for (int round = 0; again && round < 16; ++round) {
      again = false;
      for (std::size_t v = 0; v < p_.size(); ++v) {
        op_set in = best_;
        move_with_closure(v, in);
        const cut_figures f = moves.descend(in, price_, 64);
        again = consider(in, f) || again;
      }
      found = found || again;
    }
    if (found) choice = cut_choice::searched;
    return best_;
  }

 private:
  [[nodiscard]] bool has_values(const op_set& in) const {
    if (p_.fixed.bytes > 0 || p_.fixed_values > 0) return true;
    for (std::size_t i = 0; i < p_.maker.size(); ++i) {
      if (p_.maker[i] >= 0 && in[static_cast<std::size_t>(p_.maker[i])] == 0) continue;
      if (p_.leaves[i] != 0) return true;
      for (const std::int32_t u : p_.users[i]) {
        if (in[static_cast<std::size_t>(u)] == 0) return true;
      }
    }
    return false;
  }

  void move_with_closure(std::size_t v, op_set& in) const {
    const std::uint8_t to = in[v] != 0 ? 0 : 1;
    const number_lists& along = to != 0 ? p_.before : p_.after;
    std::vector<std::size_t> open{v};
    in[v] = to;
    while (!open.empty()) {
      const std::size_t u = open.back();
      open.pop_back();
      for (const std::int32_t w : along[u]) {
        if (in[static_cast<std::size_t>(w)] == to) continue;
        in[static_cast<std::size_t>(w)] = to;
        open.push_back(static_cast<std::size_t>(w));
      }
    }
  }
  bool consider(const op_set& in, const cut_figures& f) {
    const double price = price_(f);
    if (!(price < least_) || (f.bytes == 0 && !has_values(in))) return false;
    least_ = price;
    best_ = in;
    return true;
  }
  // Keeps the first two and the cheapest of the others.
  static void cut_down(std::vector<std::pair<double, op_set>>& starts, std::size_t most) {
    if (starts.size() <= most + 2) return;
    const auto first = starts.begin() + 2;
    std::nth_element(first, first + static_cast<std::ptrdiff_t>(most), starts.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    starts.resize(most + 2);
  }

  const cut_problem& p_;
  cut_price price_;
  op_set best_;
  double least_ = 0;
};

inline cut_cost priced(const cut_figures& f, const cut_price& price) {
  return {f.stage / price.stage_threads, f.rest, f.bytes, price(f)};
}

/// Fills in values, stages and the stage of each op, from the sides.
inline void list_stages(const flat_graph& g, const stage_region& region, stage_cut& cut) {
  const auto at = [](index_t i) { return static_cast<std::size_t>(i); };
  // Staged ops that touch belong to one record; where there is one stage, all do.
  const bool one = std::count_if(region.pairs().begin(), region.pairs().end(),
                                 [](const stage_pair& p) { return p.kept.empty(); }) == 1;
  std::vector<std::int32_t> group(cut.side.size());
  for (std::size_t v = 0; v < group.size(); ++v) group[v] = static_cast<std::int32_t>(v);
  const auto find = [&](index_t v) {
    while (group[at(v)] != v) v = group[at(v)] = group[at(group[at(v)])];
    return static_cast<std::int32_t>(v);
  };
  const auto before = [&](index_t v) { return is_before_cut(cut.side[at(v)]); };
  for (index_t v = 0; v < g.size(); ++v) {
    if (!before(v)) continue;
    if (!one)
      region.for_each_user(v, [&](index_t w, index_t) {
        if (before(w)) group[at(find(w))] = find(v);
      });
    region.for_each_value(v, [&](index_t port, index_t first, index_t last, std::int64_t bytes) {
      bool crosses = false;
      region.for_each_user_of(first, last, [&](index_t w, index_t) {
        crosses = crosses || (!before(w) && cut.side[at(w)] != op_side::earlier);
      });
      if (crosses) cut.values.push_back({v, port, bytes, 0});
    });
  }
  std::vector<std::int32_t> stage_of_group(cut.side.size(), -1);
  for (const stage_pair& pair : region.pairs()) {
    if (!pair.kept.empty()) continue;
    std::int32_t first = -1;
    region.for_each_need(pair.put, [&](index_t u) {
      if (!before(u)) return;
      if (first < 0) first = find(u);
      group[at(find(u))] = first = find(first);
    });
  }
  for (const stage_pair& pair : region.pairs()) {
    if (!pair.kept.empty()) continue;
    std::int32_t first = -1;
    region.for_each_need(pair.put, [&](index_t u) {
      if (before(u)) first = find(u);
    });
    std::int32_t stage = first < 0 ? 0 : stage_of_group[at(first)];
    if (stage < 0 || cut.stages.empty()) {
      stage = static_cast<std::int32_t>(cut.stages.size());
      cut.stages.emplace_back();
      if (first >= 0) stage_of_group[at(first)] = stage;
    }
    cut_stage& into = cut.stages[at(stage)];
    if (!into.name.empty()) into.name += '+';
    into.name += pair.name;
    into.puts.push_back(pair.put);
    into.takes.push_back(pair.take);
  }
  // What has no value of its own goes along with the first stage that has one.
  const auto stage_of = [&](index_t v) { return (std::max)(0, stage_of_group[at(find(v))]); };
  std::vector<std::int32_t> number(cut.stages.size(), -1);
  for (const staged_value& value : cut.values) number[at(stage_of(value.source))] = 0;
  std::vector<cut_stage> kept;
  for (std::size_t s = 0; s < number.size(); ++s) {
    if (number[s] < 0) continue;
    number[s] = static_cast<std::int32_t>(kept.size());
    kept.push_back(std::move(cut.stages[s]));
  }
  for (std::size_t s = 0; s < number.size(); ++s) {
    if (number[s] >= 0) continue;
    number[s] = 0;
    cut_stage& gone = cut.stages[s];
    kept[0].name += '+' + gone.name;
    kept[0].puts.insert(kept[0].puts.end(), gone.puts.begin(), gone.puts.end());
    kept[0].takes.insert(kept[0].takes.end(), gone.takes.begin(), gone.takes.end());
  }
  cut.stages = std::move(kept);
  cut.stage_of.assign(cut.side.size(), -1);
  for (index_t v = 0; v < g.size(); ++v) {
    if (before(v)) cut.stage_of[at(v)] = number[at(stage_of(v))];
  }
  for (staged_value& value : cut.values) value.stage = cut.stage_of[at(value.source)];
}

}  // namespace detail

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
