#include <deeprec/plan/op_costs.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/plan/list_schedule.hpp>
#include <deeprec/plan/plan_run.hpp>

#include "plan/task_graphs.hpp"
#include "support/seed.hpp"

using namespace deeprec_test;

namespace {

using numbers = std::vector<digraph::number>;

struct costed {
  digraph graph;
  numbers order;
  std::vector<double> costs;
};
costed random_costs(std::mt19937_64& random, std::size_t ops, double edges, bool whole = false) {
  const task_graph g = random_graph(random, ops, edges);
  std::vector<digraph::edge> all;
  for (std::size_t v = 0; v < ops; ++v) {
    for (const index_t u : g.before[v])
      all.push_back({static_cast<digraph::number>(u), static_cast<digraph::number>(v)});
  }
  costed made{digraph(ops, all), {}, {}};
  made.order = made.graph.order_as_ready();
  std::lognormal_distribution<double> cost(0, 1.5);
  for (std::size_t v = 0; v < ops; ++v)
    made.costs.push_back(whole ? static_cast<double>(random() % 5) : cost(random));
  return made;
}
std::vector<double> ranks_of(const costed& c) {
  std::vector<double> ranks(c.costs.size());
  upward_ranks(c.graph, c.order, std::span<const double>(c.costs), std::span<double>(ranks));
  return ranks;
}
numbers places_of(const std::vector<double>& ranks) {
  numbers at(ranks.size()), place(ranks.size());
  places_by_rank(std::span<const double>(ranks), std::span<digraph::number>(at),
                 std::span<digraph::number>(place));
  return place;
}
struct begin {
  digraph::number op;
  double when;
  int worker;
};
double schedule(const costed& c, const numbers& place, int workers, std::vector<begin>* begins = nullptr) {
  numbers missing(c.costs.size()), ready(c.costs.size());
  return list_schedule(c.graph, std::span<const double>(c.costs), std::span<const digraph::number>(place),
                       {.workers = workers}, {missing, ready},
                       [&](digraph::number op, double when, int worker) {
                         if (begins != nullptr) begins->push_back({op, when, worker});
                       });
}
/// The cost of the longest of all ways from an op, one by one.
double longest_way(const costed& c, digraph::number from) {
  double behind = 0;
  for (const digraph::number v : c.graph.after(from)) behind = std::max(behind, longest_way(c, v));
  return c.costs[static_cast<std::size_t>(from)] + behind;
}
double work_of(const costed& c) { return std::accumulate(c.costs.begin(), c.costs.end(), 0.0); }

/// What is wrong with a schedule; empty: nothing.
std::string schedule_fault(const costed& c, const numbers& place, int workers, double end,
                           const std::vector<begin>& begins) {
  if (begins.size() != c.costs.size()) return "an op does not begin exactly once";
  std::vector<double> begun(c.costs.size(), -1), free(static_cast<std::size_t>(workers), 0);
  double last = 0;
  for (const begin& b : begins) {
    const auto op = static_cast<std::size_t>(b.op);
    if (b.worker < 0 || b.worker >= workers) return "no such worker";
    if (begun[op] >= 0) return "an op begins twice";
    if (b.when < free[static_cast<std::size_t>(b.worker)]) return "a worker has two ops at once";
    for (const digraph::number u : c.graph.before(b.op)) {
      const auto before = static_cast<std::size_t>(u);
      if (begun[before] < 0 || begun[before] + c.costs[before] > b.when) return "an op begins too early";
    }
    begun[op] = b.when;
    free[static_cast<std::size_t>(b.worker)] = b.when + c.costs[op];
    last = std::max(last, b.when + c.costs[op]);
  }
  if (last != end) return "the end is not that of the last op";
  // No op of a later place begins while one of an earlier place is ready, and no worker idles beside a ready
  // op.
  for (const begin& b : begins) {
    double ready = 0;
    for (const digraph::number u : c.graph.before(b.op))
      ready = std::max(ready, begun[static_cast<std::size_t>(u)] + c.costs[static_cast<std::size_t>(u)]);
    if (b.when == ready) continue;
    for (const begin& other : begins) {
      if (other.when > ready && other.when < b.when &&
          place[static_cast<std::size_t>(other.op)] > place[static_cast<std::size_t>(b.op)])
        return "an op of a later place begins first";
    }
    int busy = 0;
    const double between = std::nextafter(b.when, 0.0);
    for (const begin& other : begins) {
      const double until = other.when + c.costs[static_cast<std::size_t>(other.op)];
      busy += other.when <= between && until > between ? 1 : 0;
    }
    if (busy < workers) return "a worker idles beside a ready op";
  }
  return {};
}

void pause(int us) { std::this_thread::sleep_for(std::chrono::microseconds(us)); }

}  // namespace

TEST_CASE("upward_ranks: the longest of all ways of random graphs, and a broken one is caught") {
  std::mt19937_64 random(seed());
  int caught = 0;
  for (int round = 0; round < 2000; ++round) {
    const costed c = random_costs(random, 1 + random() % 12, 0.3, round % 2 == 0);
    const std::vector<double> ranks = ranks_of(c);
    bool differs = false;
    for (std::size_t v = 0; v < ranks.size(); ++v) {
      const auto op = static_cast<digraph::number>(v);
      CHECK(ranks[v] == longest_way(c, op));
      double sum = c.costs[v];  // broken: all successors instead of the greatest
      for (const digraph::number u : c.graph.after(op)) sum += ranks[static_cast<std::size_t>(u)];
      differs = differs || sum != ranks[v];
    }
    caught += differs ? 1 : 0;
  }
  CHECK(caught > 500);
}

TEST_CASE("list_schedule: a schedule, within Graham's bound, and the work on one worker") {
  std::mt19937_64 random(seed());
  int worse = 0, better = 0;
  for (int round = 0; round < 400; ++round) {
    const costed c = random_costs(random, 1 + random() % 60, 0.02 * static_cast<double>(round % 10));
    const std::vector<double> ranks = ranks_of(c);
    const numbers place = places_of(ranks);
    numbers as_added(place.size());
    std::iota(as_added.begin(), as_added.end(), 0);
    const double path = *std::max_element(ranks.begin(), ranks.end()), work = work_of(c);
    for (const int workers : {1, 2, 3, 4, 8, 16, 32, 64}) {
      std::vector<begin> begins;
      const double end = schedule(c, place, workers, &begins);
      const std::string fault = schedule_fault(c, place, workers, end, begins);
      REQUIRE_MESSAGE(fault == "", fault);
      const double least = std::max(path, work / workers);
      CHECK(end >= least * (1 - 1e-12));
      CHECK(end <= least * (2 - 1.0 / workers) * (1 + 1e-12));
      if (workers == 1) CHECK(end == doctest::Approx(work));
      // The check of schedules catches one for another list.
      const double other = schedule(c, as_added, workers);
      worse += other > end ? 1 : 0;
      better += other < end ? 1 : 0;
    }
  }
  CHECK(worse > 5 * better);  // than the order of the numbers
}

TEST_CASE("list_schedule: the check catches schedules of another list and of a graph that lacks an edge") {
  std::mt19937_64 random(seed());
  int lists = 0, edges = 0, tried = 0;
  for (int round = 0; round < 300; ++round) {
    const costed c = random_costs(random, 12, 0.25);
    const numbers place = places_of(ranks_of(c));
    numbers turned(place);
    for (digraph::number& p : turned) p = static_cast<digraph::number>(place.size()) - 1 - p;
    std::vector<begin> begins;
    double end = schedule(c, turned, 2, &begins);
    ++tried;
    lists += schedule_fault(c, place, 2, end, begins) != "" ? 1 : 0;
    const costed free{digraph(c.costs.size(), {}), {}, c.costs};
    begins.clear();
    end = schedule(free, place, 2, &begins);
    edges += schedule_fault(c, place, 2, end, begins) != "" ? 1 : 0;
  }
  CHECK(lists > tried / 2);
  CHECK(edges > tried / 2);  // where few edges bind, the schedule without them is right
}

TEST_CASE("list_schedule: by rank beside the best list of small graphs") {
  std::mt19937_64 random(seed());
  double worst = 1, sum = 0;
  int tried = 0;
  for (int round = 0; round < 60; ++round) {
    const costed c = random_costs(random, 7, 0.1 + 0.05 * static_cast<double>(round % 5));
    const numbers place = places_of(ranks_of(c));
    for (const int workers : {2, 3}) {
      numbers list(c.costs.size());
      std::iota(list.begin(), list.end(), 0);
      double best = std::numeric_limits<double>::max();
      do {
        best = std::min(best, schedule(c, list, workers));
      } while (std::next_permutation(list.begin(), list.end()));
      const double ratio = schedule(c, place, workers) / best;
      CHECK(ratio >= 1 - 1e-12);
      worst = std::max(worst, ratio);
      sum += ratio;
      ++tried;
    }
  }
  CHECK(sum / tried <= 1.05);
  CHECK(worst <= 4.0 / 3);
}

TEST_CASE("task_plan::with_costs: another order of the same ops, and the same bits") {
  std::mt19937_64 random(seed());
  thread_pool pool({.threads = 3, .oversubscribe = true});
  int changed = 0;
  for (int round = 0; round < 300; ++round) {
    const task_graph graph = random_graph(random, 1 + random() % 14, 0.2);
    const auto expected = interpreted(graph);
    const task_plan plan = task_plan::compile(list_of(graph), task_order::as_added).or_throw();
    std::vector<double> costs;
    for (std::size_t v = 0; v < graph.size(); ++v) costs.push_back(static_cast<double>(random() % 100));
    task_plan other = plan.with_costs(costs).or_throw();
    const task_plan again = other.with_costs(costs).or_throw();
    CHECK(std::equal(other.order().begin(), other.order().end(), again.order().begin(), again.order().end()));
    changed += std::equal(plan.order().begin(), plan.order().end(), other.order().begin()) ? 0 : 1;
    for (index_t v = 0; v < plan.size(); ++v) {
      CHECK(other.cost(v) == costs[static_cast<std::size_t>(v)]);
      CHECK(std::string(other.name(v)) == plan.name(v));
      CHECK(other.order()[static_cast<std::size_t>(other.position(v))] == v);
      for (const std::int32_t u : plan.predecessors(v)) CHECK(other.position(u) < other.position(v));
    }
    // Of the ready ops the one of the greatest rank.
    costed c{digraph(), {plan.order().begin(), plan.order().end()}, costs};
    c.graph = plan.graph();
    const std::vector<double> ranks = ranks_of(c);
    for (std::size_t p = 0; p < other.order().size(); ++p) {
      for (std::size_t q = p + 1; q < other.order().size(); ++q) {
        const std::int32_t first = other.order()[p], second = other.order()[q];
        bool ready = true;
        for (const std::int32_t u : other.predecessors(second))
          ready = ready && other.position(u) < static_cast<index_t>(p);
        if (ready) CHECK(ranks[static_cast<std::size_t>(first)] >= ranks[static_cast<std::size_t>(second)]);
      }
    }
    for (const bool threads : {false, true}) {
      graph_step step(graph);
      cost_run run(other);
      REQUIRE((threads ? run_on(pool, run, &step) : run_inline({}, other, &step)).ok());
      CHECK(step_fault(step, expected) == "");
    }
  }
  CHECK(changed > 100);
}

TEST_CASE("task_plan: costs that are no costs are refused by the op's name") {
  task_list list;
  const index_t read = list.add("read", [] {});
  list.add("lookup", [] {}, {read});
  const task_plan plan = task_plan::compile(list).or_throw();
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double wrong : {-1.0, infinity, -infinity, std::numeric_limits<double>::quiet_NaN()}) {
    const auto refused = plan.with_costs(std::vector<double>{1, wrong});
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.fault().message() ==
          "invalid value: task_plan: the cost of an op must be finite and not negative (lookup); item 1");
    task_list bad(list);
    bad.set_cost(1, wrong);
    CHECK(task_plan::compile(bad).fault().message() == refused.fault().message());
  }
  CHECK(plan.with_costs(std::vector<double>{1}).code() == errc::invalid_value);
  CHECK(plan.with_costs(std::vector<double>{0, 1e300}).ok());
}

TEST_CASE("run_on: on one thread ops begin in the order of the plan, whatever was learnt") {
  std::mt19937_64 random(seed());
  for (int round = 0; round < 50; ++round) {
    const task_graph graph = random_graph(random, 12, 0.2);
    std::vector<index_t> begun;
    task_list list;
    for (std::size_t v = 0; v < graph.size(); ++v)
      list.add("op", [&](const task_call& call) { begun.push_back(call.op); }, graph.before[v]);
    const task_plan plan = task_plan::compile(list, task_order::as_added).or_throw();
    const std::vector<index_t> order(plan.order().begin(), plan.order().end());
    inline_executor here;
    plan_run fifo(plan);
    stealing_run stealing(plan);
    cost_run by_cost(plan);
    for (int again = 0; again < 6; ++again) {
      const auto same = [&](auto& run) {
        begun.clear();
        REQUIRE(run_on(here, run).ok());
        CHECK(begun == order);
      };
      same(fifo), same(stealing), same(by_cost);
    }
  }
}

TEST_CASE(
    "cost_run: learns what ops cost, runs beside each other what pays, and goes back where it does not") {
  // Ops that sleep: how long the machine takes for them is no matter of its load, but upwards.
  task_list list;
  std::vector<index_t> wide;
  const index_t first = list.add("first", [] {});
  for (int i = 0; i < 6; ++i) wide.push_back(list.add("wide", [] { pause(2000); }, {first}));
  const index_t last = list.add("last", [] { pause(100); }, wide);
  const task_plan plan = task_plan::compile(list).or_throw();
  thread_pool pool({.threads = 3, .oversubscribe = true});
  cost_run run(plan);
  int on_threads = 0;
  // Where others take the processors, runs differ so much that all is measured once more.
  for (int i = 0; i < 16 || (on_threads < 3 && i < 1000); ++i) {
    REQUIRE(run_on(pool, run).ok());
    on_threads += run.costs().was_on_threads() ? 1 : 0;
  }
  const op_costs& learnt = run.costs();
  CHECK(on_threads >= 3);
  CHECK(learnt.timed_runs() >= 2);
  for (const index_t op : wide) CHECK(learnt.cost(op) >= 2e6);
  CHECK(learnt.cost(last) >= 1e5);
  CHECK(learnt.rank(first) >= learnt.rank(wide[0]));
  CHECK(learnt.rank(wide[0]) == doctest::Approx(learnt.cost(wide[0]) + learnt.cost(last)));
  CHECK(plan.with_costs(learnt.all()).ok());
  // A chain does not pay.
  task_list chain;
  index_t before = chain.add("op", [] { pause(50); });
  for (int i = 0; i < 8; ++i) before = chain.add("op", [] { pause(50); }, {before});
  const task_plan line = task_plan::compile(chain).or_throw();
  cost_run alone(line);
  for (int i = 0; i < 20; ++i) {
    REQUIRE(run_on(pool, alone).ok());
    CHECK_FALSE(alone.costs().was_on_threads());
  }
  // On one thread there is nothing to choose.
  inline_executor here;
  cost_run serial(plan);
  REQUIRE(run_on(here, serial).ok());
  CHECK_FALSE(serial.costs().was_on_threads());
}

TEST_CASE("cost_run: on threads each op runs once, and a failure is that of the order") {
  std::mt19937_64 random(seed());
  thread_pool pool({.threads = 3, .oversubscribe = true});
  int on_threads = 0, failed = 0;
  for (int round = 0; round < 12 || (on_threads <= 12 && round < 200); ++round) {
    const task_graph graph = random_graph(random, 16, 0.08);
    const auto expected = interpreted(graph);
    task_list list;
    for (std::size_t v = 0; v < graph.size(); ++v) {
      const int us = v % 3 == 0 ? 300 : v % 3 == 1 ? 20 : 0;  // dear ones and cheap ones
      list.add("t" + std::to_string(v), [us](const task_call& call) -> status {
        if (us > 0) pause(us);
        return run_op(call.in<graph_step>(), call.op);
      });
    }
    for (std::size_t v = 0; v < graph.size(); ++v) {
      for (const index_t u : graph.before[v]) list.edge(u, static_cast<index_t>(v));
    }
    const task_plan plan = task_plan::compile(list).or_throw();
    cost_run run(plan);
    for (int i = 0; i < 24; ++i) {
      graph_step step(graph);
      // From the eighth run on every other one ends early: by a status, an exception or a request to stop.
      const int how = i >= 8 && i % 2 == 0 ? i / 2 % 3 : -1;
      index_t first = -1;
      if (how == 0 || how == 1) {
        auto& bad = how == 1 && DEEPREC_EXCEPTIONS ? step.throws : step.fails;
        bad.resize(graph.size());
        for (int k = 0; k < 2; ++k) bad[random() % graph.size()] = 1;
        for (const std::int32_t v : plan.order()) {
          if (first < 0 && bad[static_cast<std::size_t>(v)] != 0) first = v;
        }
      } else if (how == 2) {
        step.stops = static_cast<index_t>(random() % graph.size());
      }
      const std::stop_token token = step.stop.get_token();
      context ctx{pool};
      ctx.stop = &token;
      index_t failed_at = -1;
      bool ok = false;
#if DEEPREC_EXCEPTIONS
      try {
#endif
        const auto outcome = run_on(ctx, run, &step);
        ok = outcome.ok();
        if (!ok && outcome.code() != errc::stopped) failed_at = outcome.fault().place().item;
#if DEEPREC_EXCEPTIONS
      } catch (const task_error& e) {
        failed_at = e.op();
      }
#endif
      on_threads += run.costs().was_on_threads() ? 1 : 0;
      CHECK(failed_at == first);
      int ran = 0;
      for (const int n : step.ran) {
        CHECK(n <= 1);
        ran += n;
      }
      CHECK(ok == (ran == static_cast<int>(graph.size()) && first < 0));
      if (how < 0) REQUIRE_MESSAGE(step_fault(step, expected) == "", step_fault(step, expected));
      failed += ok ? 0 : 1;
    }
  }
  CHECK(on_threads > 12);
  CHECK(failed > 30);
}
