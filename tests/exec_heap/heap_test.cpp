// What runs of a plan and recorded spans allocate: nothing. operator new is replaced, so this is a program of
// its own.
#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

#include <deeprec/exec/plan_run.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/exec/trace_recorder.hpp>

#include "exec/task_graphs.hpp"
#include "support/seed.hpp"

namespace {
std::atomic<std::size_t> news{0};  // of all threads
}  // namespace

[[gnu::noinline]] void* operator new(std::size_t bytes) {
  news.fetch_add(1, std::memory_order_relaxed);
  if (void* const p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  news.fetch_add(1, std::memory_order_relaxed);
  const auto unit = static_cast<std::size_t>(alignment);
  if (void* const p = std::aligned_alloc(unit, (bytes / unit + 1) * unit)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }

using namespace deeprec_test;

TEST_CASE("run_inline, run_on, trace_recorder: a step allocates nothing") {
  std::mt19937_64 random(seed());
  const task_graph graph = random_graph(random, 100, 0.03);
  const auto expected = interpreted(graph);
  const task_plan plan = task_plan::compile(list_of(graph)).or_throw();
  thread_pool pool(3);
  plan_run patient(plan);
  plan_run impatient(plan, std::pmr::get_default_resource(), {.spin = std::chrono::microseconds(0)});
  trace_recorder trace({.threads = 4, .spans = 20'000});
  graph_step step(graph);
  const std::stop_token token = step.stop.get_token();
  context ctx{pool};
  ctx.trace = &trace;
  ctx.stop = &token;
  const auto all = [&] {
    bool ok = run_inline({}, plan, &step).ok();
    ok = run_inline(ctx, plan, &step).ok() && ok;
    for (plan_run* const run : {&patient, &impatient}) {
      ok = run_on(pool, *run, &step).ok() && ok;
      ok = run_on(ctx, *run, &step).ok() && ok;
    }
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
  CHECK(trace.spans().size() == 51 * 3 * 100);
  // It counts.
  static_cast<void>(plan_run(plan));
  CHECK(news.load() > before);
}
