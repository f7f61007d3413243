// Executors and what else lies below the verbs: faults that were found once, by the names of
// their programs.

#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/lookup_features.hpp>
#include <deeprec/embedding/groups/update_features.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/sgd.hpp>

#include "support/children.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <span>
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
