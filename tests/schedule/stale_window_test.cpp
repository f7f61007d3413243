#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/schedule/stale_loop.hpp>
#include <deeprec/schedule/stale_window.hpp>

#include "schedule/baton.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using deeprec_test::baton;
using deeprec_test::baton_executor;
using deeprec_test::baton_gate;
using deeprec_test::baton_wait;

namespace {

template <class Order = staleness::exact_t>
using scheduled_window = stale_window<Order, baton_wait>;

std::size_t at(index_t i) { return static_cast<std::size_t>(i); }

// What a run of `steps` steps has seen: for each lookup and shard the number of updates applied, and which.
struct record {
  std::vector<std::vector<index_t>> versions;               // of the reading
  std::vector<std::vector<std::vector<index_t>>> contents;  // of the rows: the updates that wrote them
  status outcome;
};

// A store of `shards` shards whose rows are the list of updates that they have seen. fetch goes through the
// shards in an order of its own for each step, with gates around each access.
template <class Order>
record recorded_run(index_t window, index_t requests, index_t shards, index_t steps, baton& schedule) {
  scheduled_window<Order> versions(window, shards, Order{});
  stale_loop loop(versions, requests);
  std::vector<std::vector<index_t>> store(at(shards));
  record made;
  made.versions.assign(at(steps), std::vector<index_t>(at(shards), -1));
  made.contents.assign(at(steps), std::vector<std::vector<index_t>>(at(shards)));
  {
    baton_executor threads(schedule);
    schedule.begin();
    made.outcome = loop.run(
        threads,
        [&](stale_step step) {
          baton_gate();
          return step.number < steps;
        },
        [&](stale_step step) -> status {
          for (index_t k = 0; k < shards; ++k) {
            const index_t shard = (k + step.number) % shards;
            baton_gate();  // on its way
            const auto reading = versions.read(step.number, shard);
            if (!reading) return reading.outcome();
            made.versions[at(step.number)][at(shard)] = reading.version();
            baton_gate();  // at the store
            made.contents[at(step.number)][at(shard)] = store[at(shard)];
          }
          baton_gate();  // on its way back
          return {};
        },
        [&](stale_step) { baton_gate(); },
        [&](stale_step step) -> status {
          for (index_t shard = shards - 1; shard >= 0; --shard) {
            baton_gate();
            const auto writing = versions.apply(step.number, shard);
            if (!writing) return writing.outcome();
            store[at(shard)].push_back(step.number);
            baton_gate();
          }
          return {};
        });
    schedule.leave();
  }
  return made;
}

// Lookup t has seen the updates 0 ... t - W, in order, and no others.
bool follows_the_definition(const record& run, index_t window) {
  if (!run.outcome.ok()) return false;
  for (index_t t = 0; t < static_cast<index_t>(run.versions.size()); ++t) {
    const index_t updates = std::max<index_t>(0, t - window + 1);
    for (std::size_t s = 0; s < run.versions[at(t)].size(); ++s) {
      if (run.versions[at(t)][s] != updates) return false;
      const std::vector<index_t>& seen = run.contents[at(t)][s];
      if (static_cast<index_t>(seen.size()) != updates) return false;
      for (index_t u = 0; u < updates; ++u) {
        if (seen[at(u)] != u) return false;
      }
    }
  }
  return true;
}

TEST_CASE("stale_window: a lookup waits for its version, an update for the lookups that must not see it") {
  stale_window window(2, 1);
  const auto now = [] { return within(std::chrono::nanoseconds(0)); };
  CHECK(window.window() == 2);
  CHECK(window.shards() == 1);
  {
    const auto first = window.read(0);
    const auto second = window.read(1, 0, now());
    REQUIRE(first);
    REQUIRE(second);
    CHECK(second.version() == 0);
    CHECK(window.apply(0, 0, now()).outcome().code() == errc::timed_out);  // it would write what is read
    CHECK(window.read(2, 0, now()).outcome().code() == errc::timed_out);   // it would miss update 0
  }
  CHECK(window.has_read(0));
  CHECK(window.has_read(1));
  {
    const auto writing = window.apply(0, 0, now());
    REQUIRE(writing);
    CHECK(window.read(2, 0, now()).outcome().code() == errc::timed_out);
  }
  CHECK(window.was_applied() == 1);
  CHECK(window.apply(1, 0, now()).outcome().code() == errc::timed_out);  // lookup 2 must not see it
  {
    auto reading = window.read(2, 0, now());
    REQUIRE(reading);
    CHECK(reading.version() == 1);
    reading.end();
    CHECK(window.apply(1, 0, now()));
  }
  CHECK(window.apply(2, 0, now()).outcome().code() == errc::timed_out);
  window.end_at(3);  // there is no lookup 3
  CHECK(window.apply(2, 0, now()));
}

TEST_CASE("stale_window: what does not exist, and what comes twice, is an error") {
  stale_window window(1, 2);
  CHECK(window.read(0, 2).outcome().code() == errc::invalid_value);
  CHECK(window.read(-1, 0).outcome().code() == errc::invalid_value);
  CHECK(window.apply(0, -1).outcome().code() == errc::invalid_value);
  CHECK(window.read(0, 0));
  CHECK(window.apply(0, 0));
  CHECK(window.read(0, 0).outcome().code() == errc::invalid_value);
  CHECK(window.apply(0, 0).outcome().code() == errc::invalid_value);
  CHECK_FALSE(window.has_read(0));  // not shard 1
  std::stop_source stop;
  stop.request_stop();
  CHECK(window.read(1, 1, {.stop = stop.get_token()}).outcome().code() == errc::stopped);
  window.cancel();
  CHECK(window.read(1, 0).outcome().code() == errc::cancelled);
  CHECK(window.apply(0, 1).outcome().code() == errc::cancelled);
  CHECK(std::string(window.apply(0, 1).outcome().message()).find("stale_window::apply") != std::string::npos);
  window.restart();
  CHECK(window.read(0, 0).version() == 0);
}

TEST_CASE("stale_window: shards have versions of their own") {
  stale_window window(1, 2);
  CHECK(window.read(0, 0));
  CHECK(window.apply(0, 0));
  CHECK(window.read(1, 0).version() == 1);
  CHECK(window.apply(0, 1, within(std::chrono::nanoseconds(0))).outcome().code() == errc::timed_out);
  CHECK(window.read(0, 1).version() == 0);
}

TEST_CASE("stale_window: an exception that passes an access cancels the window") {
  stale_window window(1, 1);
  CHECK(window.read(0));
  try {
    const auto writing = window.apply(0);
    throw std::runtime_error("in the middle of a row");
  } catch (const std::runtime_error&) {
  }
  CHECK(window.was_cancelled());
  CHECK(window.read(1).outcome().code() == errc::cancelled);
  CHECK(window.was_applied() == 0);
}

TEST_CASE("stale_window: hogwild waits for no version, and its accesses exclude each other") {
  stale_window window(2, 1, staleness::hogwild);
  const auto now = [] { return within(std::chrono::nanoseconds(0)); };
  {
    const auto one = window.read(7, 0, now());
    const auto other = window.read(3, 0, now());
    CHECK(one);
    CHECK(other);
    CHECK_FALSE(window.apply(0, 0, now()));
  }
  {
    const auto writing = window.apply(5, 0, now());
    REQUIRE(writing);
    CHECK_FALSE(window.read(8, 0, now()));
    CHECK_FALSE(window.apply(6, 0, now()));
  }
  CHECK(window.read(8, 0, now()).version() == 1);
}

TEST_CASE("hazard H4: staleness equals the definition, whichever thread is starved") {
  int runs = 0;
  for (index_t window = 1; window <= 4; ++window) {
    for (index_t requests = window; requests <= window + 2; requests += 2) {
      for (const index_t shards : {1, 2}) {
        for (const index_t steps : {0, 1, 2, 7}) {
          const int threads = static_cast<int>(requests) + 2;
          for (int starved = -1; starved < threads; ++starved) {
            for (int too = starved; too < threads; too += 2) {
              baton schedule(starved, 0, too);
              const record run = recorded_run<staleness::exact_t>(window, requests, shards, steps, schedule);
              INFO("W ", window, ", requests ", requests, ", starved ", starved, " and ", too);
              CHECK(run.outcome.ok());
              CHECK(follows_the_definition(run, window));
              ++runs;
            }
          }
        }
      }
    }
  }
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const auto window = static_cast<index_t>(seed % 5 + 1);
    baton schedule(-1, deeprec_test::seed() + seed);
    CHECK(
        follows_the_definition(recorded_run<staleness::exact_t>(window, window + 1, 2, 9, schedule), window));
    ++runs;
  }
  CHECK(runs > 500);
}

TEST_CASE("hazard H4: an unbounded window is caught in the same harness") {
  int caught = 0;
  index_t oldest = 0;
  for (int starved = -1; starved < 6; ++starved) {
    baton schedule(starved);
    const record run = recorded_run<staleness::hogwild_t>(2, 4, 1, 12, schedule);
    CHECK(run.outcome.ok());
    caught += follows_the_definition(run, 2) ? 0 : 1;
    for (index_t t = 0; t < 12; ++t) {
      oldest = std::max(oldest, t - static_cast<index_t>(run.contents[at(t)][0].size()));
    }
  }
  CHECK(caught > 0);
  CHECK(oldest > 1);  // more missed updates than W - 1
}

// --- the loop ----------------------------------------------------------------------------------------

TEST_CASE("stale_loop: gradient descent on a convex function converges for each W") {
  // f(x) = sum of a[i] (x[i] - c[i])^2 / 2, a in [0.5, 1]: stable for a rate below 1 / (2 W)
  for (const index_t w : {1, 2, 4, 8}) {
    constexpr int n = 5;
    std::array<double, n> x{}, a{}, c{};
    for (int i = 0; i < n; ++i) {
      a[static_cast<std::size_t>(i)] = 0.5 + 0.1 * i;
      c[static_cast<std::size_t>(i)] = i - 2.5;
    }
    stale_window window(w);
    stale_loop loop(window);
    std::vector<std::array<double, n>> slots(at(loop.slots()));
    thread_pool pool(1);
    loop.run(
            pool, [](stale_step step) { return step.number < 400; },
            [&](stale_step step) -> status {
              const auto reading = window.read(step.number);
              slots[at(step.slot)] = x;
              return reading.outcome();
            },
            [&](stale_step step) {
              for (std::size_t i = 0; i < n; ++i) {
                double& v = slots[at(step.slot)][i];
                v = a[i] * (v - c[i]);
              }
            },
            [&](stale_step step) -> status {
              const auto writing = window.apply(step.number);
              for (std::size_t i = 0; i < n; ++i) {
                x[i] -= 0.4 / static_cast<double>(2 * w) * slots[at(step.slot)][i];
              }
              return writing.outcome();
            })
        .or_throw();
    for (std::size_t i = 0; i < n; ++i) CHECK(std::abs(x[i] - c[i]) < 0.05);
  }
}

// [stale_loop]
TEST_CASE("stale_loop: rows of a remote store, four requests on their way") {
  stale_window window(4);
  stale_loop loop(window);
  std::vector<double> rows_of_slot(at(loop.slots())), gradient(at(loop.slots()));
  double row = 1;  // at the store
  thread_pool pool(2);
  const status done = loop.run(
      pool, [](stale_step step) { return step.number < 100; },
      [&](stale_step step) -> status {
        // the request travels to the store
        const auto reading = window.read(step.number);
        if (!reading) return reading.outcome();
        rows_of_slot[at(step.slot)] = row;
        return {};  // and the rows travel back
      },
      [&](stale_step step) { gradient[at(step.slot)] = rows_of_slot[at(step.slot)]; },
      [&](stale_step step) -> status {
        const auto writing = window.apply(step.number);
        if (!writing) return writing.outcome();
        row -= 0.1 * gradient[at(step.slot)];
        return {};
      });
  CHECK(done.ok());
  CHECK(loop.report().steps == 100);
  CHECK(std::abs(row) < 0.01);
}
// [stale_loop]

// --- failures ------------------------------------------------------------------------------------------

// Items that a step holds from next to apply.
struct live_item {
  static inline std::atomic<int> alive{0};
  live_item() { ++alive; }
  live_item(const live_item&) = delete;
  live_item& operator=(const live_item&) = delete;
  ~live_item() { --alive; }
};

enum class failing { status, exception, stop, bare_cancel };

// A run that fails in a part of a step; the status, or the text of the exception.
struct failed_run {
  std::string what;
  stale_report report;
};
failed_run run_that_fails(const std::string& part, index_t step_of_failure, failing how, index_t w,
                          index_t steps, baton* schedule) {
  scheduled_window<> window(w);
  stale_loop loop(window);
  std::vector<std::unique_ptr<live_item>> slots(at(loop.slots()));
  std::stop_source stop;
  const auto reached = [&](const char* here, stale_step step) -> status {
    baton_gate();
    if (part != here || step.number != step_of_failure) return {};
    switch (how) {
      case failing::status:
        return {errc::io_error, "the store is gone"};
      case failing::exception:
        throw std::runtime_error("thrown by " + part);
      case failing::stop:
        stop.request_stop();
        return {};
      case failing::bare_cancel:
        window.cancel();
        return {};
    }
    return {};
  };
  failed_run made;
  const auto body = [&](auto& threads) {
    try {
      const status s = loop.run(
          threads,
          [&](stale_step step) -> result<bool> {
            if (const status bad = reached("next", step); !bad) return bad;
            if (step.number == steps) return false;
            slots[at(step.slot)] = std::make_unique<live_item>();
            return true;
          },
          [&](stale_step step) -> status {
            if (const status bad = reached("fetch", step); !bad) return bad;
            const auto reading = window.read(step.number);
            if (!reading) return reading.outcome();
            return reached("reading", step);
          },
          [&](stale_step step) { return reached("compute", step); },
          [&](stale_step step) -> status {
            if (const status bad = reached("apply", step); !bad) return bad;
            const auto writing = window.apply(step.number);
            if (!writing) return writing.outcome();
            slots[at(step.slot)].reset();
            return reached("writing", step);
          },
          stop.get_token());
      made.what = s.ok() ? "" : s.message();
    } catch (const std::runtime_error& e) {
      made.what = e.what();
    }
  };
  if (schedule != nullptr) {
    baton_executor threads(*schedule);
    schedule->begin();
    body(threads);
    schedule->leave();
  } else {
    thread_pool threads(1);
    body(threads);
  }
  made.report = loop.report();
  return made;
}

TEST_CASE("stale_loop: a failure in any part of any step ends the run, is named, and leaves nothing behind") {
  constexpr index_t steps = 4;
  for (const char* const part : {"next", "fetch", "reading", "compute", "apply", "writing"}) {
    const std::string named = std::string(part) == "reading"   ? "fetch"
                              : std::string(part) == "writing" ? "apply"
                                                               : part;
    for (const failing how : {failing::status, failing::exception}) {
      for (index_t step = 0; step < steps; ++step) {
        for (const index_t w : {1, 2, 3}) {
          for (int starved = -2; starved <= static_cast<int>(w) + 1; ++starved) {
            baton schedule(starved);
            const failed_run run =
                run_that_fails(part, step, how, w, steps, starved == -2 ? nullptr : &schedule);
            INFO(part, " of step ", step, ", W ", w, ", starved ", starved, ": ", run.what);
            REQUIRE(run.report.part != nullptr);
            CHECK(std::string(run.report.part) == named);
            CHECK(run.report.step == step);
            CHECK(run.report.steps <= step);
            if (how == failing::exception) {
              CHECK(run.what == std::string("thrown by ") + part);
            } else {
              CHECK(run.what.find("the store is gone") != std::string::npos);
              CHECK(run.report.outcome.code() == errc::io_error);
            }
            CHECK(live_item::alive.load() == 0);
          }
        }
      }
    }
  }
}

TEST_CASE("stale_loop: a stop request in any part of any step ends the run, and leaves nothing behind") {
  constexpr index_t steps = 4;
  for (const char* const part : {"next", "fetch", "reading", "compute", "apply", "writing"}) {
    for (const failing how : {failing::stop, failing::bare_cancel}) {
      for (index_t step = 0; step < steps; ++step) {
        for (const index_t w : {1, 3}) {
          for (int starved = -2; starved <= static_cast<int>(w) + 1; ++starved) {
            baton schedule(starved);
            const failed_run run =
                run_that_fails(part, step, how, w, steps, starved == -2 ? nullptr : &schedule);
            INFO(part, " of step ", step, ", W ", w, ", starved ", starved, ": ", run.what);
            const errc code = run.report.outcome.code();
            const bool at_the_end = run.report.steps == steps;  // everything had been done
            CHECK((at_the_end || code == (how == failing::stop ? errc::stopped : errc::cancelled)));
            CHECK(live_item::alive.load() == 0);
          }
        }
      }
    }
  }
}

TEST_CASE("stale_loop: contracts that a part breaks are errors, and no run hangs") {
  thread_pool pool(1);
  stale_window window(2, 2);
  stale_loop loop(window);
  const auto three = [](stale_step step) { return step.number < 3; };
  const auto nothing = [](stale_step) {};
  const auto read_all = [&](stale_step step) -> status {
    for (index_t s = 0; s < 2; ++s) {
      if (const auto reading = window.read(step.number, s); !reading) return reading.outcome();
    }
    return {};
  };
  const auto apply_all = [&](stale_step step) -> status {
    for (index_t s = 0; s < 2; ++s) {
      if (const auto writing = window.apply(step.number, s); !writing) return writing.outcome();
    }
    return {};
  };
  CHECK(loop.run(pool, three, read_all, nothing, apply_all).ok());
  CHECK(loop.report().steps == 3);
  CHECK(loop.run(pool, three, nothing, nothing, apply_all).code() == errc::invalid_value);
  CHECK(std::string(loop.report().part) == "fetch");
  CHECK(loop.run(pool, three, read_all, nothing, nothing).code() == errc::invalid_value);
  CHECK(std::string(loop.report().part) == "apply");
  // One shard read, or updated, twice stands for none left out.
  for (const index_t again : {0, 1}) {
    for (const bool tells : {true, false}) {
      const auto read_twice = [&](stale_step step) -> status {
        for (int k = 0; k < 2; ++k) {
          const auto reading = window.read(step.number, again);
          if (!reading && tells) return reading.outcome();
        }
        return {};
      };
      CHECK(loop.run(pool, three, read_twice, nothing, apply_all).code() == errc::invalid_value);
      CHECK(std::string(loop.report().part) == "fetch");
      const auto apply_twice = [&](stale_step step) -> status {
        for (int k = 0; k < 2; ++k) {
          const auto writing = window.apply(step.number, again);
          if (!writing && tells) return writing.outcome();
        }
        return {};
      };
      CHECK(loop.run(pool, three, read_all, nothing, apply_twice).code() == errc::invalid_value);
      CHECK(std::string(loop.report().part) == "apply");
    }
  }
  const inline_executor here;
  CHECK(loop.run(here, three, read_all, nothing, apply_all).code() == errc::unsupported);
  CHECK(std::string(loop.report().part) == "post");
  thread_pool narrow(thread_pool_options{.threads = 1, .task_threads = 2});
  CHECK(loop.run(narrow, three, read_all, nothing, apply_all).code() == errc::would_block);
  stale_loop too_few(window, 1);
  CHECK(too_few.run(pool, three, read_all, nothing, apply_all).code() == errc::invalid_value);
  CHECK(loop.run(pool, three, read_all, nothing, apply_all).ok());  // after all that
  CHECK(loop.run(pool, [](stale_step) { return false; }, read_all, nothing, apply_all).ok());
  CHECK(loop.report().steps == 0);
}

TEST_CASE("stale_loop: W requests are on their way at once while one step computes") {
  constexpr index_t w = 3;
  stale_window window(w);
  stale_loop loop(window);
  std::atomic<int> on_their_way{0};
  thread_pool pool(1);
  // Step 0 computes only when W requests behind it have left: they wait at the store, or travel.
  const status done = loop.run(
      pool, [](stale_step step) { return step.number < 10; },
      [&](stale_step step) -> status {
        ++on_their_way;
        return window.read(step.number).outcome();
      },
      [&](stale_step step) {
        while (on_their_way.load() < std::min<index_t>(10, step.number + 1 + w)) std::this_thread::yield();
      },
      [&](stale_step step) -> status { return window.apply(step.number).outcome(); });
  CHECK(done.ok());
}

}  // namespace
