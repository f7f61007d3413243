// The graph as if the user's stages were not there, and which of its ops may run before the cut.
//
//   read ─> parse ─>(put  take)─> hash ─> lookup <─ tables        undone: parse ─> hash
//                                 moved   ^^^^^^^^^^^^^^^ coloured: the variable reaches it
//
// An op is coloured when it is pushed, so each edge is followed once. Not here: the choice of a cut.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/passes/detail/cut_problem.hpp>
#include <deeprec/graph/passes/detail/stage_pairs.hpp>
#include <deeprec/graph/passes/stage_cut.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The farthest cut and the user's.
struct two_cuts {
  cut_figures farthest, user;
  index_t farthest_values = 0, user_values = 0;
  index_t movable = 0;
};

class stage_region {
 public:
  using number = flat_graph::number;

  explicit stage_region(const flat_graph& g) : g_(g), pairs_(g) {
    // A pair found unfit only once the colours are known stays, and everything is done again without it.
    do {
      undo();
      colour();
      find_sides();
    } while (keep_unfit_pairs());
  }

  [[nodiscard]] const std::vector<stage_pair>& pairs() const noexcept { return pairs_.list(); }
  [[nodiscard]] bool any_undone() const noexcept {
    return std::any_of(pairs().begin(), pairs().end(), [](const stage_pair& p) { return p.kept.empty(); });
  }
  /// The sides of the farthest cut.
  [[nodiscard]] const std::vector<op_side>& side() const noexcept { return side_; }
  [[nodiscard]] std::vector<number>& barrier() noexcept { return barrier_; }

  /// Calls f(op, edge) for all users of an op, as if the undone pairs were not there. `edge` enters the op.
  template <class F>
  void for_each_user(index_t op, F f) const {
    for (index_t e = g_.out_begin(op); e < g_.out_end(op); ++e) {
      const index_t w = g_.destination(e);
      if (!is_undone(w)) {
        f(w, e);
      } else if (!g_.is_control(e)) {
        const auto [first, last] = g_.out_of_port(take_of(w), g_.destination_port(e));
        for (index_t a = first; a < last; ++a) f(g_.destination(a), a);
      }
    }
  }
  /// Calls f(op) for everything that an op needs, in the same sense. Handles of variables are not needed from
  /// somewhere, nor are constants.
  template <class F>
  void for_each_need(index_t op, F f) const {
    if (g_.kind(op) == op_kind::stage && !is_undone(op)) return;  // what it needs belongs to an earlier stage
    for_each_input(op, f);
  }
  template <class F>
  void for_each_input(index_t op, F f) const {
    for (const number e : g_.in(op)) {
      index_t u = g_.source(e);
      if (is_undone(u)) {
        if (g_.is_control(e)) continue;
        u = input_of_put(put_of(u), g_.source_port(e));
      }
      if (!is_free(u)) f(u);
    }
  }

  [[nodiscard]] bool is_undone(index_t op) const noexcept { return barrier_[at(op)] == undone_end; }
  /// On both sides of any cut.
  [[nodiscard]] bool is_free(index_t op) const noexcept {
    return is_handle(op) || (g_.kind(op) == op_kind::constant && g_.in(op).empty());
  }
  [[nodiscard]] bool is_handle(index_t op) const noexcept {
    return g_.kind(op) == op_kind::variable && g_.in(op).empty();
  }
  [[nodiscard]] index_t take_of(index_t put) const noexcept { return pairs_.of_put(put).take; }
  [[nodiscard]] index_t put_of(index_t take) const noexcept { return pairs_.of_take(take).put; }

  /// What the two cuts cost that need no search.
  [[nodiscard]] two_cuts ends() const {
    two_cuts made;
    for (index_t v = 0; v < g_.size(); ++v) {
      const op_side s = side_[at(v)];
      const bool staged = s == op_side::staged, before = is_before_cut(s);
      if (before) {
        made.movable += staged ? 0 : 1;
        made.farthest.stage += g_.cost(v);
        (staged ? made.user.stage : made.user.rest) += g_.cost(v);
        for_each_value(v, [&](index_t, index_t first, index_t last, std::int64_t bytes) {
          bool far_crosses = false, user_crosses = false;
          for_each_user_of(first, last, [&](index_t w, index_t) {
            const op_side to = side_[at(w)];
            if (to == op_side::earlier) return;
            far_crosses = far_crosses || !is_before_cut(to);
            user_crosses = user_crosses || to != op_side::staged;
          });
          if (far_crosses) ++made.farthest_values, made.farthest.bytes += static_cast<double>(bytes);
          if (!staged || !user_crosses) return;
          ++made.user_values;
          made.user.bytes += static_cast<double>(bytes);
        });
      } else if (s == op_side::rest && !is_free(v)) {
        made.farthest.rest += g_.cost(v);
        made.user.rest += g_.cost(v);
      }
    }
    return made;
  }

  /// The choice of a cut as arithmetic; `ops` are the movable ops.
  [[nodiscard]] cut_problem problem(std::vector<number>& ops) const {
    cut_problem p;
    std::vector<number> local(side_.size(), -1);
    ops.clear();
    // In topological order: a round of single moves then carries a chain along.
    for (const number v : g_.order()) {
      if (side_[at(v)] != op_side::moved && side_[at(v)] != op_side::companion) continue;
      local[at(v)] = static_cast<number>(ops.size());
      ops.push_back(v);
      p.cost.push_back(g_.cost(v));
    }
    for (const number v : ops) {
      for_each_need(v, [&](index_t u) {
        if (local[at(u)] >= 0) p.before.items.push_back(local[at(u)]);
      });
      p.before.close();
    }
    std::vector<number> seen(ops.size(), -1);  // the last value that the op was listed for
    const auto add_values = [&](index_t v, number maker) {
      for_each_value(v, [&](index_t, index_t first, index_t last, std::int64_t bytes) {
        const auto value = static_cast<number>(p.maker.size());
        const std::size_t before = p.users.items.size();
        bool leaves = false;
        for_each_user_of(first, last, [&](index_t w, index_t) {
          if (local[at(w)] < 0) {
            leaves = leaves || (!is_before_cut(side_[at(w)]) && side_[at(w)] != op_side::earlier);
          } else if (seen[at(local[at(w)])] != value) {
            seen[at(local[at(w)])] = value;
            p.users.items.push_back(local[at(w)]);
          }
        });
        if (maker < 0 && leaves) {
          p.fixed.bytes += static_cast<double>(bytes);
          ++p.fixed_values;
          // No choice changes it. The marks of `seen` are of a value that is not there: the next takes its
          // number.
          for (std::size_t i = before; i < p.users.items.size(); ++i) seen[at(p.users.items[i])] = -1;
          p.users.items.resize(before);
          return;
        }
        if (before == p.users.items.size() && !leaves) return;
        p.maker.push_back(maker);
        p.bytes.push_back(static_cast<double>(bytes));
        p.leaves.push_back(leaves ? 1 : 0);
        p.users.close();
      });
    };
    for (index_t v = 0; v < g_.size(); ++v) {
      const op_side s = side_[at(v)];
      if (s == op_side::staged) {
        p.fixed.stage += g_.cost(v);
        add_values(v, -1);
      } else if (s == op_side::rest && !is_free(v)) {
        p.fixed.rest += g_.cost(v);
      }
    }
    for (std::size_t i = 0; i < ops.size(); ++i) add_values(ops[i], static_cast<number>(i));
    p.finish();
    return p;
  }

  /// Calls f(port, first, last, bytes) for each value that an op makes: the edges [first, last).
  template <class F>
  void for_each_value(index_t op, F f) const {
    index_t e = g_.out_begin(op);
    while (e < g_.out_end(op) && g_.is_control(e)) ++e;
    while (e < g_.out_end(op)) {
      const index_t first = e, port = g_.source_port(e);
      std::int64_t bytes = 0;
      for (; e < g_.out_end(op) && g_.source_port(e) == port; ++e) bytes = (std::max)(bytes, g_.bytes(e));
      f(port, first, e, bytes);
    }
  }
  /// Calls f(op, edge) for the users of one value, as for_each_user.
  template <class F>
  void for_each_user_of(index_t first, index_t last, F f) const {
    for (index_t e = first; e < last; ++e) {
      const index_t w = g_.destination(e);
      if (!is_undone(w)) {
        f(w, e);
      } else {
        const auto [begin, end] = g_.out_of_port(take_of(w), g_.destination_port(e));
        for (index_t a = begin; a < end; ++a) f(g_.destination(a), a);
      }
    }
  }

 private:
  static constexpr number nothing = -1, undone_end = -2;
  static std::size_t at(index_t i) noexcept { return static_cast<std::size_t>(i); }

  [[nodiscard]] index_t input_of_put(index_t put, index_t port) const noexcept {
    const auto in = g_.in(put);
    const auto found = std::lower_bound(in.begin(), in.end(), port,
                                        [&](number e, index_t p) { return g_.destination_port(e) < p; });
    return g_.source(*found);
  }

  void undo() {
    barrier_.assign(at(g_.size()), nothing);
    for (const stage_pair& pair : pairs()) {
      if (pair.kept.empty()) barrier_[at(pair.put)] = barrier_[at(pair.take)] = undone_end;
    }
  }

  [[nodiscard]] bool is_seed(index_t v) const noexcept {
    const op_kind kind = g_.kind(v);
    if (kind == op_kind::variable || kind == op_kind::placeholder || kind == op_kind::control_flow)
      return true;
    const op_effects effects = g_.effects(v);
    if (has_effect(effects, op_effects::writes | op_effects::target)) return true;
    // Ahead of the step it would come before the external ops of earlier steps.
    if (has_effect(effects, op_effects::external) && !pairs_.is_before_put(v)) return true;
    return has_effect(effects, op_effects::reads) && kind != op_kind::id_lookup;
  }

  void colour() {
    std::vector<number> queue;
    queue.reserve(at(g_.size()));
    for (index_t v = 0; v < g_.size(); ++v) {
      if (barrier_[at(v)] == nothing && is_seed(v)) {
        barrier_[at(v)] = static_cast<number>(v);
        queue.push_back(static_cast<number>(v));
      }
    }
    for (std::size_t i = 0; i < queue.size(); ++i) {
      const number u = queue[i];
      if (g_.kind(u) == op_kind::stage) continue;  // what it takes is of an earlier step
      const bool handle = is_handle(u);
      for_each_user(u, [&](index_t w, index_t) {
        if (barrier_[at(w)] != nothing) return;
        if (handle && g_.kind(w) == op_kind::id_lookup) return;
        barrier_[at(w)] = u;
        queue.push_back(static_cast<number>(w));
      });
    }
  }

  void find_sides() {
    side_.assign(at(g_.size()), op_side::rest);
    std::vector<number> open;
    const auto mark = [&](index_t v, op_side s) {
      if (side_[at(v)] == op_side::rest) side_[at(v)] = s, open.push_back(static_cast<number>(v));
    };
    const auto upwards = [&](op_side s) {
      while (!open.empty()) {
        const number v = open.back();
        open.pop_back();
        for_each_need(v, [&](index_t u) { mark(u, s); });
      }
    };
    for (const stage_pair& pair : pairs()) {
      if (!pair.kept.empty()) continue;
      side_[at(pair.put)] = side_[at(pair.take)] = op_side::undone;
    }
    for (const stage_pair& pair : pairs()) {
      if (pair.kept.empty()) for_each_need(pair.put, [&](index_t u) { mark(u, op_side::staged); });
    }
    upwards(op_side::staged);
    for (const auto& [op, name] : g_.stage_ops()) {
      if (is_undone(op) || g_.kind(op) == op_kind::stage_take) continue;
      for_each_input(op, [&](index_t u) { mark(u, op_side::earlier); });
      mark(op, op_side::earlier);
    }
    upwards(op_side::earlier);
    // The users of the user's stage may be coloured themselves: then the cut stays at its boundary.
    const auto may_move = [&](index_t v) { return barrier_[at(v)] == nothing; };
    for (const stage_pair& pair : pairs()) {
      if (!pair.kept.empty()) continue;
      for (index_t e = g_.out_begin(pair.take); e < g_.out_end(pair.take); ++e) {
        if (!g_.is_control(e) && may_move(g_.destination(e))) mark(g_.destination(e), op_side::moved);
      }
    }
    std::vector<number> moved;
    while (!open.empty()) {
      const number v = open.back();
      open.pop_back();
      moved.push_back(v);
      for_each_user(v, [&](index_t w, index_t) {
        if (may_move(w)) mark(w, op_side::moved);
      });
    }
    for (const number v : moved) for_each_need(v, [&](index_t u) { mark(u, op_side::companion); });
    upwards(op_side::companion);
    for (index_t v = 0; v < g_.size(); ++v) {
      if (side_[at(v)] == op_side::rest && g_.kind(v) == op_kind::constant && g_.in(v).empty())
        side_[at(v)] = op_side::constant;
    }
  }

  // A staged op that a barrier reaches, and that the rest reads beside the stage, would give the rest another
  // value than now. True if that made a pair stay.
  bool keep_unfit_pairs() {
    std::vector<std::uint8_t> bad(side_.size());
    bool any = false;
    for (const number v : g_.order()) {
      if (side_[at(v)] != op_side::staged || barrier_[at(v)] < 0) continue;
      for (index_t e = g_.out_begin(v); e < g_.out_end(v); ++e) {
        const op_side s = side_[at(g_.destination(e))];
        if (!g_.is_control(e) && s != op_side::staged && s != op_side::undone) bad[at(v)] = 1, any = true;
      }
    }
    if (!any) return false;
    for (const number v : g_.order()) {
      if (bad[at(v)] == 0) continue;
      for (index_t e = g_.out_begin(v); e < g_.out_end(v); ++e) bad[at(g_.destination(e))] = 1;
    }
    for (stage_pair& pair : pairs_.list()) {
      if (pair.kept.empty() && bad[at(pair.put)] != 0)
        pair.kept = "the rest of the step also reads, beside the stage, what a barrier reaches before it";
    }
    return true;
  }

  const flat_graph& g_;
  stage_pairs pairs_;
  std::vector<number> barrier_;
  std::vector<op_side> side_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
