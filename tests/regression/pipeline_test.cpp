// Faults of pipeline/: posts that fail, lookups that read twice, depths.
#include <doctest/doctest.h>

#include <atomic>
#include <optional>
#include <stop_token>
#include <string>
#include <system_error>
#include <utility>

#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/pipeline/micro_batch.hpp>
#include <deeprec/pipeline/stale_loop.hpp>

#include "support/children.hpp"

namespace {

using namespace deeprec;
using deeprec_test::in_child;

// Its second post throws what a std::thread throws that the system refuses, once.
struct flaky_pool {
  thread_pool threads{2};
  int posts = 0;

  template <class Task>
  status post(Task&& task, std::stop_token stop = {}) {
    return threads.post(std::forward<Task>(task), std::move(stop));
  }
  template <class Task>
  status post(Task&& task, std::stop_token stop, task_handle& handle) {
    if (++posts == 2) throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
    return threads.post(std::forward<Task>(task), std::move(stop), handle);
  }
};

TEST_CASE("r03: an exception of post() leaves stale_loop::run when no task of it runs") {
  CHECK(in_child(
            [] {
              flaky_pool pool;
              stale_window window(2);
              stale_loop loop(window);
              int applied = 0;
              const auto run = [&] {
                return loop.run(
                    pool, [](stale_step s) { return s.number < 5; },
                    [&](stale_step s) { return window.read(s.number).outcome(); }, [](stale_step) {},
                    [&](stale_step s) {
                      const auto writing = window.apply(s.number);
                      ++applied;
                      return writing.outcome();
                    });
              };
              try {
                static_cast<void>(run());
                return 1;
              } catch (const std::system_error&) {
              }
              if (loop.report().part != std::string("post") || applied != 0) return 2;
              return run().ok() && applied == 5 ? 0 : 3;
            },
            30) == 0);
}

TEST_CASE("r02: after an exception of post() micro_batch runs again, and ends") {
  for (const bool again : {false, true}) {
    CHECK(in_child(
              [&] {
                flaky_pool pool;
                std::atomic<int> calls{0};
                micro_batch step(4);
                for (int r = 0; r < 3; ++r) {
                  step.stage("s" + std::to_string(r), r, [&](const micro_chunk&) { ++calls; });
                }
                try {
                  static_cast<void>(step.run(pool, 16));
                  return 1;
                } catch (const std::system_error&) {
                }
                if (!again) return 0;
                return step.run(pool, 16).ok() && calls == 12 ? 0 : 2;
              },
              30) == 0);
  }
}

TEST_CASE("r14: micro_batch runs on a pool that was made when the one before had been destroyed") {
  CHECK(in_child(
            [] {
              std::atomic<int> calls{0};
              micro_batch step(2);
              for (int r = 0; r < 2; ++r) {
                step.stage("s" + std::to_string(r), r, [&](const micro_chunk&) { ++calls; });
              }
              for (int epoch = 0; epoch < 3; ++epoch) {
                thread_pool pool(2);
                if (!step.run(pool, 8).ok()) return 1;
              }
              return calls == 12 ? 0 : 2;
            },
            30) == 0);
}

}  // namespace
