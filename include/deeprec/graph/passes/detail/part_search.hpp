// The placement of movable ops with the least price that a search finds.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/passes/detail/max_flow.hpp>
#include <deeprec/graph/passes/detail/part_calls.hpp>
#include <deeprec/graph/passes/detail/part_rules.hpp>
#include <deeprec/graph/passes/graph_parts.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// From two placements, nothing moved and the least cuts of one server after the other, ops move while that
/// helps: one alone, with all that it needs, or with all that needs it; and all that keep two calls apart.
class part_search {
 public:
  using number = flat_graph::number;
  static constexpr number worker = -1;

  part_search(const flat_graph& g, const part_rules& rules, const part_graph& parts, index_t servers,
              const partition_options& options)
      : g_(g),
        rules_(rules),
        parts_(parts),
        servers_(static_cast<number>(servers)),
        options_(options),
        calls_(parts, rules) {}

  /// The server of each op; `worker`.
  std::vector<number> run() {
    std::vector<number> unmoved = rules_.home;
    std::vector<number> cut = least_cuts(unmoved);
    double price = priced(unmoved), cut_price = priced(cut);
    descend(cut, cut_price);
    descend(unmoved, price);
    return cut_price < price ? cut : unmoved;
  }
  double priced(const std::vector<number>& where) {
    calls_.plan(where);
    const part_traffic traffic = calls_.traffic();
    double moved = 0;
    for (const number v : parts_.order) {
      if (where[at(v)] != rules_.home[at(v)]) moved += g_.cost(v);
    }
    return options_.cost_per_byte * traffic.bytes +
           options_.cost_per_message * static_cast<double>(traffic.messages) + options_.server_cost * moved;
  }

 private:
  template <class Number>
  static std::size_t at(Number i) noexcept {
    return static_cast<std::size_t>(i);
  }

  void descend(std::vector<number>& where, double& price) {
    const auto take = [&](std::vector<number>&& next) {
      const double found = priced(next);
      if (!(found < price)) return false;
      price = found;
      where = std::move(next);
      return true;
    };
    for (bool better = true; better;) {
      better = false;
      for (const number v : parts_.order) {
        if (!rules_.may_move(v)) continue;
        for (number server = worker; server < servers_; ++server) {
          for (const reach how : {reach::alone, reach::needed, reach::needing}) {
            if (where[at(v)] == server) break;
            if (tried_++ >= options_.most_priced) return;
            std::vector<number> next = where;
            move(next, v, server, how);
            better = take(std::move(next)) || better;
          }
        }
      }
      // Joins change the calls, so the first one that helps ends this.
      calls_.plan(where);
      const std::vector<number> part = calls_.part, server_of = calls_.server_of;
      const auto calls = static_cast<number>(server_of.size());
      for (number p = 0, joined = 0; p < calls && joined == 0; ++p) {
        for (number q = p + 1; q < calls && joined == 0; ++q) {
          std::vector<number> next = where;
          if (server_of[at(p)] != server_of[at(q)] || !join(next, part, p, q, server_of[at(p)])) continue;
          if (tried_++ >= options_.most_priced) return;
          joined = take(std::move(next)) ? 1 : 0;
          better = better || joined != 0;
        }
      }
    }
  }

  // Moves what lies between two calls to their server; false: not all of it may.
  bool join(std::vector<number>& where, const std::vector<number>& part, number first, number last,
            number server) const {
    std::vector<bool> behind(where.size()), before(where.size());
    for (const number v : parts_.order) {
      behind[at(v)] = part[at(v)] == first;
      for (const number u : parts_.needs.before(v)) behind[at(v)] = behind[at(v)] || behind[at(u)];
    }
    bool any = false;
    for (std::size_t i = parts_.order.size(); i-- > 0;) {
      const number v = parts_.order[i];
      before[at(v)] = part[at(v)] == last;
      for (const number w : parts_.needs.after(v)) before[at(v)] = before[at(v)] || before[at(w)];
      const number to = where[at(v)];
      if (!behind[at(v)] || !before[at(v)] || part[at(v)] == first || part[at(v)] == last) continue;
      if (!rules_.may_move(v)) return false;
      where[at(v)] = server;
      any = any || where[at(v)] != to;
    }
    return any;
  }
  enum class reach { alone, needed, needing };
  void move(std::vector<number>& where, number v, number to, reach how) const {
    std::vector<number> open{v};
    where[at(v)] = to;
    while (!open.empty() && how != reach::alone) {
      const number u = open.back();
      open.pop_back();
      for (const number w : how == reach::needed ? parts_.needs.before(u) : parts_.needs.after(u)) {
        if (!rules_.may_move(w) || where[at(w)] == to) continue;
        where[at(w)] = to;
        open.push_back(w);
      }
    }
  }

  // Of each server in turn the ops of the worker and its own are divided by a least cut of bytes and costs,
  // as if all of them were one call.
  std::vector<number> least_cuts(std::vector<number> where) {
    double total = 0;
    for (const auto& value : parts_.values)
      total += options_.cost_per_byte * static_cast<double>(value.bytes);
    for (const number v : parts_.order) total += options_.server_cost * g_.cost(v);
    if (!(total > 0) || !std::isfinite(total)) return where;
    const double scale = std::ldexp(1.0, 55) / total;
    constexpr int rounds = 4;
    for (int round = 0; round < rounds; ++round) {
      const std::vector<number> before = where;
      for (number server = 0; server < servers_; ++server) cut(where, server, scale);
      if (where == before) break;
    }
    return where;
  }
  void cut(std::vector<number>& where, number server, double scale) {
    // Nodes: ops, two for each value, the worker, the server. Where both sides cost the same, an op is the
    // worker's.
    const auto n = static_cast<number>(g_.size()), values = static_cast<number>(parts_.values.size());
    const number s = n + 2 * values, t = s + 1;
    const auto amount = [&](double price) { return static_cast<flow_network::amount>(price * scale); };
    const auto free = [&](number v) {
      return rules_.may_move(v) && (where[at(v)] == worker || where[at(v)] == server);
    };
    // What can't move is the worker or the server itself.
    const auto node = [&](number v) { return free(v) ? v : where[at(v)] == server ? t : s; };
    network_.clear(at(t) + 1);
    const auto arc = [&](number from, number to, flow_network::amount room) {
      if (from != t && to != s && from != to) network_.add(from, to, room);
    };
    for (const number v : parts_.order) {
      if (free(v)) arc(s, v, amount(options_.server_cost * g_.cost(v)));
    }
    for (number i = 0; i < values; ++i) {
      const auto price = amount(options_.cost_per_byte * static_cast<double>(parts_.values[at(i)].bytes));
      const number source = node(parts_.values[at(i)].source), fed = n + 2 * i, fetched = fed + 1;
      // Fed: made at the worker, used at the server. Fetched: the other way round.
      arc(source, fed, price);
      arc(fetched, source, price);
      bool by_worker = false, by_server = false;
      for (const number v : parts_.users[at(i)]) {
        const number user = node(v);
        by_worker = by_worker || user == s;
        by_server = by_server || user == t;
        if (user == s || user == t) continue;
        arc(fed, user, flow_network::unlimited);
        arc(user, fetched, flow_network::unlimited);
      }
      if (by_server) arc(fed, t, price);
      if (by_worker) arc(s, fetched, price);
    }
    network_.solve(s, t);
    for (const number v : parts_.order) {
      if (free(v)) where[at(v)] = network_.before_cut(v) ? worker : server;
    }
  }

  const flat_graph& g_;
  const part_rules& rules_;
  const part_graph& parts_;
  number servers_;
  const partition_options& options_;
  part_calls calls_;
  flow_network network_;
  index_t tried_ = 0;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
