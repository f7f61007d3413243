// Runs of a plan on two threads and more, with each ready set, against other libraries' graphs.
//
//   graph/executor/empty/chain, tree, wavefront, random    10^4 ops of about 1 ns
//   graph/executor/phases          16 phases of 8 ops that sleep, on 8 threads: against a parallel_for for
//                                  each
//   graph/executor/external_one    until a worker has run an op that another thread calls it to
//   graph/executor/cost/parallel   ops of 20 to 60 us, four beside each other: against one thread
//   graph/executor/cost/branch     one long branch beside short ops: against the order in which ops become
//                                  ready
//   graph/executor/cost/makespan   list schedules by rank on simulated machines of 1 to 64 workers
//
// Floors, before anything was optimised. A line that two cores write in turn takes 100 to 200 ns, so an op of
// 1 ns is not worth a second thread: a cost_run finds that out and takes the plan's loop, 2 to 8 ns an op.
// The critical path of `parallel` is half of its work on two threads, so 1.9 are possible; of `branch` 1.5.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/plan/list_schedule.hpp>
#include <deeprec/plan/plan_run.hpp>

#include "graph/baseline.hpp"
#include "graph/peers.hpp"
#include "support/add.hpp"
#include "support/figures.hpp"

namespace {

using namespace deeprec;
using namespace graph_bench;
using deeprec_bench::add;
using deeprec_bench::figures;
using deeprec_bench::median;
using deeprec_bench::seconds_of;

graph made_of(std::size_t ops, const auto& before) {
  graph made;
  for (std::size_t v = 0; v < ops; ++v) {
    const auto self = static_cast<std::uint32_t>(v);
    const auto [first, second] = before(v);
    made.ops.push_back({first, second, 0});
    if (first != self) made.edges.emplace_back(first, self);
    if (second != self && second != first) made.edges.emplace_back(second, self);
  }
  return made;
}
using pair = std::pair<std::uint32_t, std::uint32_t>;
pair both(std::size_t v) { return {static_cast<std::uint32_t>(v), static_cast<std::uint32_t>(v)}; }
constexpr std::size_t many = 10'000;
graph chain() {
  return made_of(many, [](std::size_t v) { return both(v == 0 ? 0 : v - 1); });
}
graph tree() {
  return made_of(many, [](std::size_t v) { return both(v == 0 ? 0 : (v - 1) / 2); });
}
graph wavefront() {
  return made_of(many, [](std::size_t v) -> pair {
    const std::size_t row = v / 100, column = v % 100;
    return {static_cast<std::uint32_t>(row > 0      ? v - 100
                                       : column > 0 ? v - 1
                                                    : v),
            static_cast<std::uint32_t>(column > 0 ? v - 1
                                       : row > 0  ? v - 100
                                                  : v)};
  });
}
graph random_of() {
  std::mt19937 random(7);
  return made_of(many, [&](std::size_t v) -> pair {
    if (v < 10) return both(v);
    return {static_cast<std::uint32_t>(random() % v), static_cast<std::uint32_t>(random() % v)};
  });
}

struct op_task {
  std::uint64_t* values;
  graph::op op;
  std::uint32_t self;
  void operator()() const { run_op<0>(values, self, op); }
};

void empty(benchmark::State& state, const std::string& name, const graph& of) {
  for (auto _ : state) {
    const auto initial = first_values(of);
    std::vector<std::uint64_t> expected = initial, values = initial;
    for (std::uint32_t v = 0; v < of.ops.size(); ++v) run_op<0>(expected.data(), v, of.ops[v]);
    task_list list;
    for (std::uint32_t v = 0; v < of.ops.size(); ++v) list.add("op", op_task{values.data(), of.ops[v], v});
    for (const auto& [u, v] : of.edges) list.edge(u, v);
    const task_plan plan = task_plan::compile(list).or_throw();
    thread_pool pool({.threads = 2, .oversubscribe = true});
    cost_run by_cost(plan);
    plan_run fifo(plan);
    stealing_run stealing(plan);
    std::vector<std::unique_ptr<runner>> others;
    for (const peer& p : peers()) others.emplace_back(p.make(of, values.data(), 2));
    bool wrong = false;
    const auto ours = [&](auto& run) { wrong |= !run_on(pool, run); };
    const auto right = [&](auto&& run) {
      values = initial;
      run();
      wrong |= values != expected;
    };
    for (int i = 0; i < 64; ++i) right([&] { ours(by_cost); });  // until it has learnt
    right([&] { ours(fifo); });
    right([&] { ours(stealing); });
    for (auto& other : others) right([&] { other->run(); });
    if (wrong) return state.SkipWithError("wrong answer: an op did not run after those that it depends on");
    constexpr int repeats = 20;
    const auto ns = [&](auto&& run) {
      return 1e9 / many / repeats * seconds_of([&] {
               for (int i = 0; i < repeats; ++i) run();
             });
    };
    figures f(name);
    std::vector<std::vector<double>> theirs(others.size());
    f.sample([&] {
      double mine = 0, best = 0;
      const auto all_others = [&] {
        for (std::size_t i = 0; i < others.size(); ++i) {
          const double took = ns([&] { others[i]->run(); });
          best = best == 0 ? took : std::min(best, took);
          if (f.counts()) theirs[i].push_back(took);
        }
      };
      if (f.swapped()) all_others();
      mine = ns([&] { ours(by_cost); });
      if (!f.swapped()) all_others();
      f.add("ns_per_op", mine);
      if (best > 0) f.add("of_best", mine / best);
      f.note("fifo_ns", ns([&] { ours(fifo); }));
      f.note("stealing_ns", ns([&] { ours(stealing); }));
    });
    std::size_t best = 0;
    for (std::size_t i = 1; i < others.size(); ++i) {
      if (median(theirs[i]) < median(theirs[best])) best = i;
    }
    if (!others.empty()) {
      f.note("best_ns", median(theirs[best]));
      f.say(std::string("best peer: ") + peers()[best].name);
    }
    f.say(by_cost.costs().was_on_threads() ? "on threads" : "on its caller's thread");
    if (wrong) return state.SkipWithError("wrong answer: a run failed");
    f.report(state);
  }
}

void phases(benchmark::State& state, const std::string& name) {
  for (auto _ : state) {
    constexpr int count = 16, width = 8;
    const auto nap = [](int us) { std::this_thread::sleep_for(std::chrono::microseconds(us)); };
    task_list list;
    index_t join = list.add("begin", [] {});
    for (int p = 0; p < count; ++p) {
      join = list.add("narrow", [nap] { nap(300); }, {join});
      std::vector<index_t> wide;
      for (int w = 0; w < width; ++w) wide.push_back(list.add("wide", [nap] { nap(2000); }, {join}));
      join = list.add("join", [] {}, wide);
    }
    const task_plan plan = task_plan::compile(list, task_order::as_added).or_throw();
    thread_pool pool({.threads = width, .oversubscribe = true});
    plan_run run(plan);
    bool failed = false;
    figures f(name);
    f.sample([&] {
      double run_seconds = 0, loop_seconds = 0;
      const auto by_run = [&] { run_seconds = seconds_of([&] { failed |= !run_on(pool, run); }); };
      const auto by_loops = [&] {
        loop_seconds = seconds_of([&] {
          for (int p = 0; p < count; ++p) {
            nap(300);
            pool.parallel_for(width, 1, [&](index_t, index_t, int) { nap(2000); });
          }
        });
      };
      if (f.swapped()) by_loops();
      by_run();
      if (!f.swapped()) by_loops();
      f.add("of_parallel_for", run_seconds / loop_seconds);
      f.note("ms", 1e3 * run_seconds);
    });
    if (failed) return state.SkipWithError("wrong answer: a run failed");
    f.report(state);
  }
}

void external_one(benchmark::State& state, const std::string& name) {
  for (auto _ : state) {
    struct one {
      const task_plan* plan;
      std::atomic<int> ended{0};
      std::thread::id thread = {};
    } shared{};
    task_list list;
    list.add("op", [&shared] { shared.thread = std::this_thread::get_id(); });
    const task_plan plan = task_plan::compile(list).or_throw();
    shared.plan = &plan;
    thread_pool pool({.threads = 2, .oversubscribe = true});
    forked_work work{[](void* body, int) noexcept {
                       auto& to = *static_cast<one*>(body);
                       if (run_inline({}, *to.plan)) to.ended.fetch_add(1, std::memory_order_release);
                     },
                     [](void*) noexcept {}, &shared};
    const awake scope(pool);
    bool elsewhere = pool.fork(work);
    if (!elsewhere) return state.SkipWithError("wrong answer: the pool does not fork");
    constexpr int repeats = 1000;
    figures f(name);
    f.sample([&] {
      f.add("us", 1e6 / repeats * seconds_of([&] {
                    for (int i = 0; i < repeats; ++i) {
                      const int before = shared.ended.load(std::memory_order_relaxed);
                      pool.call_helpers(work, 1);
                      while (shared.ended.load(std::memory_order_acquire) == before) {
                      }
                      elsewhere = elsewhere && shared.thread != std::this_thread::get_id();
                    }
                  }));
    });
    pool.join(work);
    if (!elsewhere) return state.SkipWithError("wrong answer: the op ran on the calling thread");
    f.report(state);
  }
}

void busy(double us) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double, std::micro>(us);
  while (std::chrono::steady_clock::now() < until) {
  }
}

// `ratio(f, pool, plan, by_cost)` times one round.
template <class Round>
void by_cost(benchmark::State& state, const std::string& name, const task_list& list, const Round& round) {
  for (auto _ : state) {
    const task_plan plan = task_plan::compile(list, task_order::as_added).or_throw();
    thread_pool pool({.threads = 2, .oversubscribe = true});
    cost_run run(plan);
    for (int i = 0; i < 20; ++i) {
      if (!run_on(pool, run)) return state.SkipWithError("wrong answer: a run failed");
    }
    figures f(name);
    std::int64_t on_threads = 0, runs = 0;
    f.sample([&] {
      round(f, pool, plan, run);
      on_threads += run.costs().was_on_threads() ? 1 : 0;
      ++runs;
    });
    f.note("on_threads", static_cast<double>(on_threads) / static_cast<double>(runs));
    f.note("call_us", run.costs().call_ns() / 1e3);
    f.report(state);
  }
}
constexpr int rounds = 8;
template <class Run>
double seconds_on(thread_pool& pool, Run& run) {
  return seconds_of([&] {
    for (int i = 0; i < rounds; ++i) static_cast<void>(run_on(pool, run).or_throw());
  });
}

void parallel(benchmark::State& state, const std::string& name) {
  std::mt19937 random(7);
  task_list list;
  std::vector<index_t> before;
  for (int layer = 0; layer < 16; ++layer) {
    std::vector<index_t> now;
    for (int i = 0; i < 4; ++i) {
      std::vector<index_t> after;
      if (!before.empty()) after = {before[random() % 4], before[random() % 4]};
      const double us = 20 + static_cast<double>(random() % 40);
      now.push_back(list.add("op", [us] { busy(us); }, after));
    }
    before = now;
  }
  by_cost(state, name, list, [](figures& f, thread_pool& pool, const task_plan& plan, cost_run& run) {
    f.pair(
        "over_inline", "", [&] { seconds_on(pool, run); },
        [&] {
          for (int i = 0; i < rounds; ++i) static_cast<void>(run_inline({}, plan).or_throw());
        });
  });
}
void branch(benchmark::State& state, const std::string& name) {
  task_list list;
  const index_t first = list.add("read", [] { busy(5); });
  std::vector<index_t> ends;
  for (int i = 0; i < 16; ++i) ends.push_back(list.add("short", [] { busy(30); }, {first}));
  index_t last = first;
  for (int i = 0; i < 12; ++i) last = list.add("long", [] { busy(40); }, {last});
  ends.push_back(last);
  list.add("update", [] { busy(5); }, ends);
  by_cost(state, name, list, [](figures& f, thread_pool& pool, const task_plan& plan, cost_run& run) {
    plan_run fifo(plan);
    f.pair("over_fifo", "", [&] { seconds_on(pool, run); }, [&] { seconds_on(pool, fifo); });
  });
}

void makespan(benchmark::State& state, const std::string& name) {
  for (auto _ : state) {
    std::mt19937_64 random(7);
    figures f(name);
    double worst = 0, graham = 0;
    for (int round = 0; round < 60; ++round) {
      const std::size_t ops = 20 + random() % 181;
      std::vector<digraph::edge> edges;
      std::lognormal_distribution<double> cost(0, 1);
      std::vector<double> costs(ops), ranks(ops);
      for (std::size_t v = 0; v < ops; ++v) {
        costs[v] = std::round(1000 * cost(random));  // sums are exact
        for (std::size_t k = 0; v > 0 && k < 1 + random() % 3; ++k) {
          const std::size_t back = 1 + random() % std::min<std::size_t>(v, 5 + ops / 4);
          edges.push_back({static_cast<digraph::number>(v - back), static_cast<digraph::number>(v)});
        }
      }
      const digraph graph(ops, edges);
      const std::vector<digraph::number> order = graph.order_as_ready();
      upward_ranks(graph, order, std::span<const double>(costs), std::span<double>(ranks));
      std::vector<digraph::number> place(ops), at(ops), list(ops), missing(ops), ready(ops);
      places_by_rank(std::span<const double>(ranks), std::span<digraph::number>(at),
                     std::span<digraph::number>(place));
      const double path = *std::max_element(ranks.begin(), ranks.end());
      const double work = std::accumulate(costs.begin(), costs.end(), 0.0);
      for (const int workers : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64}) {
        const auto end_of = [&](const std::vector<digraph::number>& places) {
          return list_schedule(graph, std::span<const double>(costs),
                               std::span<const digraph::number>(places), {.workers = workers},
                               {missing, ready});
        };
        const double end = end_of(place);
        double best = end;
        std::iota(list.begin(), list.end(), 0);
        for (int i = 0; i < 200; ++i) {
          best = std::min(best, end_of(list));
          std::shuffle(list.begin(), list.end(), random);
        }
        // Lists beside that by rank: two ops change places, and stay where that is better.
        std::vector<digraph::number> near(place);
        for (int i = 0; i < 300; ++i) {
          digraph::number &a = near[random() % ops], &b = near[random() % ops];
          std::swap(a, b);
          const double other = end_of(near);
          if (other <= best) {
            best = other;
          } else {
            std::swap(a, b);
          }
        }
        const double least = std::max(path, work / workers);
        f.add("over_best", end / best, std::to_string(workers));
        worst = std::max(worst, end / best);
        graham = std::max(graham, end / (least * (2 - 1.0 / workers)));
      }
    }
    f.sample([&] {
      f.add("worst_over_best", worst);
      f.add("of_graham", graham);
    });
    f.report(state);
  }
}

void empty_of(const char* name, graph (*of)()) {
  add(name, [of](benchmark::State& state, const std::string& whole) { empty(state, whole, of()); });
}

const bool registered = [] {
  empty_of("graph/executor/empty/chain", chain);
  empty_of("graph/executor/empty/tree", tree);
  empty_of("graph/executor/empty/wavefront", wavefront);
  empty_of("graph/executor/empty/random", random_of);
  add("graph/executor/phases", phases);
  add("graph/executor/external_one", external_one);
  add("graph/executor/cost/parallel", parallel);
  add("graph/executor/cost/branch", branch);
  add("graph/executor/cost/makespan", makespan);
  return true;
}();

}  // namespace
