// What makes a flat graph of a step, or names a fault of it.
//
//   step_core   ops with inputs, in the order of adding ──flatten──> flat_graph   effects as control edges
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/step/detail/stale_reads.hpp>
#include <deeprec/graph/step/detail/step_core.hpp>
#include <deeprec/graph/step/detail/step_inputs.hpp>
#include <deeprec/graph/step/step_handles.hpp>
#include <deeprec/plan/digraph.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Of variables that overlap: "'tower', which overlaps 'model'"; the second name where both are one object.
inline std::string overlap_text(const step_core& g, const step_input& a, const step_input& b) {
  std::string of_b = "'" + g.op(b.from.op).name + "'";
  if (a.is_object(b)) return of_b;
  return "'" + g.op(a.from.op).name + "', which overlaps " + of_b;
}

/// Ops on two sides of a cut run at once, for two steps: one must not change what the other accesses. Stale
/// reads before a cut are the matter of stale_reads_of().
inline std::optional<fault> find_race(const step_core& g, const std::vector<index_t>& cuts) {
  struct one_access {
    index_t op;
    const step_input* input;
  };
  const memory_pieces pieces = pieces_of(g);
  std::vector<std::vector<one_access>> of_piece(pieces.size());
  for (index_t v = 0; v < g.size(); ++v) {
    for (const step_input& in : g.op(v).inputs) {
      if (!in.is_variable() || g.is_local(in)) continue;
      pieces.for_each(in.begin(), in.end(), [&](std::size_t piece) { of_piece[piece].push_back({v, &in}); });
    }
  }
  const auto level = [&](const one_access& a) { return cuts[static_cast<std::size_t>(a.op)]; };
  using place = std::tuple<index_t, index_t, const step_input*, const step_input*>;
  std::optional<std::pair<place, fault>> found;  // that of the first ops, whatever the addresses are
  for (const std::vector<one_access>& all : of_piece) {
    // One access of each pair changes the variable, and the one before the cut is no lookup of ids.
    constexpr index_t none = (std::numeric_limits<index_t>::max)();
    index_t least = none, least_change = none, most = -1, most_change = -1;
    for (const one_access& a : all) {
      least = (std::min)(least, level(a));
      if (a.input->changes()) least_change = (std::min)(least_change, level(a));
      if (g.op(a.op).kind == op_kind::id_lookup) continue;
      most = (std::max)(most, level(a));
      if (a.input->changes()) most_change = (std::max)(most_change, level(a));
    }
    if (most <= least_change && most_change <= least) continue;
    for (const one_access& a : all) {
      for (const one_access& b : all) {
        if (level(a) <= level(b) || (!a.input->changes() && !b.input->changes())) continue;
        const place here(a.op, b.op, a.input, b.input);
        if (g.op(a.op).kind == op_kind::id_lookup || (found && found->first <= here)) continue;
        if (a.input->is_stale()) continue;
        found.emplace(
            here, refuse_step(g, a.op, "an op before a cut must not share a variable that changes",
                              named(g, b.op) + " behind it " + (b.input->changes() ? "writes " : "reads ") +
                                  overlap_text(g, *b.input, *a.input)));
      }
    }
  }
  if (found) return std::move(found->second);
  // What is outside of the graph is one thing. The source is exempt: it always runs ahead.
  index_t external = -1;
  for (index_t v = 0; v < g.size(); ++v) {
    if (!g.op(v).external || g.op(v).is_source) continue;
    if (external < 0) external = v;
    if (cuts[static_cast<std::size_t>(v)] == cuts[static_cast<std::size_t>(external)]) continue;
    const bool first = cuts[static_cast<std::size_t>(v)] > cuts[static_cast<std::size_t>(external)];
    return refuse_step(g, first ? v : external,
                       "an op before a cut must not be external where one behind it is",
                       named(g, first ? external : v) + " is");
  }
  return std::nullopt;
}

/// What the caller of a step feeds is not there before the step begins.
inline std::optional<fault> find_fed_before(const step_core& g, const flat_graph& flat,
                                            const std::vector<index_t>& cuts) {
  for (index_t v = 0; v < g.size(); ++v) {
    if (g.op(v).kind != op_kind::placeholder) continue;
    for (index_t e = flat.out_begin(v); e < flat.out_end(v); ++e) {
      const index_t user = flat.destination(e);
      if (cuts[static_cast<std::size_t>(user)] > 0)
        return refuse_step(g, user, "an op before a cut must not need a placeholder", named(g, v));
    }
  }
  return std::nullopt;
}

class step_checks {
 public:
  explicit step_checks(const step_core& g) : g_(g) {}

  result<flat_graph> run() {
    for (index_t v = 0; v < g_.size(); ++v) {
      if (std::optional<fault> wrong = handles(v)) return *std::move(wrong);
    }
    for (index_t v = 0; v < g_.size(); ++v) {
      if (std::optional<fault> wrong = rules(v)) return *std::move(wrong);
    }
    result<flat_graph> flat = flatten();
    if (!flat) return flat;
    const std::vector<index_t> cuts = cuts_after(flat.value(), {}, [](index_t) { return true; });
    if (std::optional<fault> race = find_race(g_, cuts)) return *std::move(race);
    if (result<stale_reads> stale = stale_reads_of(g_, cuts); !stale) return stale.fault();
    if (std::optional<fault> fed = find_fed_before(g_, flat.value(), cuts)) return *std::move(fed);
    return flat;
  }

 private:
  static std::size_t at(index_t i) noexcept { return static_cast<std::size_t>(i); }

  std::optional<fault> handles(index_t v) const {
    const step_op& op = g_.op(v);
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      const port_ref& from = op.inputs[i].from;
      if (g_.owns(from)) continue;
      return refuse_step(
          g_, v, "an input must be a value or a variable of this graph",
          "input " + std::to_string(i) + (from.graph == 0 ? " is missing" : " is of another graph"));
    }
    for (const port_ref& u : op.after) {
      if (!g_.owns(u)) {
        return refuse_step(g_, v, "an op must run after ops of this graph",
                           u.graph == 0 ? "it was given none" : "it was given one of another graph");
      }
    }
    return std::nullopt;
  }

  std::optional<fault> rules(index_t v) {
    const step_op& op = g_.op(v);
    if (op.is_source) {
      if (source_ >= 0)
        return refuse_step(g_, v, "a graph must have one source", named(g_, source_) + " is one");
      source_ = v;
      if (!op.after.empty())
        return refuse_step(g_, v, "a source must begin the step",
                           "it waits for " + named(g_, op.after[0].op));
    }
    if (op.kind == op_kind::stage) {
      if (const auto [other, is_new] = stages_.emplace(op.name, v); !is_new)
        return refuse_step(g_, v, "stages must have different names", "so is " + named(g_, other->second));
      if (op.inputs.empty()) return refuse_step(g_, v, "a stage must have a value", "it has no input");
      for (const step_input& in : op.inputs) {
        if (const port_ref& from = in.from; !in.is_variable() && !g_.type_of(from))
          return refuse_step(g_, v, "a stage must hand on what an op makes", named(g_, from.op));
      }
    }
    bool changes = false;
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      const step_input& in = op.inputs[i];
      if (!in.is_variable()) {
        const step_op& maker = g_.op(in.from.op);
        if (maker.role > op.role) {
          return refuse_step(g_, v,
                             op.role == op_role::forward
                                 ? "a forward op must not need what a gradient or an apply op makes"
                                 : "a gradient op must not need what an apply op makes",
                             named(g_, in.from.op));
        }
        continue;
      }
      changes = changes || in.changes();
      if (in.use == variable_use::stale_read && in.window < 1) {
        return refuse_step(g_, v, "a stale read must have a window of at least 1",
                           "that of '" + g_.op(in.from.op).name + "' is " + std::to_string(in.window));
      }
      for (std::size_t j = 0; j < i; ++j) {
        const step_input& other = op.inputs[j];
        if (!other.is_variable() || !other.overlaps(in) || (!in.changes() && !other.changes())) continue;
        return refuse_step(g_, v, "an op must access a variable that it changes once",
                           overlap_text(g_, other, in) + (other.is_object(in) ? " twice" : ""));
      }
    }
    if (op.role == op_role::apply && !changes) return refuse_step(g_, v, "an apply op must write a variable");
    return std::nullopt;
  }

  result<flat_graph> flatten() const {
    flat_graph_builder build;
    for (index_t v = 0; v < g_.size(); ++v) {
      const step_op& op = g_.op(v);
      op_effects effects = op_effects::none;
      for (const step_input& in : op.inputs) {
        if (in.is_variable() && in.use != variable_use::write) effects = effects | op_effects::reads;
        if (in.is_variable() && in.changes()) effects = effects | op_effects::writes;
      }
      if (op.external || op.is_source) effects = effects | op_effects::external;
      if (op.target) effects = effects | op_effects::target;
      build.add({.name = op.name,
                 .kind = op.kind,
                 .place = op.place,
                 .effects = effects,
                 .cost = op.cost,
                 .stage = op.kind == op_kind::stage ? std::string_view(op.name) : std::string_view()});
    }
    for (index_t v = 0; v < g_.size(); ++v) {
      const step_op& op = g_.op(v);
      for (std::size_t i = 0; i < op.inputs.size(); ++i) {
        const port_ref& from = op.inputs[i].from;
        std::int64_t bytes = 0;
        if (!op.inputs[i].is_variable()) {
          const port_ref made = g_.made_at(from);
          bytes = g_.op(made.op).bytes[at(made.port)];
        }
        build.connect(from.op, from.port, v, static_cast<index_t>(i), bytes);
      }
      for (const port_ref& u : op.after) build.control(u.op, v);
    }
    for_each_effect_edge(g_, [&](index_t u, index_t v) { build.control(u, v); });
    return build.build();
  }

  const step_core& g_;
  index_t source_ = -1;
  std::unordered_map<std::string_view, index_t> stages_;  // by name
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
