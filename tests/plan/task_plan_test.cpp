#include <deeprec/plan/task_plan.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/plan/effects.hpp>
#include <deeprec/plan/task_list.hpp>

#include "plan/task_graphs.hpp"
#include "support/seed.hpp"

using namespace deeprec_test;

namespace {

std::string refusal(const task_list& list) {
  const auto made = task_plan::compile(list);
  return made ? "" : made.fault().message();
}

/// Bytes [begin, end) of a buffer, and how an op accesses them.
struct byte_access {
  std::size_t begin, end;
  access_mode mode;
};
using accesses_of_ops = std::vector<std::vector<byte_access>>;

/// By definition: a byte that both access, and that one of them changes.
bool conflict(const std::vector<byte_access>& a, const std::vector<byte_access>& b) {
  for (const byte_access& x : a) {
    for (const byte_access& y : b) {
      const bool changes = x.mode != access_mode::reads || y.mode != access_mode::reads;
      for (std::size_t byte = x.begin; changes && byte < x.end; ++byte) {
        if (y.begin <= byte && byte < y.end) return true;
      }
    }
  }
  return false;
}

accesses_of_ops random_accesses(std::mt19937_64& random, std::size_t ops, std::size_t bytes) {
  accesses_of_ops made(ops);
  for (auto& of_op : made) {
    for (std::size_t i = random() % 4; i > 0; --i) {
      const std::size_t begin = random() % bytes, most = bytes - begin + 1;  // a length may be 0
      const std::size_t length = random() % (random() % 4 == 0 ? most : std::min(most, bytes / 6));
      constexpr access_mode modes[] = {access_mode::reads, access_mode::reads, access_mode::writes,
                                       access_mode::updates};
      of_op.push_back({begin, begin + length, modes[random() % 4]});
    }
  }
  return made;
}

/// The plan of ops that have no other edges than those of their effects, declared in any order of the ops.
task_plan plan_of(const accesses_of_ops& ops, const std::vector<char>& buffer, task_order order,
                  std::mt19937_64& random) {
  task_list list;
  std::vector<std::pair<index_t, byte_access>> all;
  for (const auto& of_op : ops) {
    const index_t op =
        random() % 2 == 0 ? list.add("even", op_of_kind<0>()) : list.add("odd", op_of_kind<1>());
    for (const byte_access& one : of_op) all.emplace_back(op, one);
  }
  std::shuffle(all.begin(), all.end(), random);
  for (const auto& [op, one] : all) {
    list.affects(op, effects_on(std::span(buffer).subspan(one.begin, one.end - one.begin), one.mode));
  }
  return task_plan::compile(list, order).or_throw();
}

struct order_faults {
  index_t missing = 0;   // pairs that conflict, and the plan does not keep their order
  index_t needless = 0;  // edges between ops that do not conflict, or against the order of being added
};

order_faults faults_of(const task_plan& plan, const accesses_of_ops& ops) {
  const std::size_t n = ops.size();
  order_faults found;
  std::vector<std::vector<bool>> path(n, std::vector<bool>(n));  // from the first to the second
  for (std::size_t v = 0; v < n; ++v) {
    for (const std::int32_t before : plan.predecessors(static_cast<index_t>(v))) {
      const auto u = static_cast<std::size_t>(before);
      if (u > v || !conflict(ops[u], ops[v])) ++found.needless;
      path[u][v] = true;
      for (std::size_t w = 0; w < n; ++w) {
        if (path[w][u]) path[w][v] = true;
      }
    }
  }
  for (std::size_t v = 0; v < n; ++v) {
    for (std::size_t u = 0; u < v; ++u) found.missing += conflict(ops[u], ops[v]) && !path[u][v] ? 1 : 0;
  }
  return found;
}

}  // namespace

TEST_CASE("task_plan: neighbours are sorted, each once, and the order is topological") {
  std::mt19937_64 random(seed());
  for (int round = 0; round < 2000; ++round) {
    const task_graph graph = random_graph(random, random() % 12, 0.1 * static_cast<double>(round % 8));
    task_list list = list_of(graph);
    for (std::size_t v = 0; v < graph.size(); ++v) {  // some edges twice
      for (const index_t u : graph.before[v]) {
        if (random() % 3 == 0) list.edge(u, static_cast<index_t>(v));
      }
    }
    for (const task_order order : {task_order::by_kind, task_order::as_added}) {
      const task_plan plan = task_plan::compile(list, order).or_throw();
      REQUIRE(plan.size() == static_cast<index_t>(graph.size()));
      index_t edges = 0, groups = 0;
      std::set<std::pair<index_t, index_t>> forward;
      for (index_t v = 0; v < plan.size(); ++v) {
        const auto& before = graph.before[static_cast<std::size_t>(v)];
        const auto made = plan.predecessors(v);
        REQUIRE(std::vector<index_t>(made.begin(), made.end()) == before);
        CHECK(plan.indegree(v) == static_cast<index_t>(before.size()));
        CHECK(std::is_sorted(plan.successors(v).begin(), plan.successors(v).end()));
        for (const index_t w : plan.successors(v)) CHECK(forward.emplace(v, w).second);
        for (const index_t u : before) CHECK(plan.position(u) < plan.position(v));
        edges += static_cast<index_t>(before.size());
        CHECK(plan.order()[static_cast<std::size_t>(plan.position(v))] == v);
        CHECK(plan.name(v) == "t" + std::to_string(v));
        const auto p = static_cast<std::size_t>(v);
        groups += p == 0 || plan.kind(plan.order()[p]) != plan.kind(plan.order()[p - 1]) ? 1 : 0;
      }
      CHECK(plan.edges() == edges);
      CHECK(static_cast<index_t>(forward.size()) == edges);
      for (const auto& [u, v] : forward) {
        const auto& before = graph.before[static_cast<std::size_t>(v)];
        CHECK(std::count(before.begin(), before.end(), u) == 1);
      }
      CHECK(plan.groups() == groups);
    }
  }
}

TEST_CASE("task_plan: ops of one kind stand side by side, and added order is kept where it is legal") {
  task_list list;
  for (int i = 0; i < 40; ++i) {
    i % 2 == 0 ? list.add("even", op_of_kind<0>()) : list.add("odd", op_of_kind<1>());
  }
  CHECK(task_plan::compile(list).or_throw().groups() == 2);
  const task_plan added = task_plan::compile(list, task_order::as_added).or_throw();
  CHECK(added.groups() == 40);
  for (index_t i = 0; i < 40; ++i) CHECK(added.position(i) == i);
}

TEST_CASE("task_plan: what is wrong is named") {
  const auto graph = [](auto&& edit) {
    task_list list;
    for (const char* name : {"read", "hash", "lookup", "join"}) list.add(name, op_of_kind<0>());
    edit(list);
    return refusal(list);
  };
  CHECK(graph([](task_list&) {}) == "");
  CHECK(graph([](task_list& l) {
          l.edge(0, 1);
          l.edge(1, 2);
          l.edge(2, 1);
          l.edge(2, 3);
        }) == "invalid value: task_plan: edges must not form a cycle (hash -> lookup -> hash); item 1");
  CHECK(graph([](task_list& l) { l.edge(3, 3); }) ==
        "invalid value: task_plan: an op must not come after itself (join); item 3, value 3");
  CHECK(graph([](task_list& l) { l.edge(2, 7); }) ==
        "invalid value: task_plan: an edge must join ops of the list (lookup); item 2, value 7");
  CHECK(graph([](task_list& l) { l.edge(-1, 2); }) ==
        "invalid value: task_plan: an edge must join ops of the list (lookup); item 2, value -1");
  CHECK(graph([](task_list& l) { l.edge(9, 8); }).find("an edge must join ops") != std::string::npos);
  CHECK(graph([](task_list& l) { l.add("late", {9}); }) ==
        "invalid value: task_plan: an op must come after ops of the list (late); item 4, value 9");
  CHECK(graph([](task_list& l) { l.add("self", {4}); }) ==
        "invalid value: task_plan: an op must not come after itself (self); item 4, value 4");
  CHECK(graph([](task_list& l) { l.affects(5, reads(l)); }).find("an effect must belong") !=
        std::string::npos);
  CHECK(graph([](task_list& l) { l.set_cost(2, -1); }) ==
        "invalid value: task_plan: the cost of an op must be finite and not negative (lookup); item 2");
  CHECK(graph([](task_list& l) { l.set_cost(2, std::nan("")); }) != "");
  CHECK(graph([](task_list& l) {
          const auto here = l.colocate_with(8);
          l.add("led", {});
        }) ==
        "invalid value: task_plan: an op must be colocated with another one of the list (led); item 4, value "
        "8");
  // Every cycle is found, also a long one among other ops.
  std::mt19937_64 random(seed());
  for (int round = 0; round < 500; ++round) {
    const task_graph some = random_graph(random, 2 + random() % 20, 0.2);
    task_list list = list_of(some);
    std::vector<index_t> ring;
    for (std::size_t v = 0; v < some.size(); ++v) ring.push_back(static_cast<index_t>(v));
    std::shuffle(ring.begin(), ring.end(), random);
    ring.resize(2 + random() % (some.size() - 1));
    for (std::size_t i = 0; i < ring.size(); ++i) list.edge(ring[i], ring[(i + 1) % ring.size()]);
    const std::string said = refusal(list);
    CHECK(said.find("edges must not form a cycle (t") != std::string::npos);
  }
  CHECK(task_plan::compile(task_list()).or_throw().size() == 0);
}

TEST_CASE("task_plan: effects order ops as they were added") {
  int table = 0, rows = 0;
  task_list list;
  const index_t first = list.add("lookup", {});
  const index_t second = list.add("gather", {});
  const index_t update = list.add("update", {});
  const index_t third = list.add("lookup again", {});
  const index_t other = list.add("other", {});
  list.affects(first, reads(table));
  list.affects(first, writes(rows));
  list.affects(second, reads(table));
  list.affects(update, updates(table), reads(rows));
  list.affects(third, reads(table));
  list.affects(other, writes(other));
  const task_plan plan = task_plan::compile(list).or_throw();
  const auto before = [&](index_t op) {
    const auto all = plan.predecessors(op);
    return std::vector<index_t>(all.begin(), all.end());
  };
  CHECK(before(first).empty());
  CHECK(before(second).empty());  // two reads
  CHECK(before(update) == std::vector<index_t>{first, second});
  CHECK(before(third) == std::vector<index_t>{update});
  CHECK(before(other).empty());
  CHECK(plan.edges() == 3);
  // An effect against an edge is a cycle.
  list.edge(third, first);
  CHECK(refusal(list).find("cycle (lookup -> update -> lookup again -> lookup)") != std::string::npos);
  // By brute force: two ops conflict when one of them writes what the other accesses.
  std::mt19937_64 random(seed());
  for (int round = 0; round < 500; ++round) {
    std::array<int, 3> objects{};
    std::vector<std::array<int, 3>> mode;  // 0 none, 1 reads, 2 writes, 3 both
    task_list some;
    for (index_t v = 0; v < 8; ++v) {
      some.add({});
      auto& of = mode.emplace_back();
      for (std::size_t o = 0; o < 3; ++o) {
        of[o] = static_cast<int>(random() % 4);
        if ((of[o] & 2) != 0) some.affects(v, writes(objects[o]));
        if ((of[o] & 1) != 0) some.affects(v, reads(objects[o]));
      }
    }
    const task_plan made = task_plan::compile(some).or_throw();
    std::vector<std::vector<bool>> path(8, std::vector<bool>(8));
    for (std::size_t v = 0; v < 8; ++v) {
      for (const std::int32_t u : made.predecessors(static_cast<index_t>(v))) {
        path[static_cast<std::size_t>(u)][v] = true;
        for (std::size_t w = 0; w < 8; ++w) {
          if (path[w][static_cast<std::size_t>(u)]) path[w][v] = true;
        }
      }
    }
    for (std::size_t v = 0; v < 8; ++v) {
      for (std::size_t u = 0; u < v; ++u) {
        bool conflict = false;
        for (std::size_t o = 0; o < 3; ++o) {
          conflict = conflict || (mode[u][o] != 0 && mode[v][o] != 0 && ((mode[u][o] | mode[v][o]) & 2) != 0);
        }
        if (conflict) CHECK(path[u][v]);
        CHECK_FALSE(path[v][u]);
      }
      for (const std::int32_t u : made.predecessors(static_cast<index_t>(v))) {  // and no other edge
        bool conflict = false;
        for (std::size_t o = 0; o < 3; ++o) {
          const int a = mode[static_cast<std::size_t>(u)][o], b = mode[v][o];
          conflict = conflict || (a != 0 && b != 0 && ((a | b) & 2) != 0);
        }
        CHECK(conflict);
      }
    }
  }
}

TEST_CASE("task_plan: ops whose ranges of bytes overlap keep the order of being added, by brute force") {
  std::mt19937_64 random(seed());
  const std::vector<char> buffer(48);
  index_t conflicts = 0, shortened = 0, as_reads = 0;
  for (int round = 0; round < 600; ++round) {
    const accesses_of_ops ops = random_accesses(random, 2 + random() % 14, buffer.size());
    for (const task_order order : {task_order::by_kind, task_order::as_added}) {
      const task_plan plan = plan_of(ops, buffer, order, random);
      const order_faults found = faults_of(plan, ops);
      CHECK(found.missing == 0);
      CHECK(found.needless == 0);
      for (std::size_t v = 0; v < ops.size(); ++v) {
        for (std::size_t u = 0; u < v; ++u) {
          if (!conflict(ops[u], ops[v])) continue;
          ++conflicts;
          CHECK(plan.position(static_cast<index_t>(u)) < plan.position(static_cast<index_t>(v)));
        }
      }
    }
    // Plans that take a range for its first byte, and a change for a read, are caught.
    accesses_of_ops first_bytes = ops, only_reads = ops;
    for (auto& of_op : first_bytes) {
      for (byte_access& one : of_op) one.end = std::min(one.end, one.begin + 1);
    }
    for (auto& of_op : only_reads) {
      for (byte_access& one : of_op) {
        if (one.mode == access_mode::updates) one.mode = access_mode::reads;
      }
    }
    shortened += faults_of(plan_of(first_bytes, buffer, task_order::as_added, random), ops).missing;
    as_reads += faults_of(plan_of(only_reads, buffer, task_order::as_added, random), ops).missing;
  }
  CHECK(conflicts > 5000);
  CHECK(shortened > 1000);
  CHECK(as_reads > 1000);
}

TEST_CASE("task_plan: a plan owns the tasks that it was given, and refers to others") {
  auto counted = std::make_shared<int>(0);
  std::weak_ptr<int> watch = counted;
  task_plan plan;
  {
    task_list list;
    list.add("own", [counted = std::move(counted)] { ++*counted; });
    plan = task_plan::compile(list).or_throw();
  }
  CHECK(plan.call(0).ok());
  CHECK(*watch.lock() == 1);
  task_plan moved = std::move(plan);
  CHECK(std::string(moved.name(0)) == "own");
  CHECK(moved.call(0).ok());
  CHECK(*watch.lock() == 2);
  moved = task_plan();
  CHECK(watch.expired());
  int calls = 0;
  auto task = [&calls, mine = 0]() mutable { calls += ++mine; };
  task_list list;
  list.add("referred", std::ref(task));
  const task_plan again = task_plan::compile(list).or_throw();
  CHECK(again.call(0).ok());
  task();
  CHECK(calls == 3);
}

TEST_CASE("task_plan: costs, bytes, streams and leaders are kept") {
  task_list list;
  const index_t a = list.add("a", op_of_kind<0>(), {}, 2.5);
  {
    const auto here = list.on_stream(3);
    list.add("b", {a}, 4);
    const auto with = list.colocate_with(a);
    list.add({a});
  }
  list.set_bytes(a, 1024);
  for (int i = 0; i < 20; ++i) list.add("copy", list.at(1).after);  // of the list itself
  const task_plan plan = task_plan::compile(list).or_throw();
  CHECK(plan.cost(0) == 2.5);
  CHECK(plan.bytes(0) == 1024);
  CHECK(plan.cost(1) == 4);
  CHECK(plan.stream(1) == 3);
  CHECK(plan.leader(2) == a);
  CHECK(plan.stream(2) == -1);
  CHECK(std::string(plan.name(2)) == "op 2");
  CHECK(plan.has_task(0));
  CHECK_FALSE(plan.has_task(1));
  CHECK(plan.call(1).ok());
  CHECK(plan.indegree(22) == 1);
  CHECK(plan.predecessors(22)[0] == a);
}
