// Faults of pipeline/: posts that fail, lookups that read twice, depths.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <system_error>
#include <utility>

#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/pipeline/depth_controller.hpp>
#include <deeprec/schedule/micro_batch.hpp>
#include <deeprec/schedule/stale_loop.hpp>

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
    if (++posts == 2) {
      throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
    }
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

TEST_CASE("r04: a shard that is read twice stands for no other, and for no later lookup") {
  stale_window window(2);
  CHECK(window.read(0).ok());
  CHECK(window.read(0).outcome().code() == errc::invalid_value);
  {
    const auto reading = window.read(1);
    CHECK(reading.ok());
    const wait_limit over{std::chrono::steady_clock::time_point{}, {}};
    CHECK(window.apply(0, 0, over).outcome().code() == errc::timed_out);
    CHECK(window.read(1).outcome().code() == errc::invalid_value);  // while it reads
  }
  {
    const auto writing = window.apply(0);
    CHECK(writing.ok());
    CHECK(window.apply(0).outcome().code() == errc::invalid_value);  // while it writes
  }
  CHECK(window.read(2).version() == 1);
  CHECK(in_child(
            [] {
              thread_pool pool(2);
              stale_window shards(1, 2);
              stale_loop loop(shards);
              const status s = loop.run(
                  pool, [](stale_step t) { return t.number < 3; },
                  [&](stale_step t) {
                    static_cast<void>(shards.read(t.number, 0).ok());
                    static_cast<void>(shards.read(t.number, 0).ok());
                  },
                  [](stale_step) {},
                  [&](stale_step t) {
                    for (index_t k = 0; k < 2; ++k) {
                      if (const auto w = shards.apply(t.number, k); !w) return w.outcome();
                    }
                    return status();
                  });
              return s.code() == errc::invalid_value && loop.report().part == std::string("fetch") ? 0 : 1;
            },
            30) == 0);
}

TEST_CASE("r22: a depth does not fall between two bursts and rise after each") {
  depth_controller c("taker", {.least = 2, .most = 64});
  std::uint64_t item = 0;
  for (int period = 0; period < 1000; ++period) {
    for (int w = 0; w < 2; ++w) {
      c.decide({.items = 16, .consumer_waits = 3, .producer_waits = 3, .deepest = c.depth()}, item += 16);
    }
    for (int w = 0; w < 5; ++w) c.decide({.items = 16, .deepest = 1}, item += 16);
  }
  CHECK(c.changes() <= 10);
  CHECK(c.depth() == 64);
}

}  // namespace
