// Partitions of graphs checked, executed and searched by brute force.
#pragma once

#include <deeprec/core/hash.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/passes/graph_parts.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace deeprec_test {

using deeprec::flat_graph;
using deeprec::graph_parts;
using deeprec::index_t;

/// What a partition must keep, found again from the graph: by reachability, op by op.
class part_oracle {
 public:
  part_oracle(const flat_graph& g, index_t servers, const std::vector<deeprec::variable_owner>& owners)
      : g_(g), servers_(servers) {
    for (const auto& [v, server] : owners) owner_[v] = server;
    const auto n = static_cast<std::size_t>(g.size());
    reach_.assign(n, std::vector<bool>(n));
    const auto order = g.order();
    for (auto v = order.rbegin(); v != order.rend(); ++v) {
      for (index_t e = g.out_begin(*v); e < g.out_end(*v); ++e) {
        const auto w = static_cast<std::size_t>(g.destination(e));
        reach_[at(*v)][w] = true;
        for (std::size_t x = 0; x < n; ++x) reach_[at(*v)][x] = reach_[at(*v)][x] || reach_[w][x];
      }
    }
    for (index_t e = 0; e < g.edge_count(); ++e) {
      if (!everywhere(g.source(e)) && !everywhere(g.destination(e)))
        needs_.insert({g.source(e), g.destination(e)});
    }
    for (const auto& [put, stage] : g.stage_ops()) {
      for (const auto& [take, other] : g.stage_ops()) {
        if (g.kind(put) == deeprec::op_kind::stage_put && g.kind(take) == deeprec::op_kind::stage_take &&
            stage == other)
          needs_.insert({put, take});
      }
    }
  }

  [[nodiscard]] bool everywhere(index_t v) const {
    return owner_.count(v) != 0 || (g_.kind(v) == deeprec::op_kind::constant && g_.in(v).empty());
  }
  /// The server whose variable an op accesses; -1: none.
  [[nodiscard]] index_t home(index_t v) const {
    for (const auto e : g_.in(v)) {
      const auto found = owner_.find(g_.source(e));
      if (found != owner_.end() && !g_.is_control(e)) return found->second;
    }
    return -1;
  }
  [[nodiscard]] bool flows(index_t v) const {
    for (index_t u = 0; u < g_.size(); ++u) {
      if (g_.kind(u) == deeprec::op_kind::control_flow && reach_[at(u)][at(v)]) return true;
    }
    return false;
  }
  [[nodiscard]] bool movable(index_t v) const {
    using enum deeprec::op_kind;
    if (everywhere(v) || home(v) >= 0 || flows(v)) return false;
    if (g_.effects(v) != deeprec::op_effects::none || g_.place(v) == deeprec::op_place::device) return false;
    for (const auto e : g_.in(v)) {
      if (!g_.is_control(e) && g_.kind(g_.source(e)) == variable) return false;
    }
    return g_.kind(v) == plain || g_.kind(v) == constant;
  }
  /// Whether both may be in one call, as far as stages and control flow say.
  [[nodiscard]] bool may_share(index_t a, index_t b) const {
    if (flows(a) || flows(b)) return false;
    const auto ahead = [&](index_t v) {
      std::set<std::string_view> stages;
      for (const auto& [op, stage] : g_.stage_ops()) {
        if (g_.kind(op) != deeprec::op_kind::stage_take && reach_[at(v)][at(op)]) stages.insert(stage);
      }
      return stages;
    };
    return ahead(a) == ahead(b);
  }

  /// Whether calls and the worker's ops have an order. `part[v]`: a number from 0, or -1, the worker.
  [[nodiscard]] bool acyclic(const std::vector<index_t>& part, std::size_t parts) const {
    const auto node = [&](index_t v) { return part[at(v)] >= 0 ? at(part[at(v)]) : parts + at(v); };
    std::map<std::size_t, std::set<std::size_t>> after;
    std::map<std::size_t, int> missing;
    for (const auto& [u, v] : needs_) {
      if (node(u) == node(v)) continue;
      if (after[node(u)].insert(node(v)).second) ++missing[node(v)];
      missing[node(u)];
    }
    std::vector<std::size_t> open;
    for (const auto& [v, count] : missing) {
      if (count == 0) open.push_back(v);
    }
    std::size_t done = 0;
    while (!open.empty()) {
      const std::size_t v = open.back();
      open.pop_back();
      ++done;
      for (const std::size_t w : after[v]) {
        if (--missing[w] == 0) open.push_back(w);
      }
    }
    return done == missing.size();
  }

  /// Bytes of a partition: each value from its part to the worker once, and to each part that uses it once.
  [[nodiscard]] double bytes(const std::vector<index_t>& part, index_t unknown = -7) const {
    std::map<std::pair<index_t, index_t>, std::pair<std::set<index_t>, double>> used;
    for (index_t e = 0; e < g_.edge_count(); ++e) {
      const index_t u = g_.source(e), v = g_.destination(e);
      if (g_.is_control(e) || everywhere(u) || everywhere(v)) continue;
      auto& [to, size] = used[{u, g_.source_port(e)}];
      size = std::max(size, static_cast<double>(g_.bytes(e)));
      if (part[at(u)] != unknown && part[at(v)] != unknown && part[at(v)] != part[at(u)])
        to.insert(part[at(v)]);
    }
    double all = 0;
    for (const auto& [value, crossing] : used) {
      const auto& [to, size] = crossing;
      if (to.empty()) continue;
      const bool fetched = part[at(value.first)] >= 0;
      all += size * static_cast<double>(to.size() - to.count(-1) + (fetched ? 1 : 0));
    }
    return all;
  }

  /// What is wrong with a partition; empty: nothing.
  [[nodiscard]] std::string fault(const graph_parts& made) const {
    std::vector<int> times(at(g_.size()));
    for (std::size_t p = 0; p < made.parts.size(); ++p) {
      const auto& part = made.parts[p];
      if (part.ops.empty()) return "a call of nothing";
      for (const index_t v : part.ops) {
        ++times[at(v)];
        const std::string name = "op " + std::to_string(v);
        if (made.part[at(v)] != static_cast<index_t>(p)) return name + " is in another part";
        if (home(v) >= 0 ? home(v) != part.server : !movable(v)) return name + " may not be there";
        for (const index_t u : part.ops) {
          if (u != v && !may_share(u, v)) return name + " may not be called with op " + std::to_string(u);
        }
      }
    }
    for (const auto& step : made.steps) {
      if (step.part < 0) ++times[at(step.op)];
    }
    for (index_t v = 0; v < g_.size(); ++v) {
      const std::string name = "op " + std::to_string(v);
      if (times[at(v)] != (everywhere(v) ? 0 : 1)) return name + " is not there once";
      if ((made.part[at(v)] == graph_parts::everywhere) != everywhere(v))
        return name + " is everywhere, or not";
      if (made.part[at(v)] == graph_parts::worker && home(v) >= 0) return name + " is not at its variable";
    }
    if (!acyclic(made.part, made.parts.size())) return "calls depend on each other in a circle";
    double listed = 0;
    for (const auto& part : made.parts) {
      for (const auto* list : {&part.feeds, &part.fetches}) {
        std::set<std::pair<index_t, index_t>> once;
        for (const auto& value : *list) {
          listed += static_cast<double>(value.bytes);
          if (!once.emplace(value.source, value.source_port).second) return "a value crosses twice";
        }
      }
    }
    if (listed != made.traffic.bytes || listed != bytes(made.part)) return "bytes differ";
    if (made.traffic.messages != 2 * static_cast<index_t>(made.parts.size())) return "messages differ";
    return {};
  }

  [[nodiscard]] double price(const std::vector<index_t>& part, std::size_t parts,
                             const deeprec::partition_options& options, index_t unknown = -7) const {
    double moved = 0;
    for (index_t v = 0; v < g_.size(); ++v) {
      if (part[at(v)] >= 0 && home(v) < 0) moved += g_.cost(v);
    }
    return options.cost_per_byte * bytes(part, unknown) +
           options.cost_per_message * 2 * static_cast<double>(parts) + options.server_cost * moved;
  }

  /// The least price of all partitions, each tried; those that cost more than `bound` so far are left.
  [[nodiscard]] double least(const deeprec::partition_options& options, double bound) const {
    std::vector<index_t> part(at(g_.size()), -7), server;
    std::vector<index_t> ops;
    for (const auto v : g_.order()) {
      if (everywhere(v)) {
        part[at(v)] = -2;
      } else {
        ops.push_back(v);
      }
    }
    double best = bound;
    const auto go = [&](const auto& self, std::size_t i) -> void {
      if (price(part, server.size(), options) >= best) return;
      if (i == ops.size()) {
        if (acyclic(part, server.size())) best = price(part, server.size(), options);
        return;
      }
      const index_t v = ops[i];
      if (home(v) < 0) {
        part[at(v)] = -1;
        self(self, i + 1);
      }
      if (home(v) >= 0 || movable(v)) {
        for (std::size_t p = 0; p < server.size(); ++p) {
          if (home(v) >= 0 && server[p] != home(v)) continue;
          bool fits = true;
          for (std::size_t k = 0; k < i && fits; ++k)
            fits = part[at(ops[k])] != static_cast<index_t>(p) || may_share(ops[k], v);
          if (!fits) continue;
          part[at(v)] = static_cast<index_t>(p);
          self(self, i + 1);
        }
        for (index_t s = 0; s < servers_; ++s) {
          if (home(v) >= 0 && s != home(v)) continue;
          part[at(v)] = static_cast<index_t>(server.size());
          server.push_back(s);
          self(self, i + 1);
          server.pop_back();
        }
      }
      part[at(v)] = -7;
    };
    go(go, 0);
    return best;
  }

 private:
  static std::size_t at(index_t i) { return static_cast<std::size_t>(i); }

  const flat_graph& g_;
  index_t servers_;
  std::map<index_t, index_t> owner_;
  std::vector<std::vector<bool>> reach_;
  std::set<std::pair<index_t, index_t>> needs_;
};

/// Integer functions for ops: an output is a hash of the op, the port, the inputs, and the variables that it
/// accesses; who writes changes them.
class part_interpreter {
 public:
  using value = std::pair<index_t, index_t>;  // an op, a port
  using store = std::map<value, std::uint64_t>;

  part_interpreter(const flat_graph& g, const std::vector<deeprec::variable_owner>& owners) : g_(g) {
    for (const auto& [v, server] : owners) owner_[v] = server;
  }

  std::map<index_t, std::uint64_t> variables;  // after a step
  std::map<index_t, std::uint64_t> computed;   // of each op that ran

  /// The whole graph in its order.
  void run() {
    store all;
    for (const auto v : g_.order()) {
      if (!resident(v)) call(v, all, -2);
    }
  }
  /// By parts; false: an op lacks a value, or runs where its variable is not.
  [[nodiscard]] bool run(const graph_parts& made) {
    store worker;
    for (const auto& step : made.steps) {
      if (step.part < 0) {
        if (!call(step.op, worker, -1)) return false;
        continue;
      }
      const auto& part = made.parts[static_cast<std::size_t>(step.part)];
      store here;
      for (const auto& fed : part.feeds) {
        const auto found = worker.find({fed.source, fed.source_port});
        if (found == worker.end()) return false;
        here.insert(*found);
      }
      for (const index_t v : part.ops) {
        if (!call(v, here, part.server)) return false;
      }
      for (const auto& fetched : part.fetches) {
        const auto found = here.find({fetched.source, fetched.source_port});
        if (found == here.end()) return false;
        worker.insert(*found);
      }
    }
    return true;
  }

 private:
  [[nodiscard]] bool resident(index_t v) const {
    return owner_.count(v) != 0 || (g_.kind(v) == deeprec::op_kind::constant && g_.in(v).empty());
  }
  // `where`: -2 all in one place.
  bool call(index_t v, store& values, index_t where) {
    const auto mix = [](std::uint64_t a, std::uint64_t b) {
      return deeprec::mix64(a * 0x9e3779b97f4a7c15 ^ b);
    };
    std::uint64_t sum = static_cast<std::uint64_t>(v) + 17;
    for (const auto e : g_.in(v)) {
      const index_t u = g_.source(e), port = g_.source_port(e);
      if (g_.is_control(e)) {
        if (!resident(u) && computed.count(u) == 0) return false;
        continue;
      }
      if (g_.kind(u) == deeprec::op_kind::variable) {
        const auto owner = owner_.find(u);
        if (where != -2 && (owner == owner_.end() ? -1 : owner->second) != where) return false;
        sum = mix(sum, variables[u]);
      } else if (resident(u)) {
        sum = mix(sum, static_cast<std::uint64_t>(u));
      } else {
        const auto found = values.find({u, port});
        if (found == values.end()) return false;
        sum = mix(sum, found->second);
      }
    }
    for (const auto e : g_.in(v)) {
      const index_t u = g_.source(e);
      if (!g_.is_control(e) && g_.kind(u) == deeprec::op_kind::variable &&
          deeprec::has_effect(g_.effects(v), deeprec::op_effects::writes))
        variables[u] = mix(variables[u], sum);
    }
    if (!computed.emplace(v, sum).second) return false;
    for (index_t e = g_.out_begin(v); e < g_.out_end(v); ++e) {
      if (!g_.is_control(e))
        values[{v, g_.source_port(e)}] = mix(sum, static_cast<std::uint64_t>(g_.source_port(e)));
    }
    return true;
  }

  const flat_graph& g_;
  std::map<index_t, index_t> owner_;
};

}  // namespace deeprec_test
