#include <deeprec/plan/plan_run.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <type_traits>

#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "plan/task_graphs.hpp"
#include "support/children.hpp"
#include "support/sanitizers.hpp"
#include "support/seed.hpp"
#include "support/test_resources.hpp"

using namespace deeprec_test;

namespace {

constexpr plan_run_options impatient{.spin = std::chrono::microseconds(0)};

/// Every piece of a parallel_for on a thread of its own.
struct thread_per_piece {
  template <class Body>
  void parallel_for(index_t n, index_t grain, Body&& body) const {
    std::vector<std::thread> threads;
    for (index_t begin = grain; begin < n; begin += grain) {
      threads.emplace_back([&body, begin, end = std::min(n, begin + grain), worker = begin / grain] {
        body(begin, end, static_cast<int>(worker));
      });
    }
    if (n > 0) body(index_t{0}, std::min(n, grain), 0);
    for (std::thread& t : threads) t.join();
  }
  [[nodiscard]] static constexpr int concurrency() noexcept { return 3; }
};

#if DEEPREC_EXCEPTIONS
/// Three threads, of which those that find no work have left before the op that calls op() ends. The op runs
/// on the caller's thread or on the first helper's. Call number `fails_at` throws.
struct failing_executor {
  bool caller_first = true;
  int fails_at = -1;
  int calls = 0;
  std::atomic<bool> begun{false};
  std::atomic<int> away{0};

  void op() {
    begun = true;
    while (away < (caller_first ? 2 : 1)) std::this_thread::yield();
  }
  template <class Body>
  void parallel_for(index_t n, index_t grain, Body&& body) {
    const int call = calls++;
    if (call == fails_at) throw std::bad_alloc();
    if (call != 0) {
      for (index_t begin = 0; begin < n; begin += grain) body(begin, std::min(n, begin + grain), 0);
      return;
    }
    const auto until_begun = [&] {
      while (!begun) std::this_thread::yield();
    };
    std::exception_ptr thrown[3];
    const auto piece = [&](index_t k) {
      try {
        body(k * grain, std::min(n, (k + 1) * grain), static_cast<int>(k));
      } catch (...) {
        thrown[k] = std::current_exception();
      }
    };
    std::vector<std::thread> threads;
    for (index_t k = 1; k * grain < n; ++k) {
      threads.emplace_back([&, k] {
        if (caller_first || k > 1) until_begun();
        piece(k);
        ++away;
      });
    }
    if (!caller_first) until_begun();
    piece(0);
    for (std::thread& t : threads) t.join();
    for (const std::exception_ptr& e : thrown) {
      if (e) std::rethrow_exception(e);
    }
  }
  [[nodiscard]] static constexpr int concurrency() noexcept { return 3; }
};
#endif

/// Calls use(run) with a run whose ready set is that of the number.
template <class Use>
void with_run(std::size_t which, const task_plan& plan, const plan_run_options& options, const Use& use) {
  const auto with = [&]<class Run>(std::type_identity<Run>) {
    Run run(plan, std::pmr::get_default_resource(), options);
    use(run);
  };
  switch (which % 3) {
    case 0:
      return with(std::type_identity<plan_run>());
    case 1:
      return with(std::type_identity<stealing_run>());
    default:
      return with(std::type_identity<cost_run>());
  }
}

/// Ops that `from` leads to.
std::vector<bool> behind(const task_plan& plan, index_t from) {
  std::vector<bool> made(static_cast<std::size_t>(plan.size()));
  std::vector<index_t> todo{from};
  while (!todo.empty()) {
    const index_t u = todo.back();
    todo.pop_back();
    for (const std::int32_t v : plan.successors(u)) {
      if (made[static_cast<std::size_t>(v)]) continue;
      made[static_cast<std::size_t>(v)] = true;
      todo.push_back(v);
    }
  }
  return made;
}

}  // namespace

TEST_CASE("run_inline, run_on: ten thousand graphs give what their interpretation gives") {
  std::mt19937_64 random(seed());
  thread_pool two(2), four(4);
  const int rounds = DEEPREC_TEST_SANITIZED ? 2000 : 10'000;
  for (int round = 0; round < rounds; ++round) {
    const task_graph graph = random_graph(random, random() % 11, 0.08 * static_cast<double>(round % 10));
    const auto expected = interpreted(graph);
    const task_plan plan =
        task_plan::compile(list_of(graph), round % 2 == 0 ? task_order::by_kind : task_order::as_added)
            .or_throw();
    {
      graph_step step(graph);
      REQUIRE(run_inline({}, plan, &step).ok());
      REQUIRE_MESSAGE(step_fault(step, expected) == "", step_fault(step, expected));
    }
    with_run(static_cast<std::size_t>(round), plan, round % 3 == 0 ? impatient : plan_run_options{},
             [&](auto& run) {
               for (thread_pool* const pool : {&two, &four, &two, &four}) {
                 graph_step step(graph);
                 REQUIRE(run_on(*pool, run, &step).ok());
                 REQUIRE_MESSAGE(step_fault(step, expected) == "", step_fault(step, expected));
               }
             });
  }
}

TEST_CASE("run_on: large graphs on every executor, threads that leave and are called back") {
  std::mt19937_64 random(seed());
  thread_pool pool(3);
  for (int round = 0; round < 20; ++round) {
    const task_graph graph = random_graph(random, 300, 0.002 * static_cast<double>(round % 6));
    const auto expected = interpreted(graph);
    const task_plan plan = task_plan::compile(list_of(graph)).or_throw();
    for (const std::size_t which : {0, 1, 2}) {
      with_run(which, plan, round % 2 == 0 ? impatient : plan_run_options{}, [&](auto& run) {
        const auto check = [&](auto&& on) {
          graph_step step(graph);
          REQUIRE(run_on(on, run, &step).ok());
          CHECK_MESSAGE(step_fault(step, expected) == "", step_fault(step, expected));
        };
        check(inline_executor());
        check(marking_executor());                 // several workers, one thread
        for (int again = 0; again < 8; ++again) {  // so many take a cost_run to threads
          check(pool);
          check(executor_ref(pool));
          check(context(pool));
        }
        for (int again = 0; again < 8; ++again) check(thread_per_piece());
      });
    }
  }
  // Few threads at work, then many.
  std::vector<std::atomic<int>> ran(100);
  task_list list;
  const auto slow = [] { std::this_thread::sleep_for(std::chrono::microseconds(300)); };
  index_t last = list.add("first", slow);
  for (std::size_t phase = 0; phase < 10; ++phase) {
    std::vector<index_t> wide;
    for (std::size_t i = 0; i < 10; ++i) {
      wide.push_back(list.add("wide", [&n = ran[10 * phase + i], slow] { slow(), ++n; }, {last}));
    }
    last = list.add("join", slow, wide);
  }
  const task_plan plan = task_plan::compile(list).or_throw();
  for (const plan_run_options& options : {impatient, plan_run_options{}}) {
    plan_run run(plan, std::pmr::get_default_resource(), options);
    CHECK(run_on(pool, run).ok());
  }
  for (const auto& n : ran) CHECK(n == 2);
}

TEST_CASE("run_on: threads come back for each phase, and help with the bulk work of ops") {
  // The ops of a phase meet: none of them ends before all have begun, which takes a thread for each.
  constexpr int threads = 4, phases = 16;
  struct meeting {
    std::atomic<int> here{0};
    bool all() {
      const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      for (++here; here < threads && std::chrono::steady_clock::now() < give_up;) std::this_thread::yield();
      return here == threads;
    }
  };
  thread_pool pool({.threads = threads, .oversubscribe = true});
  std::vector<meeting> met(phases), bulk(phases);
  std::atomic<int> missed{0};
  task_list list;
  index_t last = list.add("begin", [] {});
  for (std::size_t p = 0; p < phases; ++p) {
    last = list.add("narrow", [] { std::this_thread::sleep_for(std::chrono::microseconds(200)); }, {last});
    std::vector<index_t> wide;
    for (int i = 0; i < threads; ++i)
      wide.push_back(list.add("wide", [&, p] { missed += met[p].all() ? 0 : 1; }, {last}));
    last = list.add(
        "bulk",
        [&, p] {
          pool.parallel_for(threads, 1, [&](index_t, index_t, int) { missed += bulk[p].all() ? 0 : 1; });
        },
        wide);
  }
  const task_plan plan = task_plan::compile(list).or_throw();
  plan_run run(plan, std::pmr::get_default_resource(), impatient);
  executor_ref ref(pool);
  for (int round = 0; round < 2; ++round) {
    for (auto& m : met) m.here = 0;
    for (auto& m : bulk) m.here = 0;
    REQUIRE((round == 0 ? run_on(pool, run) : run_on(ref, run)).ok());
    REQUIRE(missed == 0);
  }
}

TEST_CASE("run_inline, run_on: a plan that lacks an edge is caught") {
  std::mt19937_64 random(seed());
  int caught = 0, tried = 0;
  for (int round = 0; round < 300; ++round) {
    const task_graph graph = random_graph(random, 8, 0.3);
    const auto expected = interpreted(graph);
    for (std::size_t v = 0; v < graph.size(); ++v) {
      for (const index_t u : graph.before[v]) {
        const task_plan plan = task_plan::compile(list_of(graph, {u, static_cast<index_t>(v)})).or_throw();
        if (plan.position(u) < plan.position(static_cast<index_t>(v))) continue;  // in order by luck
        graph_step step(graph);
        REQUIRE(run_inline({}, plan, &step).ok());
        ++tried;
        caught += step_fault(step, expected) != "" ? 1 : 0;
      }
    }
  }
  CHECK(tried > 100);
  CHECK(caught == tried);
}

TEST_CASE("run_inline, run_on: the first failure in the order of the plan ends a run, at every op") {
  std::mt19937_64 random(seed());
  thread_pool pool(3);
  for (int round = 0; round < 60; ++round) {
    const task_graph graph = random_graph(random, 1 + random() % 8, 0.3);
    const task_plan plan = task_plan::compile(list_of(graph)).or_throw();
    const auto inject = [&](auto& run) {
      for (std::size_t f = 0; f < graph.size(); ++f) {
        for (const bool throws : {false, true}) {
          if (throws && !DEEPREC_EXCEPTIONS) continue;
          for (const bool threads : {false, true}) {
            graph_step step(graph);
            auto& bad = throws ? step.throws : step.fails;
            bad.resize(graph.size());
            bad[f] = 1;
            bad[random() % graph.size()] = 1;  // and often a second one
            index_t first = -1;
            for (const std::int32_t v : plan.order()) {
              if (first < 0 && bad[static_cast<std::size_t>(v)] != 0) first = v;
            }
            const auto go = [&] { return threads ? run_on(pool, run, &step) : run_inline({}, plan, &step); };
            if (!throws) {
              const auto outcome = go();
              REQUIRE_FALSE(outcome.ok());
              CHECK(outcome.code() == errc::io_error);
              CHECK(outcome.fault().place().item == first);
              CHECK(outcome.fault().message() == "input or output error: t" + std::to_string(first) +
                                                     ": run_op: the file must exist; item " +
                                                     std::to_string(first));
            } else {
#if DEEPREC_EXCEPTIONS
              bool caught = false;
              try {
                static_cast<void>(go());
              } catch (const task_error& e) {
                caught = true;
                CHECK(e.op() == first);
                CHECK(std::string(e.what()) == "task_plan: t" + std::to_string(first) + " threw (op " +
                                                   std::to_string(first) + "): thrown");
                CHECK_THROWS_AS(std::rethrow_if_nested(e), std::runtime_error);
              }
              CHECK(caught);
#endif
            }
            const auto later = behind(plan, first);
            for (std::size_t v = 0; v < graph.size(); ++v) {
              const index_t at = plan.position(static_cast<index_t>(v)), failed_at = plan.position(first);
              if (at <= failed_at) CHECK(step.ran[v] == 1);
              if (!threads && at > failed_at) CHECK(step.ran[v] == 0);
              if (later[v]) CHECK(step.ran[v] == 0);
              CHECK(step.ran[v] <= 1);
            }
          }
        }
      }
      graph_step step(graph);  // the same run afterwards
      CHECK(run_on(pool, run, &step).ok());
      CHECK(step_fault(step, interpreted(graph)) == "");
    };
    for (const std::size_t which : {0, 1, 2}) {
      with_run(which, plan, round % 2 == 0 ? impatient : plan_run_options{}, inject);
    }
  }
}

TEST_CASE("run_inline, run_on: a request to stop ends a run, at every op") {
  std::mt19937_64 random(seed());
  thread_pool pool(2);
  for (int round = 0; round < 60; ++round) {
    const task_graph graph = random_graph(random, 1 + random() % 8, 0.3);
    const task_plan plan = task_plan::compile(list_of(graph)).or_throw();
    const auto stop_at = [&](auto& run) {
      for (std::size_t at = 0; at <= graph.size(); ++at) {
        for (const bool threads : {false, true}) {
          graph_step step(graph);
          step.stops = static_cast<index_t>(at);
          if (at == graph.size()) step.stop.request_stop();  // before it begins
          const std::stop_token token = step.stop.get_token();
          context ctx{pool};
          ctx.stop = &token;
          const auto outcome = threads ? run_on(ctx, run, &step) : run_inline(ctx, plan, &step);
          int all = 0;
          for (const int n : step.ran) all += n;
          CHECK(outcome.ok() == (all == static_cast<int>(graph.size())));
          if (!outcome.ok()) CHECK(outcome.code() == errc::stopped);
          if (at == graph.size()) {
            CHECK(all == 0);
            continue;
          }
          if (!threads) CHECK(all == plan.position(step.stops) + 1);
          const auto later = behind(plan, step.stops);
          for (std::size_t v = 0; v < graph.size(); ++v) {
            if (later[v]) CHECK(step.ran[v] == 0);
          }
        }
      }
    };
    for (const std::size_t which : {0, 1, 2}) {
      with_run(which, plan, round % 2 == 0 ? impatient : plan_run_options{}, stop_at);
    }
  }
}

TEST_CASE("run_on: several runs of one plan at once, also inside of each other") {
  std::mt19937_64 random(seed());
  const task_graph graph = random_graph(random, 60, 0.05);
  const auto expected = interpreted(graph);
  const task_plan plan = task_plan::compile(list_of(graph)).or_throw();
  thread_pool pool(3);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      plan_run run(plan, std::pmr::get_default_resource(), t % 2 == 0 ? impatient : plan_run_options{});
      for (int i = 0; i < 100; ++i) {
        graph_step step(graph);
        const bool ok = t == 3 ? run_inline({}, plan, &step).ok() : run_on(pool, run, &step).ok();
        if (!ok || !step_fault(step, expected).empty()) ++wrong;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(wrong == 0);
  // A task that runs a plan on the same pool.
  std::vector<std::unique_ptr<plan_run>> runs;
  task_list outer;
  for (int i = 0; i < 8; ++i) {
    runs.push_back(std::make_unique<plan_run>(plan));
    outer.add("inner", [&, run = runs.back().get()]() -> status {
      graph_step step(graph);
      const auto done = run_on(pool, *run, &step);
      if (!step_fault(step, expected).empty()) ++wrong;
      return done ? status() : status(done.fault());
    });
  }
  const task_plan nested = task_plan::compile(outer).or_throw();
  plan_run run(nested);
  for (int i = 0; i < 20; ++i) CHECK(run_on(pool, run).ok());
  CHECK(wrong == 0);
}

#if DEEPREC_EXCEPTIONS
TEST_CASE("run_on: an executor whose parallel_for throws, at each call, and a run after that") {
  for (const bool caller_first : {true, false}) {
    for (const int fails_at : {0, 1}) {
      INFO("caller first ", caller_first, ", call ", fails_at);
      CHECK(in_child(
                [&] {
                  failing_executor executor{.caller_first = caller_first, .fails_at = fails_at};
                  std::atomic<int> ran{0};
                  task_list list;
                  const index_t first = list.add("first", [&] {
                    if (executor.calls == 1 && fails_at == 1) executor.op();
                    ++ran;
                  });
                  std::vector<index_t> wide;
                  for (int i = 0; i < 4; ++i) wide.push_back(list.add("wide", [&] { ++ran; }, {first}));
                  list.add("join", [&] { ran += ran == 5 ? 1 : 100; }, wide);
                  const task_plan plan = task_plan::compile(list).or_throw();
                  plan_run run(plan, std::pmr::get_default_resource(), impatient);
                  try {
                    // Threads that can't be called back are done without.
                    if (!run_on(executor, run).ok() || fails_at == 0) return 1;
                    if (ran != 6 || executor.calls != 2) return 2;
                  } catch (const std::bad_alloc&) {
                    if (fails_at != 0 || ran != 0) return 3;
                  }
                  executor.calls = 2;
                  thread_pool pool(3);
                  for (int round = 0; round < 3; ++round) {
                    ran = 0;
                    if (!run_on(pool, run).ok() || ran != 6) return 4;
                  }
                  return 0;
                },
                30) == 0);
    }
  }
}
#endif

TEST_CASE("plan_run: takes its memory once, from the resource that it was given") {
  std::mt19937_64 random(seed());
  const task_graph graph = random_graph(random, 40, 0.1);
  const task_plan plan = task_plan::compile(list_of(graph)).or_throw();
  allowance granted;
  refusing_resource memory(granted);
  thread_pool pool(2);
  {
    plan_run run(plan, &memory);
    CHECK(memory.granted == 1);
    for (int i = 0; i < 10; ++i) {
      graph_step step(graph);
      CHECK(run_on(pool, run, &step).ok());
    }
    CHECK(memory.granted == 1);
  }
  CHECK(memory.held == 0);
#if DEEPREC_EXCEPTIONS
  granted.left = 0;
  CHECK_THROWS_AS(plan_run(plan, &memory), std::bad_alloc);
#endif
  const task_plan nothing = task_plan::compile(task_list()).or_throw();
  plan_run run(nothing);
  CHECK(run_on(pool, run).ok());
  CHECK(run_inline({}, nothing).ok());
}
