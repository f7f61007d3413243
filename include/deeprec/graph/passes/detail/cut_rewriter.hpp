// A copy of a graph, edge by edge, with the puts and takes of a cut.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/passes/stage_cut.hpp>
#include <deeprec/graph/passes/staged_graph.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

class cut_rewriter {
 public:
  cut_rewriter(const flat_graph& g, const stage_cut& cut) : g_(g), cut_(cut) {}

  result<staged_graph> run() {
    copy_ops();
    add_stages();
    number_values();
    for (index_t e = 0; e < g_.edge_count(); ++e) rewire(e);
    // A staged op that no staged op and no put reads must have run before the record is whole.
    for (index_t v = 0; v < g_.size(); ++v) {
      if (before(v) && !fed_[at(v)]) build_.control(now_[at(v)], made_.puts[at(cut_.stage_of[at(v)])]);
    }
    result<flat_graph> graph = build_.build();
    if (!graph) return graph.fault();
    made_.graph = std::move(graph).value();
    return std::move(made_);
  }

 private:
  static std::size_t at(index_t i) noexcept { return static_cast<std::size_t>(i); }
  [[nodiscard]] op_side side(index_t v) const { return cut_.side[at(v)]; }
  [[nodiscard]] bool before(index_t v) const { return is_before_cut(side(v)); }

  index_t add(const op_info& op, index_t origin) {
    made_.origin.push_back(origin);
    return build_.add(op);
  }
  void copy_ops() {
    now_.assign(at(g_.size()), -1);
    copy_.assign(at(g_.size()), -1);
    fed_.assign(at(g_.size()), false);
    for (index_t v = 0; v < g_.size(); ++v) {
      if (side(v) == op_side::undone) continue;
      op_info op = g_.op(v);
      if (cut_.staged_place != op_place::any && (before(v) || side(v) == op_side::earlier))
        op.place = cut_.staged_place;
      now_[at(v)] = add(op, v);
    }
  }
  void add_stages() {
    take_of_.assign(at(g_.size()), -1);
    for (const cut_stage& stage : cut_.stages) {
      const std::string put = "put " + stage.name, take = "take " + stage.name;
      made_.puts.push_back(add(
          {.name = put, .kind = op_kind::stage_put, .place = cut_.staged_place, .stage = stage.name}, -1));
      made_.takes.push_back(add({.name = take, .kind = op_kind::stage_take, .stage = stage.name}, -1));
      for (std::size_t i = 0; i < stage.puts.size(); ++i) {
        take_of_[at(stage.puts[i])] = stage.takes[i];
        take_of_[at(stage.takes[i])] = made_.takes.back();
      }
    }
  }
  void number_values() {
    std::vector<index_t> next(cut_.stages.size());
    first_value_.assign(at(g_.size()) + 1, 0);
    for (const staged_value& value : cut_.values) {
      ++first_value_[at(value.source) + 1];
      position_.push_back(next[at(value.stage)]++);
    }
    for (std::size_t v = 0; v < at(g_.size()); ++v) first_value_[v + 1] += first_value_[v];
    for (std::size_t i = 0; i < cut_.values.size(); ++i) {
      const staged_value& value = cut_.values[i];
      build_.connect(now_[at(value.source)], value.source_port, made_.puts[at(value.stage)], position_[i],
                     value.bytes);
      fed_[at(value.source)] = true;
    }
  }
  // The number of a value; values are in order of source and port.
  [[nodiscard]] std::size_t value_of(index_t op, index_t port) const {
    std::size_t i = first_value_[at(op)];
    while (cut_.values[i].source_port != port) ++i;
    return i;
  }

  // An edge of the graph as if the user's stages were not there.
  void join(index_t u, index_t u_port, index_t w, index_t w_port, std::int64_t bytes, bool control) {
    if (before(u) && !before(w) && side(w) != op_side::earlier) {
      const auto stage = at(cut_.stage_of[at(u)]);
      if (control) {
        build_.control(made_.takes[stage], now_[at(w)]);
      } else {
        build_.connect(made_.takes[stage], position_[value_of(u, u_port)], now_[at(w)], w_port, bytes);
      }
      return;
    }
    index_t from = now_[at(u)];
    if (side(u) == op_side::constant && before(w)) from = staged_constant(u);
    if (before(u) && before(w)) fed_[at(u)] = true;
    if (control) {
      build_.control(from, now_[at(w)]);
    } else {
      build_.connect(from, u_port, now_[at(w)], w_port, bytes);
    }
  }
  void rewire(index_t e) {
    const edge_info edge = g_.edge(e);
    const bool from_take = side(edge.source) == op_side::undone,
               to_put = side(edge.destination) == op_side::undone;
    if (from_take) {
      // Data are joined from the put's side. What waited for the take waits for the new one.
      if (edge.control && !before(edge.destination) && !to_put)
        build_.control(take_of_[at(edge.source)], now_[at(edge.destination)]);
      return;
    }
    if (!to_put) {
      join(edge.source, edge.source_port, edge.destination, edge.destination_port, edge.bytes, edge.control);
      return;
    }
    if (edge.control) return;
    const index_t take = user_take(edge.destination);
    const auto [first, last] = g_.out_of_port(take, edge.destination_port);
    for (index_t a = first; a < last; ++a)
      join(edge.source, edge.source_port, g_.destination(a), g_.destination_port(a), edge.bytes, false);
  }
  [[nodiscard]] index_t user_take(index_t put) const {
    return g_.kind(put) == op_kind::stage ? put : take_of_[at(put)];
  }
  // A constant's copy on the staged side; the constant itself, where the rest has no use for it.
  index_t staged_constant(index_t c) {
    if (copy_[at(c)] >= 0) return copy_[at(c)];
    bool both = false;
    for (index_t e = g_.out_begin(c); e < g_.out_end(c) && !both; ++e) {
      const index_t w = g_.destination(e);
      if (side(w) == op_side::undone) {
        const auto [first, last] = g_.out_of_port(user_take(w), g_.destination_port(e));
        for (index_t a = first; a < last; ++a) both = both || !before(g_.destination(a));
      } else {
        both = !before(w);
      }
    }
    if (!both) return copy_[at(c)] = now_[at(c)];
    op_info op = g_.op(c);
    const std::string name = std::string(op.name) + "_duplicate";
    op.name = name;
    if (cut_.staged_place != op_place::any) op.place = cut_.staged_place;
    return copy_[at(c)] = add(op, c);
  }

  const flat_graph& g_;
  const stage_cut& cut_;
  flat_graph_builder build_;
  staged_graph made_;
  std::vector<index_t> now_;      // the new number of an op
  std::vector<index_t> copy_;     // of a constant: what the staged side uses
  std::vector<index_t> take_of_;  // of an undone put: its take; of an undone take: the new take
  std::vector<std::size_t> first_value_;
  std::vector<index_t> position_;  // of a value in its stage
  std::vector<bool> fed_;          // a staged op or a put reads it
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
