// Executors and what else lies below the verbs: faults that were found once, by the
// names of docs/hazards.md.

#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/lookup_features.hpp>
#include <deeprec/embedding/groups/update_features.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/sgd.hpp>
#include <deeprec/plan/trace_recorder.hpp>
#include <deeprec/schedule/micro_batch.hpp>

#include "support/children.hpp"
#include "support/sanitizers.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

using namespace deeprec;
using namespace deeprec_test;

TEST_CASE("e08: groups take a const executor, as plain lookups do") {
  const inline_executor here;
  std::vector<float> rows{1, 2, 3}, out(1);
  const auto table = as_table(matrix_view(rows.data(), 3, 1));
  const std::vector<std::int64_t> offsets{0, 1}, ids{2};
  const std::vector<jagged_view<>> bags{{offsets.data(), 1, ids.data(), 1}};
  feature_group<> group;
  group.add(table, combiner::sum);
  REQUIRE(
      lookup(here, group, std::span<const jagged_view<>>(bags), matrix_view<float>(out.data(), 1, 1)).ok());
  CHECK(out[0] == 3);
  feature_group<sgd> steps;
  steps.add(table, combiner::sum);
  const float gradient = 2;
  REQUIRE(update(here, steps, std::span<const jagged_view<>>(bags), matrix_view<const float>(&gradient, 1, 1),
                 sgd{.learning_rate = 0.5F})
              .ok());
  CHECK(rows[2] == 2);
}

TEST_CASE("r14: executor_ref takes a const executor") {
  const inline_executor here;
  const executor_ref ref(here);
  CHECK(ref.concurrency() == 1);
  index_t covered = 0;
  ref.parallel_for(5, 2, [&](index_t begin, index_t end, int) { covered += end - begin; });
  CHECK(covered == 5);
  const executor_ref again(ref);
  CHECK(again.concurrency() == 1);
}

TEST_CASE("r13: a burst of short tasks leaves no more threads than the limit says") {
  CHECK(in_child([] {
          std::thread([] {}).join();  // with the first thread of a child a sanitizer starts one of its own
          const int before = threads_of_this_process();
          thread_pool pool(thread_pool_options{.threads = 2, .task_threads = 16});
          std::atomic<int> done{0};
          int refused = 0;
          for (int i = 0; i < 2000; ++i) {
            while (!pool.post([&](std::stop_token) { ++done; }).ok()) {
              ++refused;
              std::this_thread::yield();
            }
          }
          pool.wait_tasks();
          if (done != 2000) return 1;
          return threads_of_this_process() <= before + 1 + 16 ? 0 : 2;
        }) == 0);
}

TEST_CASE("r13: tasks that block are refused at the limit of threads, and none waits behind another") {
  thread_pool pool(1);
  std::atomic<bool> release{false};
  std::atomic<int> begun{0};
  int accepted = 0;
  status last;
  while (accepted < 2000 && (last = pool.post([&](std::stop_token) {
                              ++begun;
                              release.wait(false);
                            })).ok()) {
    ++accepted;
  }
  CHECK(last.code() == errc::would_block);
  CHECK(accepted == thread_pool_options().task_threads);
  while (begun != accepted) std::this_thread::yield();
  release = true;
  release.notify_all();
  pool.wait_tasks();
}

TEST_CASE("r13: pieces of a range that ends where index_t does are inside of it") {
  constexpr index_t n = (std::numeric_limits<index_t>::max)(), grain = index_t{1} << 62;
  for (const int threads : {1, 2, 3}) {
    thread_pool pool(threads);
    std::atomic<int> calls{0}, wrong{0};
    try {
      pool.parallel_for(n, grain, [&](index_t begin, index_t end, int) {
        if (!((begin == 0 && end == grain) || (begin == grain && end == n))) ++wrong;
        if (++calls > 8) throw 1;
      });
    } catch (int) {
    }
    CHECK(calls == 2);
    CHECK(wrong == 0);
  }
}

TEST_CASE("r12: a span that begins before its recorder has a time that is a number in the JSON") {
  trace_recorder trace;
  trace.add({"early", 0, 0, 1}, -1500, -250);
  CHECK(trace.json().find("\"ts\":-1.500,\"dur\":1.250,") != std::string::npos);
}

#if !DEEPREC_TEST_TSAN  // which makes no thread after a fork beside threads
TEST_CASE("b07: a child destroys a pool that it inherits, and what it calls there is refused") {
  for (const int threads : {1, 2, 3}) {
    for (const bool busy : {false, true}) {
      // In a process of its own: fork() while no thread of the runner works.
      CHECK(in_child(
                [&] {
                  auto pool = std::make_unique<thread_pool>(
                      thread_pool_options{.threads = threads, .oversubscribe = true});
                  pool->parallel_for(9, 1, [](index_t, index_t, int) {});
                  task_handle handle, ended;
                  if (!pool->post([] { return status(errc::io_error, "disk"); }, {}, ended).ok()) return 1;
                  while (!ended.done()) std::this_thread::yield();
                  std::atomic<bool> release{false};
                  const auto waits = [&](const std::stop_token&) { release.wait(false); };
                  if (busy && !pool->post(waits, {}, handle).ok()) return 2;
                  const int child = in_child(
                      [&] {
                        if (pool->post([] {}).code() != errc::unsupported) return 3;
                        if (!handle.done()) return 4;
                        if (handle.join().code() != (busy ? errc::unsupported : errc::ok)) return 5;
                        if (ended.join().code() != errc::io_error) return 6;
                        index_t covered = 0;
                        const auto body = [&](index_t b, index_t e, int) { covered += e - b; };
                        pool->parallel_for(5, 5, body);  // on the caller's thread
                        if (covered != 5) return 7;
                        try {
                          pool->parallel_for(9, 1, body);
                          if (threads > 1) return 8;
                        } catch (const error& e) {
                          if (threads == 1 || e.code() != errc::unsupported) return 9;
                        }
                        try {
                          pool->wait_tasks();
                          return 10;
                        } catch (const error&) {
                        }
                        pool.reset();
                        thread_pool own(3);
                        std::atomic<int> pieces{0};
                        own.parallel_for(9, 1, [&](index_t, index_t, int) { ++pieces; });
                        task_handle mine;
                        if (!own.post([&] { ++pieces; }, {}, mine).ok() || !mine.join().ok()) return 11;
                        return pieces == 10 ? 0 : 12;
                      },
                      30);
                  release = true;
                  release.notify_all();
                  return child;
                },
                60) == 0);
    }
  }
}

#  if !DEEPREC_TEST_ASAN  // which reports the memory that the child leaves alone
TEST_CASE("b07: a child that calls exit() destroys a static pool that it inherits") {
  CHECK(in_child(
            [] {
              static thread_pool pool(3);
              pool.parallel_for(9, 1, [](index_t, index_t, int) {});
              return in_child([]() -> int { std::exit(7); }, 30) == 7 ? 0 : 1;
            },
            60) == 0);
}

#  endif

TEST_CASE("b07: a child destroys a micro_batch that it inherits, or runs it on a pool of its own") {
  for (const bool again : {false, true}) {
    CHECK(in_child(
              [&] {
                auto pool = std::make_unique<thread_pool>(1);
                std::atomic<int> calls{0};
                auto step = std::make_unique<micro_batch<>>(4);
                for (int r = 0; r < 3; ++r) {
                  step->stage("s" + std::to_string(r), r, [&](const micro_chunk&) { ++calls; });
                }
                if (!step->run(*pool, 16).ok() || calls != 12) return 1;
                return in_child(
                    [&] {
                      if (step->run(*pool, 16).code() != errc::unsupported) return 2;
                      pool.reset();
                      thread_pool own(1);
                      if (again && (!step->run(own, 16).ok() || calls != 24)) return 3;
                      step.reset();
                      return 0;
                    },
                    30);
              },
              60) == 0);
  }
}
#endif
