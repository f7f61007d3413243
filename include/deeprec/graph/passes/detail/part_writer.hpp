// Parts as the caller gets them: lists of ops and of values, and the worker's program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/passes/detail/part_calls.hpp>
#include <deeprec/graph/passes/detail/part_rules.hpp>
#include <deeprec/graph/passes/graph_parts.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

class part_writer {
 public:
  using number = flat_graph::number;
  part_writer(const flat_graph& g, const part_rules& rules, const part_graph& graph, const part_calls& calls)
      : g_(g), rules_(rules), graph_(graph), calls_(calls) {}

  void write(graph_parts& made) const {
    made.part.assign(at(g_.size()), graph_parts::everywhere);
    made.parts.resize(calls_.server_of.size());
    for (std::size_t p = 0; p < made.parts.size(); ++p) made.parts[p].server = calls_.server_of[p];
    for (const number v : graph_.order) {
      const number p = calls_.part[at(v)];
      made.part[at(v)] = p;
      if (p < 0) continue;
      made.parts[at(p)].ops.push_back(v);
      if (has_effect(g_.effects(v), op_effects::writes)) made.parts[at(p)].pushes = true;
      if (rules_.home[at(v)] < 0) made.moved.push_back(v);
    }
    std::sort(made.moved.begin(), made.moved.end());
    for (std::size_t i = 0; i < graph_.values.size(); ++i) {
      const part_graph::value& value = graph_.values[i];
      const part_value listed{value.source, value.port, value.bytes};
      const number from = calls_.part[at(value.source)];
      std::set<number> to;
      for (const number v : graph_.users[i]) {
        if (calls_.part[at(v)] != from) to.insert(calls_.part[at(v)]);
      }
      if (from >= 0 && !to.empty()) made.parts[at(from)].fetches.push_back(listed);
      for (const number p : to) {
        if (p >= 0) made.parts[at(p)].feeds.push_back(listed);
      }
    }
    // The worker's ops as early as they can, then the next call.
    std::vector<number> missing(at(g_.size())), idle;
    for (std::size_t i = graph_.order.size(); i-- > 0;) {
      const number v = graph_.order[i];
      missing[at(v)] = static_cast<number>(graph_.needs.before(v).size());
      if (missing[at(v)] == 0 && calls_.part[at(v)] < 0) idle.push_back(v);
    }
    const auto end = [&](number v) {
      for (const number w : graph_.needs.after(v)) {
        if (--missing[at(w)] == 0 && calls_.part[at(w)] < 0) idle.push_back(w);
      }
    };
    for (std::size_t p = 0; p <= made.parts.size(); ++p) {
      while (!idle.empty()) {
        const number v = idle.back();
        idle.pop_back();
        made.steps.push_back({v, -1});
        end(v);
      }
      if (p == made.parts.size()) break;
      made.steps.push_back({-1, static_cast<index_t>(p)});
      for (const index_t v : made.parts[p].ops) end(static_cast<number>(v));
    }
  }

  /// Each value, and each control edge, to each machine.
  [[nodiscard]] part_traffic separate() const {
    part_traffic all;
    std::set<std::pair<number, number>> told;
    for (std::size_t i = 0; i < graph_.values.size(); ++i) {
      std::set<number> to;
      for (const number v : graph_.users[i]) to.insert(rules_.home[at(v)]);
      to.erase(rules_.home[at(graph_.values[i].source)]);
      all.messages += static_cast<index_t>(to.size());
      all.bytes += static_cast<double>(to.size()) * static_cast<double>(graph_.values[i].bytes);
    }
    for (const digraph::edge& e : graph_.controls) {
      if (rules_.home[at(e.from)] != rules_.home[at(e.to)]) told.emplace(e.from, rules_.home[at(e.to)]);
    }
    all.messages += static_cast<index_t>(told.size());
    return all;
  }

 private:
  template <class Number>
  static std::size_t at(Number i) noexcept {
    return static_cast<std::size_t>(i);
  }

  const flat_graph& g_;
  const part_rules& rules_;
  const part_graph& graph_;
  const part_calls& calls_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
