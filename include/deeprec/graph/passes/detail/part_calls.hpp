// The calls that a placement of ops at servers needs, and what they cost.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/passes/detail/part_rules.hpp>
#include <deeprec/graph/passes/graph_parts.hpp>
#include <deeprec/plan/digraph.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Values and dependencies between ops that have a part: what no placement changes.
struct part_graph {
  using number = flat_graph::number;
  struct value {
    number source, port;
    std::int64_t bytes;
  };

  part_graph(const flat_graph& g, const part_rules& rules) : resident(rules.resident) {
    std::vector<digraph::edge> edges;
    std::vector<std::pair<number, number>> read;  // value, op
    for (index_t v = 0; v < g.size(); ++v) {
      if (resident[at(v)]) continue;
      for (index_t e = g.out_begin(v); e < g.out_end(v); ++e) {
        if (resident[at(g.destination(e))]) continue;
        const auto to = static_cast<number>(g.destination(e)), from = static_cast<number>(v);
        edges.push_back({from, to});
        if (g.is_control(e)) {
          controls.push_back({from, to});
          continue;
        }
        const auto port = static_cast<number>(g.source_port(e));
        if (values.empty() || values.back().source != from || values.back().port != port)
          values.push_back({from, port, 0});
        values.back().bytes = (std::max)(values.back().bytes, g.bytes(e));
        read.emplace_back(static_cast<number>(values.size() - 1), to);
      }
    }
    std::map<std::string_view, std::vector<number>> puts;
    for (const auto& [op, stage] : g.stage_ops()) {
      if (g.kind(op) == op_kind::stage_put) puts[stage].push_back(op);
    }
    for (const auto& [op, stage] : g.stage_ops()) {
      if (g.kind(op) != op_kind::stage_take || puts.count(stage) == 0) continue;
      for (const number put : puts.find(stage)->second) edges.push_back({put, op});
    }
    needs = digraph(at(g.size()), edges);
    users = number_lists::counted(
        values.size(), read.size(), [&](std::size_t i) { return read[i].first; },
        [&](std::size_t i) { return read[i].second; });
    uses = users.turned(at(g.size()), true);
    makes = number_lists::counted(
        at(g.size()), values.size(), [&](std::size_t i) { return values[i].source; },
        [](std::size_t i) { return i; });
    for (const number v : g.order()) {
      if (!resident[at(v)]) order.push_back(v);
    }
  }
  template <class Number>
  static std::size_t at(Number i) noexcept {
    return static_cast<std::size_t>(i);
  }

  const std::vector<bool>& resident;
  digraph needs;
  std::vector<value> values;
  std::vector<digraph::edge> controls;
  number_lists users;         // of a value, the ops
  number_lists uses, makes;   // of an op, the values
  std::vector<number> order;  // topological
};

/// The calls of a placement: numbers of parts are those of the calls, in their order.
class part_calls {
 public:
  using number = flat_graph::number;
  static constexpr number worker = -1;

  part_calls(const part_graph& g, const part_rules& rules) : g_(g), rules_(rules), missing_(g.needs.size()) {}

  std::vector<number> part;       // of each op; `worker`
  std::vector<number> server_of;  // of each part

  /// Fills both: ops with a server in `where` into as few calls as the order that is tried needs. No call
  /// needs, by way of others or of the worker, what itself makes.
  void plan(const std::vector<number>& where) {
    where_ = &where;
    number_keys();
    sequence();
    if (server_of.size() > keys_) delay();
  }

  [[nodiscard]] part_traffic traffic() {
    part_traffic all{2 * static_cast<index_t>(server_of.size()), 0};
    for (std::size_t i = 0; i < g_.values.size(); ++i) all.bytes += crossing(i);
    return all;
  }

 private:
  template <class Number>
  static std::size_t at(Number i) noexcept {
    return static_cast<std::size_t>(i);
  }

  // Ops that may share a call: a server and a class.
  void number_keys() {
    key_.assign(g_.needs.size(), -1);
    std::map<std::pair<number, number>, number> found;
    left_.clear();
    server_of_key_.clear();
    for (const number v : g_.order) {
      const number server = (*where_)[at(v)];
      if (server == worker) continue;
      const auto made =
          found.try_emplace({server, rules_.class_of[at(v)]}, static_cast<number>(left_.size()));
      if (made.second) {
        left_.push_back(0);
        server_of_key_.push_back(server);
      }
      key_[at(v)] = made.first->second;
      ++left_[at(key_[at(v)])];
    }
    keys_ = left_.size();
  }

  // How many calls of its own key lie on the paths from an op, its own among them.
  void count_ahead() {
    ahead_.assign(g_.needs.size(), 1);
    std::vector<number> most(g_.needs.size());
    for (std::size_t k = 0; k < keys_; ++k) {
      if (left_[k] < 2) continue;
      for (std::size_t i = g_.order.size(); i-- > 0;) {
        const number v = g_.order[i];
        const bool own = key_[at(v)] == static_cast<number>(k);
        number longest = own ? 1 : 0;
        for (const number w : g_.needs.after(v)) {
          const bool joins = own && key_[at(w)] != static_cast<number>(k);
          longest = (std::max)(longest, most[at(w)] + (joins ? 1 : 0));
        }
        most[at(v)] = longest;
        if (own) ahead_[at(v)] = longest;
      }
    }
  }

  // The worker's ops run as soon as they can. A call takes all that can run at its server. It never hurts to
  // make the last call of a key; else that is made which has the most calls of its own behind it.
  void sequence() {
    part.assign(g_.needs.size(), worker);
    server_of.clear();
    if (keys_ > 0) count_ahead();
    ready_.assign(keys_, {});
    idle_.clear();
    for (const number v : g_.order) {
      missing_[at(v)] = static_cast<number>(g_.needs.before(v).size());
      if (missing_[at(v)] == 0) start(v);
    }
    while (true) {
      while (!idle_.empty()) {
        const number v = idle_.back();
        idle_.pop_back();
        end(v);
      }
      std::size_t best = keys_;
      number most = 0;
      for (std::size_t k = 0; k < keys_; ++k) {
        if (ready_[k].empty()) continue;
        if (closure(k) == left_[k]) {
          best = k;
          break;
        }
        number here = 0;
        for (const number v : ready_[k]) here = (std::max)(here, ahead_[at(v)]);
        if (here > most) {
          most = here;
          best = k;
        }
      }
      if (best == keys_) return;
      const auto call = static_cast<number>(server_of.size());
      server_of.push_back(server_of_key_[best]);
      // What becomes ready by the call itself is part of it.
      while (!ready_[best].empty()) {
        const number v = ready_[best].back();
        ready_[best].pop_back();
        part[at(v)] = call;
        --left_[best];
        end(v);
      }
    }
  }
  void start(number v) { key_[at(v)] < 0 ? idle_.push_back(v) : ready_[at(key_[at(v)])].push_back(v); }
  void end(number v) {
    for (const number w : g_.needs.after(v)) {
      if (--missing_[at(w)] == 0) start(w);
    }
  }
  // How many ops a call of the key would take.
  number closure(std::size_t k) {
    std::vector<number> open = ready_[k];
    std::vector<number> touched;
    number taken = 0;
    while (!open.empty()) {
      const number v = open.back();
      open.pop_back();
      ++taken;
      for (const number w : g_.needs.after(v)) {
        if (key_[at(w)] != static_cast<number>(k)) continue;
        touched.push_back(w);
        if (--missing_[at(w)] == 0) open.push_back(w);
      }
    }
    for (const number w : touched) ++missing_[at(w)];
    return taken;
  }

  // Puts ops into a later call of their key where fewer bytes cross, then leaves empty calls out.
  void delay() {
    const auto calls = static_cast<number>(server_of.size());
    std::vector<number> key_of(at(calls)), latest(g_.needs.size(), calls);
    for (const number v : g_.order) {
      if (part[at(v)] >= 0) key_of[at(part[at(v)])] = key_[at(v)];
    }
    for (std::size_t i = g_.order.size(); i-- > 0;) {
      const number v = g_.order[i];
      number last = calls;
      for (const number w : g_.needs.after(v)) {
        const bool call = part[at(w)] >= 0;
        last = (std::min)(last, call ? part[at(w)] - (key_[at(v)] < 0 ? 1 : 0) : latest[at(w)]);
      }
      latest[at(v)] = last;
      if (key_[at(v)] < 0) continue;
      const number first = part[at(v)];
      number best = first;
      double least = around(v);
      for (number q = first + 1; q <= last && q < calls; ++q) {
        if (key_of[at(q)] != key_[at(v)]) continue;
        part[at(v)] = q;
        const double bytes = around(v);
        if (bytes < least) {
          least = bytes;
          best = q;
        }
      }
      part[at(v)] = best;
    }
    std::vector<number> renamed(at(calls), -1);
    for (const number v : g_.order) {
      if (part[at(v)] >= 0) renamed[at(part[at(v)])] = 0;
    }
    number kept = 0;
    for (number p = 0; p < calls; ++p) {
      if (renamed[at(p)] < 0) continue;
      server_of[at(kept)] = server_of[at(p)];
      renamed[at(p)] = kept++;
    }
    server_of.resize(at(kept));
    for (const number v : g_.order) {
      if (part[at(v)] >= 0) part[at(v)] = renamed[at(part[at(v)])];
    }
  }
  double around(number v) {
    double bytes = 0;
    for (const number i : g_.makes[at(v)]) bytes += crossing(at(i));
    for (const number i : g_.uses[at(v)]) bytes += crossing(at(i));
    return bytes;
  }

  // The bytes of a value that cross: from its part to the worker once, and from there to each part once.
  double crossing(std::size_t value) {
    const number from = part[at(g_.values[value].source)];
    bool outside = false;
    parts_.clear();
    for (const number v : g_.users[value]) {
      const number to = part[at(v)];
      if (to == from) continue;
      outside = true;
      if (to != worker) parts_.push_back(to);
    }
    std::sort(parts_.begin(), parts_.end());
    const auto feeds = std::unique(parts_.begin(), parts_.end()) - parts_.begin();
    const auto times = static_cast<double>(feeds + (outside && from != worker ? 1 : 0));
    return times * static_cast<double>(g_.values[value].bytes);
  }

  const part_graph& g_;
  const part_rules& rules_;
  const std::vector<number>* where_ = nullptr;
  std::size_t keys_ = 0;
  std::vector<number> key_, left_, server_of_key_, ahead_, missing_, idle_, parts_;
  std::vector<std::vector<number>> ready_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
