// Random graphs of ops with a stage in them: for tests and benchmarks.
#pragma once

#include <deeprec/graph/ir/flat_graph.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace deeprec_test {

using deeprec::edge_info;
using deeprec::index_t;
using deeprec::op_effects;
using deeprec::op_kind;
using deeprec::op_place;

struct random_op {
  std::string name;
  op_kind kind = op_kind::plain;
  op_effects effects = op_effects::none;
  op_place place = op_place::any;
  double cost = 0;
  std::string stage;
};

/// A graph as lists, which flat_graph_builder checks.
struct random_graph {
  std::vector<random_op> ops;
  std::vector<edge_info> edges;

  [[nodiscard]] deeprec::result<deeprec::flat_graph> flat() const {
    deeprec::flat_graph_builder b;
    for (const random_op& op : ops) b.add({op.name, op.kind, op.place, op.effects, op.cost, op.stage});
    for (const edge_info& e : edges) b.add(e);
    return b.build();
  }
};

/// Ops in layers, the first of which is read by the user's stage; costs and bytes are log-normal. The last
/// layer is a target.
inline random_graph layered_graph(std::mt19937_64& random, index_t count, index_t width, int inputs) {
  random_graph g;
  std::lognormal_distribution<double> cost(0, 1), bytes(0, 1);
  const auto fresh = [&] { return static_cast<std::int64_t>(std::ceil(1000 * bytes(random))); };
  const auto op = [&](const char* name) {
    g.ops.push_back({name + std::to_string(g.ops.size()), op_kind::plain, op_effects::none, op_place::any,
                     cost(random), ""});
    return static_cast<index_t>(g.ops.size()) - 1;
  };
  const index_t source = op("read");
  const index_t put = op("put"), take = op("take");
  g.ops[1].kind = op_kind::stage_put;
  g.ops[2].kind = op_kind::stage_take;
  g.ops[1].stage = g.ops[2].stage = "io";
  g.ops[1].cost = g.ops[2].cost = 0;
  const std::int64_t first_bytes = fresh();
  g.edges.push_back({source, 0, put, 0, first_bytes, false});
  std::vector<std::pair<index_t, std::int64_t>> before = {{take, first_bytes}};
  for (index_t made = 0; made < count;) {
    std::vector<std::pair<index_t, std::int64_t>> layer;
    for (index_t i = 0; i < width && made < count; ++i, ++made) {
      const index_t v = op("op");
      std::set<std::size_t> from;
      for (int k = 0; k < inputs; ++k) from.insert(random() % before.size());
      index_t port = 0;
      for (const std::size_t f : from)
        g.edges.push_back({before[f].first, 0, v, port++, before[f].second, false});
      layer.emplace_back(v, fresh());
    }
    // What a layer leaves unread, the next one may still read.
    for (const auto& old : before) {
      if (old.first != take && random() % 4 == 0) layer.push_back(old);
    }
    before = std::move(layer);
  }
  const index_t target = op("target");
  g.ops.back().effects = op_effects::target;
  index_t port = 0;
  for (const auto& [v, size] : before) g.edges.push_back({v, 0, target, port++, size, false});
  return g;
}

/// Anything: kinds, effects, control edges, several stages, values that several ops read. With `broken` it
/// often is no graph.
inline random_graph wild_graph(std::mt19937_64& random, index_t most_ops, bool broken) {
  random_graph g;
  const auto chance = [&](unsigned percent) { return random() % 100 < percent; };
  const index_t n = 1 + static_cast<index_t>(random() % static_cast<std::uint64_t>(most_ops));
  static constexpr const char* stages[] = {"io", "b", "c"};
  for (index_t v = 0; v < n; ++v) {
    random_op op;
    op.name = "v" + std::to_string(v);
    const unsigned roll = static_cast<unsigned>(random() % 100);
    if (roll < 6) op.kind = op_kind::constant;
    if (roll >= 6 && roll < 10) op.kind = op_kind::variable;
    if (roll >= 10 && roll < 12) op.kind = op_kind::placeholder;
    if (roll >= 12 && roll < 14) op.kind = op_kind::control_flow;
    if (roll >= 14 && roll < 20) op.kind = op_kind::id_lookup;
    if (roll >= 20 && roll < 26) op.kind = op_kind::stage;
    if (chance(4)) op.effects = op.effects | op_effects::reads;
    if (chance(3)) op.effects = op.effects | op_effects::writes;
    if (chance(3)) op.effects = op.effects | op_effects::external;
    if (chance(4)) op.effects = op.effects | op_effects::target;
    op.place = static_cast<op_place>(random() % 3);
    op.cost = static_cast<double>(random() % 50);
    if (op.kind == op_kind::stage) op.stage = stages[random() % 3];
    if (broken && chance(1)) op.cost = chance(50) ? -1 : std::nan("");
    if (broken && chance(1)) op.stage = "";
    g.ops.push_back(op);
  }
  // Pairs: a put, and later a take.
  const auto pairs = static_cast<int>(random() % 3);
  std::vector<bool> taken(static_cast<std::size_t>(n));
  for (int p = 0; p < pairs && n >= 4; ++p) {
    const index_t put = 1 + static_cast<index_t>(random() % static_cast<std::uint64_t>(n - 2));
    const index_t take = put + 1 + static_cast<index_t>(random() % static_cast<std::uint64_t>(n - put - 1));
    for (const index_t v : {put, take}) {
      random_op& op = g.ops[static_cast<std::size_t>(v)];
      op.kind = v == put ? op_kind::stage_put : op_kind::stage_take;
      op.stage = std::string("p") + std::to_string(broken ? random() % 2 : static_cast<std::uint64_t>(p));
      op.effects = op_effects::none;
    }
  }
  for (index_t v = 1; v < n; ++v) {
    random_op& op = g.ops[static_cast<std::size_t>(v)];
    if (op.kind == op_kind::stage_take && !(broken && chance(3))) continue;
    if (op.kind == op_kind::variable && !chance(5)) continue;
    const auto inputs = static_cast<index_t>(random() % 4);
    for (index_t k = 0; k < inputs; ++k) {
      index_t u = static_cast<index_t>(random() % static_cast<std::uint64_t>(v));
      if (broken && chance(2)) u = static_cast<index_t>(random() % static_cast<std::uint64_t>(n + 2)) - 1;
      const bool control = chance(15);
      const bool in_range = u >= 0 && u < n;
      const op_kind kind = in_range ? g.ops[static_cast<std::size_t>(u)].kind : op_kind::plain;
      index_t port = static_cast<index_t>(random() % 3);
      if (kind == op_kind::stage_put && !(broken && chance(3))) continue;
      if (kind == op_kind::stage_take || kind == op_kind::stage) {
        // A value that was put, unless it is to be broken.
        index_t values = 0;
        for (const edge_info& e : g.edges) {
          if (e.control || e.destination < 0 || e.destination >= n) continue;
          const random_op& to = g.ops[static_cast<std::size_t>(e.destination)];
          const bool here = kind == op_kind::stage ? e.destination == u
                                                   : to.kind == op_kind::stage_put &&
                                                         to.stage == g.ops[static_cast<std::size_t>(u)].stage;
          values += here ? 1 : 0;
        }
        if (values == 0 && !(broken && chance(3))) continue;
        if (!(broken && chance(3))) port %= std::max<index_t>(1, values);
      }
      index_t to_port = k;
      if (broken && chance(2)) to_port = static_cast<index_t>(random() % 3) - 1;
      const auto size = static_cast<std::int64_t>(u >= 0 ? (u * 7 + port * 3) % 90 : 0);
      g.edges.push_back({u, port, v, to_port, broken && chance(1) ? -size : size, control});
    }
    // Input ports in order.
    if (!broken) {
      index_t port = 0;
      for (edge_info& e : g.edges) {
        if (e.destination == v && !e.control) e.destination_port = port++;
      }
    }
  }
  if (!broken) {
    // A stage of nothing is an op that does nothing.
    for (index_t v = 0; v < n; ++v) {
      random_op& op = g.ops[static_cast<std::size_t>(v)];
      if (op.kind != op_kind::stage_put && op.kind != op_kind::stage) continue;
      bool fed = false;
      for (const edge_info& e : g.edges) fed = fed || (e.destination == v && !e.control);
      if (fed) continue;
      if (op.kind == op_kind::stage_put) {
        g.edges.push_back({0, 0, v, 0, 1, false});
        if (g.ops[0].kind == op_kind::stage_take || g.ops[0].kind == op_kind::stage)
          g.ops[0] = {"v0", op_kind::plain, op_effects::none, op_place::any, 1, ""};
      } else {
        op.kind = op_kind::plain;
        op.stage.clear();
      }
    }
  }
  return g;
}

}  // namespace deeprec_test
