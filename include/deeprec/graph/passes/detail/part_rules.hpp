// Which ops may be at which server, and which ones may share a call.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/passes/detail/op_words.hpp>
#include <deeprec/graph/passes/graph_parts.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

class part_rules {
 public:
  using number = flat_graph::number;
  static constexpr number worker = -1;

  explicit part_rules(const flat_graph& g) : g_(g), words_{g, 1} {}

  std::optional<fault> read(index_t servers, const std::vector<variable_owner>& owners) {
    if (auto wrong = read_owners(servers, owners)) return wrong;
    const std::size_t n = at(g_.size());
    resident.assign(n, false);
    home.assign(n, worker);
    why.assign(n, nullptr);
    for (index_t v = 0; v < g_.size(); ++v) {
      resident[at(v)] = owner_[at(v)] >= 0 || (g_.kind(v) == op_kind::constant && g_.in(v).empty());
    }
    for (index_t v = 0; v < g_.size(); ++v) {
      if (resident[at(v)]) continue;
      if (auto wrong = find_home(v)) return wrong;
    }
    find_classes();
    return {};
  }

  /// Whether an op may be at any server, or at the worker.
  [[nodiscard]] bool may_move(index_t v) const { return why[at(v)] == nullptr && !resident[at(v)]; }

  std::vector<bool> resident;    // there on each machine that uses it: no part
  std::vector<number> home;      // the server whose variable an op accesses; worker: none
  std::vector<const char*> why;  // an op may not move; null: it may
  std::vector<number> class_of;  // ops of one call are of one class

 private:
  template <class Number>
  static std::size_t at(Number i) noexcept {
    return static_cast<std::size_t>(i);
  }

  std::optional<fault> read_owners(index_t servers, const std::vector<variable_owner>& owners) {
    if (servers < 1) {
      return refused("subgraph_partition: servers must be at least 1", std::to_string(servers), -1, servers);
    }
    owner_.assign(at(g_.size()), -1);
    for (const auto& [v, server] : owners) {
      if (v < 0 || v >= g_.size()) {
        return refused("subgraph_partition: an owner must be of an op of the graph",
                       "op " + std::to_string(v) + " of " + std::to_string(g_.size()), -1, v);
      }
      if (g_.kind(v) != op_kind::variable || !g_.in(v).empty()) {
        return refused(
            "subgraph_partition: an owner must be of a variable that needs nothing",
            words_.named(v) + (g_.kind(v) != op_kind::variable ? " is no variable" : " has an input"), v);
      }
      if (server < 0 || server >= servers) {
        return refused(
            "subgraph_partition: an owner must be a server that exists",
            words_.named(v) + ": server " + std::to_string(server) + " of " + std::to_string(servers), v,
            server);
      }
      if (owner_[at(v)] >= 0 && owner_[at(v)] != server) {
        return refused("subgraph_partition: a variable must have one owner",
                       words_.named(v) + " has server " + std::to_string(owner_[at(v)]) + " and server " +
                           std::to_string(server),
                       v, server);
      }
      owner_[at(v)] = static_cast<number>(server);
    }
    return {};
  }

  std::optional<fault> find_home(index_t v) {
    index_t variable = -1;
    bool own = false;  // the worker's variable
    for (const number e : g_.in(v)) {
      if (g_.is_control(e)) continue;
      const index_t u = g_.source(e);
      own = own || (g_.kind(u) == op_kind::variable && owner_[at(u)] < 0);
      if (owner_[at(u)] < 0) continue;
      if (variable >= 0 && owner_[at(u)] != owner_[at(variable)]) {
        return refused("subgraph_partition: an op must access variables of one server",
                       words_.named(v) + " accesses " + words_.named(variable) + " and " + words_.named(u),
                       v);
      }
      variable = u;
    }
    const char* const bound = bound_to_worker(v, own);
    if (variable < 0) {
      const bool effects = has_effect(g_.effects(v), op_effects::reads | op_effects::writes);
      const bool outside = has_effect(g_.effects(v), op_effects::external);
      why[at(v)] = bound != nullptr                                ? bound
                   : effects                                       ? "it accesses a variable of the worker"
                   : outside                                       ? "it is external"
                   : has_effect(g_.effects(v), op_effects::target) ? "it is a target"
                   : g_.kind(v) == op_kind::id_lookup              ? "it accesses a variable of the worker"
                                                                   : nullptr;
      return {};
    }
    if (bound != nullptr) {
      return refused("subgraph_partition: an op that accesses a server's variable must be able to run there",
                     words_.named(v) + " accesses " + words_.named(variable) + ": " + bound, v);
    }
    home[at(v)] = owner_[at(variable)];
    why[at(v)] = "it accesses a variable of the server";
    return {};
  }
  [[nodiscard]] const char* bound_to_worker(index_t v, bool own) const {
    switch (g_.kind(v)) {
      case op_kind::variable:
        return "it is a variable of the worker";
      case op_kind::placeholder:
        return "the caller of a step feeds it";
      case op_kind::control_flow:
        return "it is control flow";
      case op_kind::stage_put:
      case op_kind::stage_take:
      case op_kind::stage:
        return "it is a stage";
      default:
        break;
    }
    if (g_.place(v) == op_place::device) return "it is placed on a device";
    return own ? "it accesses a variable of the worker" : nullptr;
  }

  // Ops of one call run once, at one time: with the same stages ahead of them, or a call would be for two
  // steps of a staged graph. What control flow reaches may run never or often: it is alone in its call.
  void find_classes() {
    std::map<std::set<std::string_view>, number> by_stages;
    const auto order = g_.order();
    std::vector<std::set<std::string_view>> ahead(at(g_.size()));
    class_of.assign(at(g_.size()), 0);
    std::vector<bool> flows(at(g_.size()));
    for (auto v = order.rbegin(); v != order.rend() && !g_.stage_ops().empty(); ++v) {
      const bool stage = g_.kind(*v) == op_kind::stage_put || g_.kind(*v) == op_kind::stage;
      if (stage) ahead[at(*v)].insert(g_.stage_of(*v));
      for (index_t e = g_.out_begin(*v); e < g_.out_end(*v); ++e) {
        const auto& of = ahead[at(g_.destination(e))];
        ahead[at(*v)].insert(of.begin(), of.end());
      }
    }
    for (const number v : order) {
      class_of[at(v)] =
          by_stages.try_emplace(ahead[at(v)], static_cast<number>(by_stages.size())).first->second;
    }
    auto classes = static_cast<number>(by_stages.size());
    for (const number v : order) {
      for (const number e : g_.in(v)) {
        const index_t u = g_.source(e);
        if (flows[at(u)] || g_.kind(u) == op_kind::control_flow) flows[at(v)] = true;
      }
      if (!flows[at(v)]) continue;
      class_of[at(v)] = classes++;
      if (may_move(v)) why[at(v)] = "control flow reaches it";
    }
  }

  const flat_graph& g_;
  op_words words_;
  std::vector<number> owner_;  // of a variable; -1: the worker, or no variable
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
