// What runs of a plan and recorded spans allocate: nothing. operator new is replaced, so this is a program of
// its own.
#include <doctest/doctest.h>

#include <cstddef>

#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/plan/plan_run.hpp>
#include <deeprec/plan/trace_recorder.hpp>

#include "plan/task_graphs.hpp"
#include "support/counted_new.hpp"
#include "support/seed.hpp"

using namespace deeprec_test;

TEST_CASE("run_inline, run_on, trace_recorder: a step allocates nothing") {
  std::mt19937_64 random(seed());
  const task_graph graph = random_graph(random, 100, 0.03);
  const auto expected = interpreted(graph);
  const task_plan plan = task_plan::compile(list_of(graph)).or_throw();
  thread_pool pool(3);
  plan_run patient(plan);
  plan_run impatient(plan, std::pmr::get_default_resource(), {.spin = std::chrono::microseconds(0)});
  stealing_run stealing(plan);
  cost_run by_cost(plan);
  trace_recorder trace({.threads = 4, .spans = 40'000});
  graph_step step(graph);
  const std::stop_token token = step.stop.get_token();
  context ctx{pool};
  ctx.trace = &trace;
  ctx.stop = &token;
  const auto all = [&] {
    bool ok = run_inline({}, plan, &step).ok();
    ok = run_inline(ctx, plan, &step).ok() && ok;
    const auto twice = [&](auto& run) {
      ok = run_on(pool, run, &step).ok() && ok;
      ok = run_on(ctx, run, &step).ok() && ok;
    };
    twice(patient), twice(impatient), twice(stealing), twice(by_cost);
    return ok;
  };
  CHECK(all());
  const std::size_t before = news.load();
  bool ok = true;
  for (int i = 0; i < 50; ++i) ok = all() && ok;
  const std::size_t made = news.load() - before;
  CHECK(made == 0);
  CHECK(ok);
  CHECK(step.value == expected);
  CHECK(trace.dropped() == 0);
  CHECK(trace.spans().size() == 51 * 5 * 100);
  // It counts.
  static_cast<void>(plan_run(plan));
  CHECK(news.load() > before);
}
