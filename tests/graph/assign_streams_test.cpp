#include <deeprec/graph/passes/assign_streams.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/graph/passes/explain_streams.hpp>

#include "support/random_graphs.hpp"
#include "support/seed.hpp"
#include "support/stream_simulator.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

/// What the graph orders: its edges, and the takes of each stage after its puts.
stream_simulator::order edges_of(const flat_graph& g) {
  stream_simulator::order edges;
  for (index_t e = 0; e < g.edge_count(); ++e) edges.emplace_back(g.source(e), g.destination(e));
  for (index_t put = 0; put < g.size(); ++put) {
    for (index_t take = 0; take < g.size(); ++take) {
      if (g.kind(put) == op_kind::stage_put && g.kind(take) == op_kind::stage_take &&
          g.stage_of(put) == g.stage_of(take))
        edges.emplace_back(put, take);
    }
  }
  return edges;
}

/// What only is there before a step.
bool resident(const flat_graph& g, index_t v) {
  const op_kind kind = g.kind(v);
  return g.in(v).empty() &&
         (kind == op_kind::constant || kind == op_kind::variable || kind == op_kind::placeholder);
}

/// The fewest waits that order what the graph orders, and nothing more, for the streams of a plan: the edges
/// between streams that are left when those are taken out that others imply.
index_t fewest_waits(const stream_plan& plan, const stream_simulator::order& edges, index_t ops) {
  const auto n = static_cast<std::size_t>(ops) + 2, start = n - 2, finish = n - 1;
  std::vector<std::vector<bool>> path(n, std::vector<bool>(n));
  std::vector<int> stream(n, -1);
  std::vector<std::size_t> last(static_cast<std::size_t>(plan.streams), n), order{start};
  last[0] = start;
  for (const stream_plan::step& step : plan.steps) {
    const auto v = static_cast<std::size_t>(step.op);
    stream[v] = step.stream;
    order.push_back(v);
    auto& before = last[static_cast<std::size_t>(step.stream)];
    if (before < n) path[before][v] = true;
    before = v;
    path[start][v] = path[v][finish] = true;
  }
  path[last[0]][finish] = true;
  stream[start] = stream[finish] = 0;
  order.push_back(finish);
  for (const auto& [u, v] : edges) {
    if (stream[static_cast<std::size_t>(u)] >= 0)
      path[static_cast<std::size_t>(u)][static_cast<std::size_t>(v)] = true;
  }
  for (const std::size_t w : order) {
    for (const std::size_t u : order) {
      if (!path[u][w]) continue;
      for (const std::size_t v : order) {
        if (path[w][v]) path[u][v] = true;
      }
    }
  }
  index_t waits = 0;
  for (const std::size_t u : order) {
    for (const std::size_t v : order) {
      if (!path[u][v] || stream[u] == stream[v]) continue;
      const bool implied =
          std::any_of(order.begin(), order.end(), [&](std::size_t w) { return path[u][w] && path[w][v]; });
      waits += implied ? 0 : 1;
    }
  }
  return waits;
}

index_t all_waits(const stream_plan& plan) {
  return plan.waits() + static_cast<index_t>(plan.forks.size() + plan.joins.size());
}

/// Every op that runs is in the plan once, and every request is kept.
std::string broken_request(const flat_graph& g, const stream_assignment& made,
                           const stream_requests& wanted) {
  std::map<index_t, int> times;
  for (const stream_plan::step& step : made.plan.steps) {
    ++times[step.op];
    if (made.stream[static_cast<std::size_t>(step.op)] != step.stream) return "streams differ";
  }
  std::map<index_t, index_t> leader;
  for (const op_colocation& c : wanted.colocated) leader[c.op] = c.leader;
  for (index_t v = 0; v < g.size(); ++v) {
    const int stream = made.stream[static_cast<std::size_t>(v)];
    if (times[v] != (resident(g, v) ? 0 : 1)) return "op " + std::to_string(v) + " is not there once";
    if (leader.count(v) != 0) {
      if (made.stream[static_cast<std::size_t>(leader[v])] != stream)
        return "op " + std::to_string(v) + " is not beside its leader";
      continue;
    }
    // The innermost scope: the longest one that is the op's name up to a slash.
    const stream_scope* inner = nullptr;
    for (const stream_scope& scope : wanted.scopes) {
      const std::string name(g.name(v));
      if (name != scope.name && name.rfind(scope.name + "/", 0) != 0) continue;
      if (inner == nullptr || inner->name.size() < scope.name.size()) inner = &scope;
    }
    if (inner != nullptr && inner->stream >= 0 && stream >= 0 && inner->stream != stream)
      return "op " + std::to_string(v) + " is not in its scope's stream";
  }
  return {};
}

std::string fault_of(const flat_graph& g, int streams, const stream_requests& wanted) {
  const auto made = assign_streams(g, streams, wanted);
  return made ? "" : made.fault().message();
}

}  // namespace

TEST_CASE("assign_streams: the towers of a model overlap, and the plan says why") {
  // [assign_streams]
  flat_graph_builder b;
  const index_t table = b.add({.name = "table", .kind = op_kind::variable});
  const index_t user = b.add({.name = "user/lookup", .cost = 2}),
                item = b.add({.name = "item/lookup", .cost = 1});
  const index_t user_mlp = b.add({.name = "user/mlp", .cost = 2}),
                item_mlp = b.add({.name = "item/mlp", .cost = 2});
  const index_t loss = b.add({.name = "loss", .cost = 1});
  for (const index_t lookup : {user, item}) b.connect(table, 0, lookup, 0);
  b.connect(user, 0, user_mlp, 0);
  b.connect(item, 0, item_mlp, 0);
  b.connect(user_mlp, 0, loss, 0);
  b.connect(item_mlp, 0, loss, 1);
  const flat_graph graph = b.build().or_throw();
  const stream_assignment made = assign_streams(graph, 4, {.scopes = {{"item", 1}}}).or_throw();
  const std::string why = explain(graph, made);
  // [assign_streams]
  CHECK(why ==
        "assign_streams: 5 ops on 4 streams, work 8, longest path 5; 1 wait of streams for each other, 1 "
        "stream "
        "after the start, 0 waits at the end, 2 events\n"
        "  stream 0: 3 ops, cost 5: 'user/lookup', 'user/mlp', 'loss'\n"
        "  stream 1: 2 ops, cost 3: 'item/lookup', 'item/mlp'\n"
        "  stream 2: 0 ops, cost 0\n"
        "  stream 3: 0 ops, cost 0\n"
        "  'item' is a scope of stream 1: 2 ops\n"
        "  'loss' on stream 0 waits for 'item/mlp' on stream 1\n"
        "  there before the step, on no stream: 'table'\n");
  CHECK(made.stream == std::vector<int>{-1, 0, 1, 0, 1, 0});
  CHECK(stream_simulator(made.plan, graph.size()).makespan([&](index_t v) { return graph.cost(v); }) == 5);
}

TEST_CASE(
    "assign_streams: all graphs of six ops keep every edge by the fewest waits, of five in every "
    "interleaving") {
  int broken = 0, tried = 0, by_runs = 0;  // six ops: by clocks only
  for (const index_t n : {1, 2, 3, 4, 5, 6}) {
    std::vector<std::pair<index_t, index_t>> pairs;
    for (index_t v = 0; v < n; ++v) {
      for (index_t u = 0; u < v; ++u) pairs.emplace_back(u, v);
    }
    for (std::uint32_t set = 0; set < (1U << pairs.size()); ++set) {
      flat_graph_builder b;
      for (index_t v = 0; v < n; ++v) b.add({.cost = static_cast<double>(1 + v % 3)});
      for (std::size_t e = 0; e < pairs.size(); ++e) {
        if ((set >> e & 1U) != 0) b.control(pairs[e].first, pairs[e].second);
      }
      const flat_graph g = b.build().or_throw();
      const auto edges = edges_of(g);
      for (const int streams : {1, 2, 3}) {
        const stream_assignment made = assign_streams(g, streams).or_throw();
        const stream_simulator simulated(made.plan, n);
        REQUIRE_MESSAGE(simulated.fault(edges) == "",
                        "edges " << set << " of " << n << ": " << explain(g, made));
        if (n < 6) REQUIRE(simulated.fault_in_any_run(edges) == "");
        CHECK(all_waits(made.plan) == fewest_waits(made.plan, edges, n));
        if (n == 6) continue;
        // Broken: without any one of its waits some interleaving breaks an order, and the clocks know.
        for_each_lost_wait(made.plan, [&](const stream_plan& less) {
          const stream_simulator loose(less, n);
          ++tried;
          broken += loose.fault(edges) != "" ? 1 : 0;
          by_runs += loose.fault_in_any_run(edges) != "" ? 1 : 0;
        });
      }
    }
  }
  CHECK(tried > 5000);
  CHECK(broken == tried);
  CHECK(by_runs == tried);
}

TEST_CASE(
    "assign_streams: every request of three ops, scopes in scopes and leaders among them, is kept or "
    "refused") {
  // Of each op: 0 none, 1 and 2 its own scope of stream 0 or 1, 3 its own scope of any stream, 4 + u
  // leader u. All are in a scope of stream 1.
  int kept = 0, refused = 0;
  for (std::uint32_t set = 0; set < 8; ++set) {
    flat_graph_builder b;
    for (const char* name : {"all/a", "all/b", "all/c"}) b.add({.name = name, .cost = 1});
    if ((set & 1U) != 0) b.control(0, 1);
    if ((set & 2U) != 0) b.control(0, 2);
    if ((set & 4U) != 0) b.control(1, 2);
    const flat_graph g = b.build().or_throw();
    for (int choice = 0; choice < 7 * 7 * 7; ++choice) {
      stream_requests wanted{{{"all", 1}}, {}};
      bool circle = false;
      index_t leader[3] = {0, 1, 2};
      for (int v = 0, left = choice; v < 3; ++v, left /= 7) {
        const int what = left % 7;
        if (what >= 1 && what <= 3)
          wanted.scopes.push_back({std::string(g.name(v)), what == 3 ? -1 : what - 1});
        if (what >= 4) {
          wanted.colocated.push_back({v, what - 4});
          leader[v] = what - 4;
          circle = circle || what - 4 == v;
        }
      }
      for (index_t v = 0; v < 3; ++v) {
        index_t u = v;
        for (int steps = 0; steps < 3; ++steps) u = leader[u];
        circle = circle || leader[u] != u;
      }
      const auto made = assign_streams(g, 3, wanted);
      REQUIRE(made.ok() == !circle);
      ++(circle ? refused : kept);
      if (circle) continue;
      CHECK(broken_request(g, made.value(), wanted) == "");
      CHECK(stream_simulator(made.value().plan, 3).fault_in_any_run(edges_of(g)) == "");
    }
  }
  CHECK(kept > 1000);
  CHECK(refused > 300);
}

TEST_CASE("assign_streams: random graphs of sixty ops, stages, constants, scopes and leaders in them") {
  std::mt19937_64 random(seed());
  int broken = 0, tried = 0, refused = 0, random_runs = 0, scoped = 0, led = 0;
  for (int round = 0; round < 10'000; ++round) {
    random_graph drawn = wild_graph(random, 60, false);
    static constexpr const char* scopes[] = {"", "a/", "a/b/", "a/b/c/", "ab/", "b/"};
    for (random_op& op : drawn.ops) op.name = scopes[random() % 6] + op.name;
    if (round % 10 == 0) {
      for (random_op& op : drawn.ops) op.cost = 0;
    }
    const auto flat = drawn.flat();
    if (!flat) {
      ++refused;
      continue;
    }
    const flat_graph& g = flat.value();
    const int streams = 1 + static_cast<int>(random() % 5);
    stream_requests wanted;
    for (const char* scope : {"a", "a/b", "a/b/c", "b"}) {
      const std::string name = scope;
      const bool has = std::any_of(drawn.ops.begin(), drawn.ops.end(),
                                   [&](const random_op& op) { return op.name.rfind(name + "/", 0) == 0; });
      if (has && random() % 2 == 0)
        wanted.scopes.push_back({name, static_cast<int>(random() % static_cast<unsigned>(streams + 1)) - 1});
    }
    for (index_t v = 1; v < g.size(); ++v) {
      // Of smaller numbers, so no circle.
      if (random() % 6 == 0)
        wanted.colocated.push_back({v, static_cast<index_t>(random() % static_cast<std::uint64_t>(v))});
    }
    scoped += wanted.scopes.empty() ? 0 : 1;
    led += wanted.colocated.empty() ? 0 : 1;
    const stream_assignment made = assign_streams(g, streams, wanted).or_throw();
    const auto edges = edges_of(g);
    const stream_simulator simulated(made.plan, g.size());
    REQUIRE_MESSAGE(simulated.fault(edges) == "", explain(g, made));
    REQUIRE(broken_request(g, made, wanted) == "");
    if (round % 8 == 0) CHECK(all_waits(made.plan) == fewest_waits(made.plan, edges, g.size()));
    if (round % 20 == 0)
      CHECK(assign_streams(g, streams, wanted).or_throw().plan.topology == made.plan.topology);
    // Runs: an op has ended before what needs it begins.
    for (int again = 0; again < 2; ++again) {
      std::vector<bool> begun(static_cast<std::size_t>(g.size())), ended(begun);
      bool fine = true;
      CHECK(simulated.run_at_random(random, [&](index_t v, bool begins) {
        (begins ? begun : ended)[static_cast<std::size_t>(v)] = true;
        if (!begins) return;
        for (const auto& [from, to] : edges)
          fine = fine && (to != v || resident(g, from) || ended[static_cast<std::size_t>(from)]);
      }));
      CHECK(fine);
      ++random_runs;
    }
    // On a simulated device it takes no longer than one stream, and no less than the longest path.
    const double made_in = simulated.makespan([&](index_t v) { return made.costs_known ? g.cost(v) : 1.0; });
    CHECK(made_in <= made.work * (1 + 1e-12));
    CHECK(made_in >= made.longest_path * (1 - 1e-12));
    if (round % 4 != 0) continue;
    for_each_lost_wait(made.plan, [&](const stream_plan& less) {
      ++tried;
      broken += stream_simulator(less, g.size()).fault(edges) != "" ? 1 : 0;
    });
  }
  CHECK(refused < 1000);
  CHECK(random_runs > 15'000);
  CHECK(scoped > 3000);
  CHECK(led > 3000);
  CHECK(tried > 10'000);
  CHECK(broken == tried);
}

TEST_CASE(
    "assign_streams: with a stream for each chain a step takes its longest path; with two it beats round "
    "robin") {
  std::mt19937_64 random(seed());
  double ours = 0, by_turns = 0;
  for (int round = 0; round < 200; ++round) {
    const random_graph drawn = layered_graph(random, 40, 6, 2);
    const flat_graph g = drawn.flat().or_throw();
    const auto cost = [&](index_t v) { return g.cost(v); };
    const stream_assignment wide = assign_streams(g, static_cast<int>(g.size())).or_throw();
    CHECK(stream_simulator(wide.plan, g.size()).makespan(cost) == doctest::Approx(wide.longest_path));
    const stream_assignment two = assign_streams(g, 2).or_throw();
    ours += stream_simulator(two.plan, g.size()).makespan(cost);
    stream_requests turns;
    for (index_t v = 0; v < g.size(); ++v)
      turns.scopes.push_back({std::string(g.name(v)), static_cast<int>(v % 2)});
    by_turns += stream_simulator(assign_streams(g, 2, turns).or_throw().plan, g.size()).makespan(cost);
  }
  CHECK(ours < by_turns);
}

TEST_CASE("assign_streams: costs decide where they are known; else ops count as one") {
  // Three chains on two streams: the two cheap ones share one.
  const auto graph_of = [](double scale) {
    flat_graph_builder b;
    for (const double cost : {1.0, 9.0, 1.0}) b.add({.cost = cost * scale});
    return b.build().or_throw();
  };
  const stream_assignment known = assign_streams(graph_of(1), 2).or_throw();
  CHECK(known.costs_known);
  CHECK(known.stream[0] == known.stream[2]);
  CHECK(known.stream[0] != known.stream[1]);
  CHECK(known.work == 11);
  CHECK(known.longest_path == 9);
  const stream_assignment unknown = assign_streams(graph_of(0), 2).or_throw();
  CHECK(!unknown.costs_known);
  CHECK(unknown.work == 3);
  CHECK(unknown.longest_path == 1);
}

TEST_CASE(
    "hazard H19: whoever is colocated is on the leader's stream, also through chains and tables, and scopes "
    "match whole names") {
  flat_graph_builder b;
  const index_t table = b.add({.name = "tower/table", .kind = op_kind::variable});
  const index_t lookup = b.add({.name = "lookup"}), update = b.add({.name = "other/update"});
  const index_t late = b.add({.name = "late"});
  const index_t like = b.add({.name = "tower2/lookup"}), within = b.add({.name = "my/tower/lookup"});
  const index_t itself = b.add({.name = "tower"});
  const flat_graph g = b.build().or_throw();
  const stream_requests wanted{{{"tower", 3}, {"other", 1}, {"tower2", 0}, {"my", 2}},
                               {{late, update}, {update, lookup}, {lookup, table}}};
  const stream_assignment made = assign_streams(g, 4, wanted).or_throw();
  // The leader is no op of a plan, and is in a scope; who follows is in another one, or in none.
  for (const index_t v : {table, lookup, update, late, itself})
    CHECK(made.stream[static_cast<std::size_t>(v)] == 3);
  CHECK(made.stream[static_cast<std::size_t>(like)] == 0);
  CHECK(made.stream[static_cast<std::size_t>(within)] == 2);
  CHECK(made.leader[static_cast<std::size_t>(late)] == table);
  CHECK(broken_request(g, made, wanted) == "");
  // Nothing at all, colocated with nothing.
  const flat_graph none = flat_graph_builder().build().or_throw();
  CHECK(assign_streams(none, 2).or_throw().plan.steps.empty());
  CHECK(fault_of(none, 2, {}) == "");
}

TEST_CASE("assign_streams: what is wrong is refused by name") {
  flat_graph_builder b;
  b.add({.name = "a/x"});
  b.add({.name = "b"});
  b.add({.name = "c"});
  const flat_graph g = b.build().or_throw();
  CHECK(fault_of(g, 0, {}) == "invalid value: assign_streams: streams must be at least 1 (0)");
  CHECK(fault_of(g, -3, {}) == "invalid value: assign_streams: streams must be at least 1 (-3); value -3");
  CHECK(fault_of(g, 2, {{{"a", 2}}, {}}) ==
        "invalid value: assign_streams: a scope must be of a stream that exists (scope 'a': stream 2 of 2); "
        "value 2");
  CHECK(fault_of(g, 2, {{{"a", -2}}, {}}) ==
        "invalid value: assign_streams: a scope must be of a stream that exists (scope 'a': stream -2 of 2); "
        "value -2");
  CHECK(fault_of(g, 2, {{{"b/y", 1}}, {}}) ==
        "invalid value: assign_streams: a scope must contain an op (no op is in scope 'b/y')");
  CHECK(fault_of(g, 2, {{{"a", 1}, {"a/", 1}}, {}}) ==
        "invalid value: assign_streams: a scope must contain an op (no op is in scope 'a/')");
  CHECK(fault_of(g, 2, {{{"a", 1}, {"a", 0}}, {}}) ==
        "invalid value: assign_streams: a scope must be given once (scope 'a' is given twice)");
  CHECK(fault_of(g, 2, {{{"a", 1}, {"", 0}}, {}}) ==
        "invalid value: assign_streams: a scope must have a name (scope 1 of 2)");
  CHECK(fault_of(g, 2, {{}, {{1, 7}}}) ==
        "invalid value: assign_streams: a colocation must be of two ops of the graph (op 7 of 3, colocated "
        "with 'b'); "
        "item 1, value 7");
  CHECK(fault_of(g, 2, {{}, {{-1, 3}}}) ==
        "invalid value: assign_streams: a colocation must be of two ops of the graph (op -1 of 3); value -1");
  CHECK(fault_of(g, 2, {{}, {{1, 1}}}) ==
        "invalid value: assign_streams: an op must be colocated with another one ('b' with itself); item 1");
  CHECK(fault_of(g, 2, {{}, {{1, 0}, {1, 0}}}) == "");
  CHECK(fault_of(g, 2, {{}, {{1, 0}, {1, 2}}}) ==
        "invalid value: assign_streams: an op must have one leader ('b' has 'a/x' and 'c'); item 1");
  CHECK(fault_of(g, 2, {{}, {{1, 2}, {0, 1}, {2, 1}}}) ==
        "invalid value: assign_streams: colocation must not lead back to an op ('b' is among its own "
        "leaders); item 1");
  // Costs are refused where the graph is made, and infinite ones of a list where streams are.
  for (const double cost : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    flat_graph_builder bad;
    bad.add({.name = "fine"});
    bad.add({.name = "bad", .cost = cost});
    const auto refused = bad.build();
    REQUIRE(!refused);
    CHECK(refused.fault().message() ==
          "invalid value: flat_graph: a cost must be a number from 0 (op 1 'bad'); item 1");
  }
  task_list list;
  list.add({}, std::numeric_limits<double>::infinity());
  stream_plan plan;
  CHECK(plan_streams(list, 2, plan).message() ==
        "invalid value: task_plan: the cost of an op must be finite and not negative; item 0");
  // Costs whose sums are infinite are none that a plan can't be made of.
  flat_graph_builder large;
  for (int v = 0; v < 5; ++v) large.add({.cost = 1e308});
  const flat_graph huge = large.build().or_throw();
  CHECK(stream_simulator(assign_streams(huge, 2).or_throw().plan, 5).fault(edges_of(huge)) == "");
}
