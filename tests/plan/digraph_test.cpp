// Neighbours, orders and cycles of digraphs against sets; the order of effects.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/plan/digraph.hpp>

#include "support/seed.hpp"

using namespace deeprec;
using number = digraph::number;

namespace {

std::size_t at(number v) { return static_cast<std::size_t>(v); }
using pairs = std::vector<std::pair<number, number>>;

digraph graph_of(std::size_t nodes, const pairs& edges) {
  std::vector<digraph::edge> all;
  for (const auto& [u, v] : edges) all.push_back({u, v});
  return {nodes, all};
}
std::vector<number> listed(std::span<const number> of) { return {of.begin(), of.end()}; }
bool is_topological(const digraph& g, const std::vector<number>& order) {
  std::vector<std::size_t> place(g.size(), g.size());
  for (std::size_t i = 0; i < order.size(); ++i) place[at(order[i])] = i;
  for (const number v : order) {
    for (const number u : g.before(v)) {
      if (place[at(u)] >= place[at(v)]) return false;
    }
  }
  return order.size() == g.size();
}

TEST_CASE("number_lists: counted keeps the order of items, turned holds each list, once where wanted") {
  const std::vector<int> list = {2, 0, 2, 1, 2}, item = {3, 1, 0, 1, 3};
  const auto made = number_lists::counted(
      4, 5, [&](std::size_t i) { return list[i]; }, [&](std::size_t i) { return item[i]; });
  REQUIRE(made.size() == 4);
  CHECK(listed(made[0]) == std::vector<number>{1});
  CHECK(listed(made[1]) == std::vector<number>{1});
  CHECK(listed(made[2]) == std::vector<number>{3, 0, 3});
  CHECK(made[3].empty());
  const number_lists all = made.turned(5), once = made.turned(5, true);
  CHECK(listed(all[3]) == std::vector<number>{2, 2});
  CHECK(listed(once[3]) == std::vector<number>{2});
  CHECK(listed(once[1]) == std::vector<number>{0, 1});
  CHECK(once[4].empty());
}

TEST_CASE("digraph: neighbours, orders and cycles of random graphs") {
  std::mt19937_64 random(deeprec_test::seed());
  int cyclic = 0;
  for (int round = 0; round < 400; ++round) {
    const std::size_t n = 1 + random() % 12;
    pairs edges;
    for (std::size_t e = random() % (2 * n); e-- > 0;) {
      edges.emplace_back(static_cast<number>(random() % n), static_cast<number>(random() % n));
      if (edges.back().first == edges.back().second) edges.pop_back();
    }
    const digraph g = graph_of(n, edges);
    const std::set<std::pair<number, number>> distinct(edges.begin(), edges.end());
    CHECK(g.size() == n);
    CHECK(g.edges() == distinct.size());
    for (number v = 0; at(v) < n; ++v) {
      std::vector<number> after, before;
      for (const auto& [a, b] : distinct) {
        if (a == v) after.push_back(b);
        if (b == v) before.push_back(a);
      }
      std::sort(before.begin(), before.end());
      CHECK(listed(g.after(v)) == after);
      CHECK(listed(g.before(v)) == before);
    }
    const std::vector<number> order = g.order_by(std::greater<>());
    CHECK(g.order_as_ready().size() == order.size());
    if (order.size() == n) {
      CHECK(is_topological(g, order));
      CHECK(is_topological(g, g.order_as_ready()));
      continue;
    }
    ++cyclic;
    const std::vector<number> cycle = g.cycle(order);
    REQUIRE(cycle.size() >= 2);
    CHECK(cycle.front() == *std::min_element(cycle.begin(), cycle.end()));
    CHECK(std::set<number>(cycle.begin(), cycle.end()).size() == cycle.size());
    for (std::size_t i = 0; i < cycle.size(); ++i)
      CHECK(distinct.count({cycle[i], cycle[(i + 1) % cycle.size()]}) == 1);
  }
  CHECK(cyclic > 50);
}

TEST_CASE("digraph: of ready nodes the least, or the one that became ready first") {
  // 3 -> 0 -> 1, 2 alone
  const digraph g = graph_of(4, {{3, 0}, {0, 1}});
  CHECK(g.order_by(std::greater<>()) == std::vector<number>{2, 3, 0, 1});
  CHECK(g.order_by(std::less<>()) == std::vector<number>{3, 2, 0, 1});
  CHECK(g.order_as_ready() == std::vector<number>{2, 3, 0, 1});
  CHECK(digraph().order_as_ready().empty());
}

TEST_CASE("cycle_text: names in the order of the edges, the first sixteen") {
  const auto name = [](number v) { return "n" + std::to_string(v); };
  const std::vector<number> three = {1, 4, 2};
  CHECK(cycle_text(three, name) == "n1 -> n4 -> n2 -> n1");
  std::vector<number> many;
  for (number v = 0; v < 17; ++v) many.push_back(v);
  CHECK(cycle_text(many, name) ==
        "n0 -> n1 -> n2 -> n3 -> n4 -> n5 -> n6 -> n7 -> n8 -> n9 -> n10 -> n11 -> n12 -> n13 -> n14 -> n15 "
        "-> ... -> n0");
  many.pop_back();
  CHECK(cycle_text(many, name).find("...") == std::string::npos);
}

TEST_CASE("effect_order: a reader follows the last change, a change the readers since, or else that change") {
  effect_order of;
  pairs edges;
  const auto edge_to = [&](number v) { return [&edges, v](number u) { edges.emplace_back(u, v); }; };
  of.reads(0, edge_to(0));
  of.changes(1, edge_to(1));
  of.changes(2, edge_to(2));
  of.reads(3, edge_to(3));
  of.reads(3, edge_to(3));
  of.reads(4, edge_to(4));
  of.changes(5, edge_to(5));
  of.changes(6, edge_to(6));
  CHECK(edges == pairs{{0, 1}, {1, 2}, {2, 3}, {2, 3}, {2, 4}, {3, 5}, {4, 5}, {5, 6}});
}

}  // namespace
