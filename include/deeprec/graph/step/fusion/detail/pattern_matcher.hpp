// Finds what a pattern stands for, by trying: an op for the pattern's last one, then the ops beside it, edge
// by edge, with a step back where one does not fit. Exact: what is found fits, and what fits is found.
//
//   pattern   0 scale ─> 1 add <─ w1          plan   1; then 0, which makes input 0 of it
//   graph     'mul' ─> 'sum' <─ 'bias'        1 = 'sum', inputs as they are: 0 = 'bias'? no. Exchanged: 'mul'
//
// A list with wildcards for any number of values is tried with each number of each of them, the fewest first.
//
// Not here: which of the matches are taken (fuse.hpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/step/detail/graph_edit.hpp>
#include <deeprec/graph/step/detail/step_core.hpp>
#include <deeprec/graph/step/detail/step_inputs.hpp>
#include <deeprec/graph/step/fusion/detail/fusion_order.hpp>
#include <deeprec/graph/step/fusion/detail/pattern_parts.hpp>
#include <deeprec/graph/step/step_graph.hpp>
#include <deeprec/graph/step/step_handles.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The rules of a match. Tests leave some of them out, and show that it is noticed.
struct match_rules {
  static constexpr bool interior_is_private = true;
  static constexpr bool set_is_convex = true;
};

/// What keeps ops that have the shape of a pattern from being a match of it.
struct match_refusal {
  const char* why = nullptr;  // null: nothing
  index_t op = -1;            // one of the ops
  index_t other = -1;         // an op of the graph that is none of them
};

/// The stages that an op lies before, as a number: equal for ops that lie before the same ones.
inline std::vector<index_t> stage_classes(const flat_graph& g) {
  std::vector<index_t> made(static_cast<std::size_t>(g.size()));
  index_t classes = 1;
  for (index_t stage = 0; stage < g.size(); ++stage) {
    if (g.kind(stage) != op_kind::stage) continue;
    std::vector<bool> before(made.size());
    before[static_cast<std::size_t>(stage)] = true;
    for (std::size_t i = g.order().size(); i-- > 0;) {
      const index_t v = g.order()[i];
      for (index_t e = g.out_begin(v); e < g.out_end(v); ++e) {
        if (before[static_cast<std::size_t>(g.destination(e))]) before[static_cast<std::size_t>(v)] = true;
      }
    }
    std::vector<index_t> split(static_cast<std::size_t>(classes), -1);
    for (std::size_t v = 0; v < made.size(); ++v) {
      if (!before[v]) continue;
      index_t& to = split[static_cast<std::size_t>(made[v])];
      if (to < 0) {
        to = static_cast<index_t>(classes++);
      }
      made[v] = to;
    }
  }
  return made;
}

template <class Rules = match_rules>
class pattern_matcher {
 public:
  using number = graph_edit::number;

  pattern_matcher(const graph_edit& edit, fusion_order& order, const std::vector<index_t>& stages)
      : edit_(&edit), order_(&order), stages_(&stages) {}

  /// Prepares a search for a pattern, whose ops are connected.
  void aim(const pattern_parts& pattern) {
    pattern_ = &pattern;
    plan_.clear();
    const std::size_t ops = pattern.ops.size();
    std::vector<bool> planned(ops);
    planned[ops - 1] = true;
    for (std::size_t from = ops - 1, next = 0;; from = static_cast<std::size_t>(plan_[next++].op)) {
      for_each_edge(pattern, [&](const step_to& edge, index_t maker, index_t user) {
        const bool here = static_cast<std::size_t>(maker) == from || static_cast<std::size_t>(user) == from;
        const index_t other = static_cast<std::size_t>(maker) == from ? user : maker;
        if (!here || planned[static_cast<std::size_t>(other)]) return;
        planned[static_cast<std::size_t>(other)] = true;
        step_to step = edge;
        step.op = other;
        step.from = static_cast<index_t>(from);
        step.is_maker = other == maker;
        plan_.push_back(step);
      });
      if (next == plan_.size()) break;
    }
    exchanged_.assign(ops, false);
    begins_.assign(ops, {});
    found_.ops.assign(ops, -1);
    found_.wild.assign(pattern.wild.size(), {});
    found_.bound.assign(pattern.wild.size(), false);
  }

  /// Calls found(binding) for the matches whose last op is this one, until it returns true; returns whether
  /// it did. refused(binding, refusal) is called for ops that have the shape and are no match.
  template <class Found, class Refused>
  bool search(index_t op, const Found& found, const Refused& refused) {
    const auto last = static_cast<index_t>(pattern_->ops.size()) - 1;
    return bind(last, op, [&] { return go_on(0, found, refused); });
  }

 private:
  // An edge of the pattern from an op that is bound to one that is not.
  struct step_to {
    index_t op, from;
    bool is_maker;  // op makes what `from` takes
    index_t port;
    std::size_t argument, cell;
  };
  static std::size_t at(index_t i) noexcept { return static_cast<std::size_t>(i); }
  [[nodiscard]] const step_op& graph_op(index_t op) const { return edit_->core().op(op); }

  template <class F>
  static void for_each_edge(const pattern_parts& pattern, const F& f) {
    for (std::size_t user = 0; user < pattern.ops.size(); ++user) {
      const auto& arguments = pattern.ops[user].arguments;
      for (std::size_t a = 0; a < arguments.size(); ++a) {
        for (std::size_t c = 0; c < arguments[a].size(); ++c) {
          const pattern_cell& cell = arguments[a][c];
          if (cell.op >= 0) f(step_to{-1, -1, false, cell.port, a, c}, cell.op, static_cast<index_t>(user));
        }
      }
    }
  }

  template <class Found, class Refused>
  bool go_on(std::size_t step, const Found& found, const Refused& refused) {
    if (step == plan_.size()) {
      const match_refusal no = refusal();
      if (no.why == nullptr) return found(std::as_const(found_));
      refused(std::as_const(found_), no);
      return false;
    }
    const step_to& to = plan_[step];
    const auto next = [&] { return go_on(step + 1, found, refused); };
    if (to.is_maker) {
      const step_input& in = input_of_bound(to.from, to.argument, to.cell);
      return bind(to.op, in.from.op, next);
    }
    // Each op that takes the value, once, in the order of numbers. Interior values have few.
    const bool few = Rules::interior_is_private && !pattern_->is_output(to.from, to.port);
    std::vector<index_t> users;
    const bool all = edit_->for_each_use(port(to.from, to.port), [&](index_t user, index_t input) {
      if (input >= 0 && std::find(users.begin(), users.end(), user) == users.end()) users.push_back(user);
      return !few || users.size() < found_.ops.size();
    });
    if (!all) return false;
    std::sort(users.begin(), users.end());
    for (const index_t user : users) {
      if (bind(to.op, user, next)) return true;
    }
    return false;
  }

  /// The input of an op that is bound, by the place in the pattern.
  [[nodiscard]] const step_input& input_of_bound(index_t q, std::size_t argument, std::size_t cell) const {
    return graph_op(found_.ops[at(q)]).inputs[begins_[at(q)][argument][cell]];
  }
  [[nodiscard]] port_ref port(index_t q, index_t of) const {
    return {edit_->core().id(), found_.ops[at(q)], of};
  }

  // Binds an op of the pattern, with its inputs in each order that it allows, and goes on.
  template <class Next>
  bool bind(index_t q, index_t v, const Next& next) {
    if (v < 0 || v >= edit_->core().size() || edit_->is_erased(v)) return false;
    const pattern_op_parts& want = pattern_->ops[at(q)];
    const step_op& op = graph_op(v);
    if (op.node == nullptr || op.is_source || op.node->type() != want.type) return false;
    if (std::find(found_.ops.begin(), found_.ops.end(), v) != found_.ops.end()) return false;
    if (op.outputs.size() != want.outputs.size()) return false;
    for (std::size_t p = 0; p < want.outputs.size(); ++p) {
      if (op.outputs[p]->type != want.outputs[p]) return false;
    }
    const std::span<const index_t> counts = op.node->arguments();
    if (counts.size() != want.arguments.size()) return false;
    const auto any_number = [&](const pattern_cell& cell) { return pattern_->is_any_number(cell); };
    for (std::size_t a = 0; a < counts.size(); ++a) {
      const pattern_argument& argument = want.arguments[a];
      const auto open = std::count_if(argument.begin(), argument.end(), any_number);
      const auto fixed = argument.size() - static_cast<std::size_t>(open);
      if (open == 0 ? at(counts[a]) != fixed : at(counts[a]) < fixed) return false;
    }
    found_.ops[at(q)] = v;
    const bool both_ways = want.commutative && counts.size() >= 2 && counts[0] == 1 && counts[1] == 1 &&
                           want.arguments[0].size() == 1 && want.arguments[1].size() == 1 &&
                           !any_number(want.arguments[0][0]) && !any_number(want.arguments[1][0]);
    bool done = false;
    for (const bool exchanged : {false, true}) {
      if (done || (exchanged && !both_ways)) break;
      exchanged_[at(q)] = exchanged;
      begins_[at(q)].assign(counts.size(), {});
      done = lay_out(q, 0, 0, 0, next);
    }
    exchanged_[at(q)] = false;
    found_.ops[at(q)] = -1;
    return done;
  }

  // Gives the cells of an op, from cell c of argument a on, the inputs from `begin` on, in each way.
  template <class Next>
  bool lay_out(index_t q, std::size_t a, std::size_t c, std::size_t begin, const Next& next) {
    const std::vector<pattern_argument>& arguments = pattern_->ops[at(q)].arguments;
    if (a == arguments.size()) {
      std::vector<std::size_t> newly;
      const bool done = take_inputs(q, newly) && users_agree(q) && next();
      for (const std::size_t w : newly) {
        found_.bound[w] = false;
        found_.wild[w].clear();
      }
      return done;
    }
    const step_op& op = graph_op(found_.ops[at(q)]);
    const std::span<const index_t> counts = op.node->arguments();
    std::vector<std::size_t>& begins = begins_[at(q)][a];
    if (c == 0) {
      const std::size_t from = exchanged_[at(q)] && a < 2 ? 1 - a : a;
      begin = 0;
      for (std::size_t before = 0; before < from; ++before) begin += at(counts[before]);
      begins.assign(arguments[a].size() + 1, begin + at(counts[a]));
    }
    if (c == arguments[a].size()) return begin == begins[c] && lay_out(q, a + 1, 0, 0, next);
    begins[c] = begin;
    const pattern_cell& cell = arguments[a][c];
    if (!pattern_->is_any_number(cell))
      return begin < begins.back() && may_be(cell, op.inputs[begin]) && lay_out(q, a, c + 1, begin + 1, next);
    std::size_t behind = 0, open = 0;
    for (std::size_t d = c + 1; d < arguments[a].size(); ++d)
      ++(pattern_->is_any_number(arguments[a][d]) ? open : behind);
    const std::size_t most = begins.back() - behind;
    for (std::size_t end = open == 0 ? most : begin; end <= most; ++end) {
      if (lay_out(q, a, c + 1, end, next)) return true;
    }
    return false;
  }
  // Whether an input may be a value of the pattern's op: it is looked at before lists are made.
  [[nodiscard]] bool may_be(const pattern_cell& cell, const step_input& in) const {
    if (cell.op < 0) return true;
    if (in.is_variable() || in.from.port != cell.port) return false;
    const index_t maker = found_.ops[at(cell.op)];
    if (maker >= 0) return in.from.op == maker;
    const auto& node = graph_op(in.from.op).node;
    return node != nullptr && node->type() == pattern_->ops[at(cell.op)].type;
  }

  bool take_inputs(index_t q, std::vector<std::size_t>& newly) {
    const pattern_op_parts& want = pattern_->ops[at(q)];
    const step_op& op = graph_op(found_.ops[at(q)]);
    for (std::size_t a = 0; a < want.arguments.size(); ++a) {
      for (std::size_t c = 0; c < want.arguments[a].size(); ++c) {
        const pattern_cell& cell = want.arguments[a][c];
        if (cell.op >= 0) continue;
        const std::size_t begin = begins_[at(q)][a][c];
        const std::size_t end = pattern_->is_any_number(cell) ? begins_[at(q)][a][c + 1] : begin + 1;
        const std::span<const step_input> in = std::span(op.inputs).subspan(begin, end - begin);
        if (!take(cell.port, {in.begin(), in.end()}, newly)) return false;
      }
    }
    return true;
  }
  // Ops that are bound and take outputs of q take those of its op.
  [[nodiscard]] bool users_agree(index_t q) const {
    bool agree = true;
    for_each_edge(*pattern_, [&](const step_to& edge, index_t maker, index_t user) {
      if (maker != q || found_.ops[at(user)] < 0) return;
      const port_ref& from = input_of_bound(user, edge.argument, edge.cell).from;
      agree = agree && from.op == found_.ops[at(q)] && from.port == edge.port;
    });
    return agree;
  }
  // A wildcard stands for these inputs.
  bool take(index_t wildcard, std::vector<step_input>&& in, std::vector<std::size_t>& newly) {
    const pattern_wildcard& want = pattern_->wild[at(wildcard)];
    for (const step_input& i : in) {
      if (want.is_access) {
        if (!i.is_variable() || i.type != want.type || i.use != want.use) return false;
      } else if (i.is_variable() || edit_->core().type_of(i.from) != want.type) {
        return false;
      }
    }
    if (found_.bound[at(wildcard)]) {
      const auto same = [](const step_input& a, const step_input& b) {
        return a.from.op == b.from.op && a.from.port == b.from.port && a.object == b.object;
      };
      const std::vector<step_input>& is = found_.wild[at(wildcard)];
      return std::equal(is.begin(), is.end(), in.begin(), in.end(), same);
    }
    found_.wild[at(wildcard)] = std::move(in);
    found_.bound[at(wildcard)] = true;
    newly.push_back(at(wildcard));
    return true;
  }

  [[nodiscard]] bool is_matched(index_t v) const {
    return std::find(found_.ops.begin(), found_.ops.end(), v) != found_.ops.end();
  }
  [[nodiscard]] match_refusal refusal() const {
    const index_t first = found_.ops.back();
    const step_op& one = graph_op(first);
    for (const index_t v : found_.ops) {
      const step_op& op = graph_op(v);
      if (op.external) return {"an external op is not fused", v};
      if (op.kind != op_kind::plain) return {"an id lookup is not fused", v};
      if (op.role != one.role) return {"its ops have different roles", v};
      if (op.place != one.place) return {"its ops run on different devices", v};
      if (op.sample_wise != one.sample_wise && !pattern_->takes_whole_batch)
        return {"not all of its ops are sample-wise", v};
      if ((*stages_)[at(v)] != (*stages_)[at(first)]) return {"a stage lies between its ops", v};
    }
    const step_input* changed = nullptr;
    for (std::size_t w = 0; w < found_.wild.size(); ++w) {
      for (const step_input& in : found_.wild[w]) {
        if (!in.is_variable()) {
          if (is_matched(in.from.op))
            return {"an op takes a value of another one that the pattern has outside", in.from.op};
          continue;
        }
        for (std::size_t u = 0; u < w; ++u) {
          for (const step_input& other : found_.wild[u]) {
            if (other.is_variable() && other.overlaps(in) && (other.changes() || in.changes())) changed = &in;
          }
        }
      }
    }
    if (changed != nullptr)
      return {"one op must not access a variable twice that it changes", changed->from.op};
    if (Rules::interior_is_private) {
      for (std::size_t q = 0; q < found_.ops.size(); ++q) {
        const step_op& op = graph_op(found_.ops[q]);
        for (std::size_t p = 0; p < op.outputs.size(); ++p) {
          const auto number_of_port = static_cast<index_t>(p);
          if (pattern_->is_output(static_cast<index_t>(q), number_of_port)) continue;
          if (std::find(op.kept.begin(), op.kept.end(), number_of_port) != op.kept.end())
            return {"the caller keeps an interior value", found_.ops[q]};
          index_t outside = -1;
          edit_->for_each_use(port(static_cast<index_t>(q), number_of_port),
                              [&](index_t user, index_t input) {
                                if (input < 0 || is_matched(user)) return true;
                                outside = user;
                                return false;
                              });
          if (outside >= 0) return {"an interior value is taken by an op outside", found_.ops[q], outside};
        }
      }
    }
    if (!order_->is_convex(found_.ops) && Rules::set_is_convex)
      return {"a path leaves its ops and comes back", first};
    return {};
  }

  const graph_edit* edit_;
  fusion_order* order_;
  const std::vector<index_t>* stages_;
  const pattern_parts* pattern_ = nullptr;
  std::vector<step_to> plan_;
  std::vector<bool> exchanged_;
  // Of each op that is bound, by argument and cell: its first input; behind them the end of the argument's.
  std::vector<std::vector<std::vector<std::size_t>>> begins_;
  pattern_binding found_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
