// Every order in which a few threads can share a call of a thread_pool, under weak memory; and each access
// that is stronger than relaxed, weakened alone, is caught.
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/exec/detail/bulk_board.hpp>

#include "queue/model/explorer.hpp"

namespace {

using namespace deeprec_test::model;
using deeprec::index_t;
using deeprec::detail::access;

struct nowhere {
  static int processor() { return -1; }
  static void leave(int) {}
};
// Looks once: what it would see later is another order.
struct one_look : nowhere {
  template <class Atomics, class Ready, class Over>
  static bool until(const Ready& ready, const Over&) {
    return ready();
  }
};
// Does not look before it sleeps.
struct no_look : nowhere {
  template <class Atomics, class Ready, class Over>
  static bool until(const Ready&, const Over&) {
    return false;
  }
};

// One call: pieces read what the caller wrote, and write what it reads.
struct shared_call {
  explicit shared_call(index_t pieces) : made(7), cells(static_cast<std::size_t>(pieces)) {}
  void piece(index_t begin) {
    if (made.value() != 7) explorer::current().fail("a piece does not see its call");
    watched& cell = cells[static_cast<std::size_t>(begin)];
    if (cell.value() != -1) explorer::current().fail("a piece runs twice");
    cell = watched(static_cast<int>(begin));
  }
  void look() {
    for (std::size_t i = 0; i < cells.size(); ++i) {
      if (cells[i].value() != static_cast<int>(i)) explorer::current().fail("a piece has not run");
    }
  }
  watched made;
  std::vector<watched> cells;
};

enum class worker_does { all, one_help, help_when_woken };
struct shape {
  const char* name;
  int callers, calls, workers;
  index_t pieces;
  worker_does what;
  bool meet = false;  // the two pieces of a call wait for each other: they need two threads
  int stale = 1;
};

template <class Polling>
struct board_scenario : explorer::scenario {
  explicit board_scenario(const shape& s) : of(s), board(s.workers, s.workers, std::chrono::nanoseconds(1)) {}
  int threads() const override { return of.callers + of.workers; }
  void run(int thread) override {
    if (thread >= of.callers) {
      const int worker = thread - of.callers + 1;
      switch (of.what) {
        case worker_does::all:
          return board.work(worker);
        case worker_does::one_help:
          board.help(worker);
          return;
        case worker_does::help_when_woken:
          while (!board.help(worker)) board.wait_for_work({}, {});
          return;
      }
    }
    for (int c = 0; c < of.calls; ++c) {
      shared_call call(of.pieces);
      body mine{this, &call};
      board.run(
          [](const void* to, index_t begin, index_t, int) {
            auto* const b = static_cast<body*>(const_cast<void*>(to));
            b->call->piece(begin);
            if (b->here->of.meet) b->here->meet();
          },
          &mine, of.pieces, 1, 0);
      call.look();
    }
    // The last caller ends the workers.
    if (of.what != worker_does::all) return;
    if (ended.fetch_add(1, {access::statistic, std::memory_order_acq_rel}) + 1 == of.callers) board.stop();
  }
  void meet() {
    constexpr model_order order{access::statistic, std::memory_order_acq_rel};
    if (arrived.fetch_add(1, order) % 2 == 1) {
      model_atomics::wake(arrived, -1);
      return;
    }
    // As the first of two: until the count is even again.
    while (true) {
      const std::uint64_t now = arrived.load({access::statistic, std::memory_order_acquire});
      if (now % 2 == 0) return;
      model_atomics::park(arrived, static_cast<std::uint32_t>(now), model_atomics::time_point::max());
    }
  }
  struct body {
    board_scenario* here;
    shared_call* call;
  };
  const shape of;
  deeprec::detail::bulk_board<model_atomics, Polling, 2> board;
  model_atomic<std::uint64_t> arrived{0};
  model_atomic<int> ended{0};
};

using enum worker_does;
const std::vector<shape> shapes = {
    {"a call of two pieces | help", 1, 1, 1, 2, one_help},
    {"two calls | help", 1, 2, 1, 2, one_help},
    {"a call | a call | help", 2, 1, 1, 2, one_help},
    {"a call of three pieces | help | help", 1, 1, 2, 3, one_help, false, 0},
    {"two pieces that meet | help when woken", 1, 1, 1, 2, help_when_woken, true},
    {"a call of two pieces | a worker", 1, 1, 1, 2, all},
    {"two calls whose pieces meet | a worker", 1, 2, 1, 2, all, true, 0},
};

template <class Polling>
outcome explore_shape(const shape& s, const mutant& broken, const limits& bounds) {
  explorer x;
  return x.explore([&] { return std::make_unique<board_scenario<Polling>>(s); }, broken, bounds);
}
outcome explore_both(const shape& s, const mutant& broken, std::uint64_t most, bool membarrier = false) {
  const limits bounds{.executions = most, .stale_reads = s.stale, .membarrier = membarrier};
  outcome looks = explore_shape<one_look>(s, broken, bounds);
  if (looks.failed) return looks;
  const outcome sleeps = explore_shape<no_look>(s, broken, bounds);
  looks.executions += sleeps.executions;
  looks.complete = looks.complete && sleeps.complete;
  looks.failed = sleeps.failed;
  looks.what = sleeps.what;
  return looks;
}

TEST_CASE("bulk_board: every piece runs once, and the call ends after it, in every order of a few threads") {
  std::printf("  %-44s %13s\n", "bulk_board", "interleavings");
  for (const shape& s : shapes) {
    for (const bool membarrier : {false, true}) {
      const outcome found = explore_both(s, {}, 20'000, membarrier);
      std::printf("  %-44s %13llu%s\n", s.name, static_cast<unsigned long long>(found.executions),
                  found.complete ? "" : "  not all");
      std::fflush(stdout);
      CHECK_MESSAGE(!found.failed, s.name << ": " << found.what);
    }
  }
}

// A fork: helpers are called, by the owner and by one of them; what calls publish is read by whoever comes.
enum class forks { one_call, two_calls, in_turn, call_from_helper, reused };
struct fork_shape {
  const char* name;
  forks what;
  int workers;
  bool sleep;  // workers wait for work; else each looks a few times
};

template <class Polling>
struct fork_scenario : explorer::scenario {
  explicit fork_scenario(const fork_shape& s)
      : of(s), board(s.workers, s.workers, std::chrono::nanoseconds(1)) {}
  int threads() const override { return 1 + of.workers; }
  static constexpr model_order order{access::statistic, std::memory_order_acq_rel};

  void run(int thread) override {
    if (thread > 0) return help(thread);
    for (int round = 0; round < (of.what == forks::reused ? 2 : 1); ++round) {
      shared = watched(7 + round);
      expected = 7 + round;
      at = board.open_fork(
          [](const void* to, index_t, index_t, int worker) {
            static_cast<fork_scenario*>(const_cast<void*>(to))->helper(worker);
          },
          this);
      board.call_fork(at, of.what == forks::two_calls ? 2 : 1);
      if (of.what == forks::in_turn) return board.call_fork(at, 1);
      // Where workers sleep, every call has to be taken: else the owner sleeps for ever.
      const bool once = of.what == forks::one_call || of.what == forks::reused;
      if (of.sleep) wait_for(once ? round + 1 : 2);
      board.end_fork(at);
      for (const watched& cell : wrote) static_cast<void>(cell.value());  // no helper writes to it any more
      if (inside != 0) explorer::current().fail("a helper is inside after the end");
    }
    if (of.sleep) board.stop();
  }
  void help(int worker) {
    if (of.sleep) return board.work(worker);
    board.help(worker);
    if (of.what != forks::in_turn) board.help(worker);
  }
  void finish() override {  // what the worker has not taken can be found
    if (of.what != forks::in_turn) return;
    while (board.help(1)) {
    }
    if (helped.load({access::statistic, std::memory_order_acquire}) != 2)
      explorer::current().fail("a call is lost");
  }
  void helper(int worker) {
    if (shared.value() != expected) explorer::current().fail("a helper does not see its fork");
    inside = inside + 1;
    if (of.what == forks::call_from_helper && came.fetch_add(1, order) == 0) board.call_fork(at, 1);
    wrote[static_cast<std::size_t>(worker)] = watched(1);
    inside = inside - 1;
    helped.fetch_add(1, order);
    model_atomics::wake(helped, -1);
  }
  void wait_for(int calls) {
    while (true) {
      const std::uint64_t now = helped.load({access::statistic, std::memory_order_acquire});
      if (now >= static_cast<std::uint64_t>(calls)) return;
      model_atomics::park(helped, static_cast<std::uint32_t>(now), model_atomics::time_point::max());
    }
  }
  const fork_shape of;
  deeprec::detail::bulk_board<model_atomics, Polling, 2> board;
  watched shared;
  int expected = 0, at = -1, inside = 0;
  std::array<watched, 4> wrote;
  model_atomic<std::uint64_t> helped{0};
  model_atomic<int> came{0};
};
const std::vector<fork_shape> fork_shapes = {
    {"a fork, a call | help", forks::one_call, 1, false},
    {"a fork, two calls | help | help", forks::two_calls, 2, false},
    {"two forks of one place | help", forks::reused, 1, false},
    {"a fork, a call | a worker", forks::one_call, 1, true},
    {"a fork, a call, a call | help", forks::in_turn, 1, false},
    {"a fork, a helper that calls | a worker", forks::call_from_helper, 1, true},
    {"a fork, two calls | a worker | a worker", forks::two_calls, 2, true},
    {"two forks of one place | a worker", forks::reused, 1, true},
};
outcome explore_forks(const fork_shape& s, const mutant& broken, std::uint64_t most,
                      bool membarrier = false) {
  const limits bounds{.executions = most, .stale_reads = 1, .membarrier = membarrier};
  explorer looks, sleeps;
  outcome found = looks.explore([&] { return std::make_unique<fork_scenario<one_look>>(s); }, broken, bounds);
  if (found.failed) return found;
  const outcome more =
      sleeps.explore([&] { return std::make_unique<fork_scenario<no_look>>(s); }, broken, bounds);
  found.executions += more.executions;
  found.complete = found.complete && more.complete;
  found.failed = more.failed;
  found.what = more.what;
  return found;
}

TEST_CASE("bulk_board: every call of a fork that is waited for is taken, and none runs after its end") {
  std::printf("  %-44s %13s\n", "bulk_board, forks", "interleavings");
  for (const fork_shape& s : fork_shapes) {
    for (const bool membarrier : {false, true}) {
      const outcome found = explore_forks(s, {}, 20'000, membarrier);
      std::printf("  %-44s %13llu%s\n", s.name, static_cast<unsigned long long>(found.executions),
                  found.complete ? "" : "  not all");
      std::fflush(stdout);
      CHECK_MESSAGE(!found.failed, s.name << ": " << found.what);
    }
  }
}

TEST_CASE("bulk_board: each access stronger than relaxed is needed by some scenario") {
  struct weakened {
    access what;
    const char* name;
    mutant::kind_type how = mutant::relax;
  };
  const std::vector<weakened> stronger = {{access::bulk_open, "bulk_open"},
                                          {access::bulk_join, "bulk_join"},
                                          {access::bulk_leave, "bulk_leave"},
                                          {access::bulk_left, "bulk_left"},
                                          {access::bulk_left_asleep, "bulk_left_asleep"},
                                          {access::bulk_wake_fence, "bulk_wake_fence", mutant::omit}};
  const std::vector<weakened> of_forks = {{access::fork_call, "fork_call"},
                                          {access::fork_bit, "fork_bit"},
                                          {access::fork_clear, "fork_clear"},
                                          {access::fork_end, "a fork whose calls stay", mutant::omit}};
  std::string file;
  for (const weakened& w : stronger) {
    std::string by;
    for (const shape& s : shapes) {
      if (explore_both(s, {w.name, w.how, w.what}, 100'000).failed) {
        by = s.name;
        break;
      }
    }
    std::printf("  %-18s weakened, caught by: %s\n", w.name, by.empty() ? "NOTHING" : by.c_str());
    std::fflush(stdout);
    CHECK_MESSAGE(!by.empty(), std::string(w.name) << " may be weakened: no scenario sees it");
    const site_use& where = sites[static_cast<std::size_t>(w.what)];
    REQUIRE(where.file != nullptr);
    CHECK_MESSAGE(!where.elsewhere, std::string(w.name) << " is used in two places");
    file = where.file;
  }
  for (const auto& [what, name] : {std::pair{access::bulk_claim, "a piece that is not claimed"},
                                   std::pair{access::bulk_close, "a slot that stays open"}}) {
    std::string by;
    for (const shape& s : shapes) {
      if (explore_both(s, {name, mutant::omit, what}, 100'000).failed) {
        by = s.name;
        break;
      }
    }
    std::printf("  %-30s caught by: %s\n", name, by.empty() ? "NOTHING" : by.c_str());
    CHECK_MESSAGE(!by.empty(), std::string(name) << ": no scenario sees it");
  }
  for (const weakened& w : of_forks) {
    std::string by;
    for (const fork_shape& s : fork_shapes) {
      if (explore_forks(s, {w.name, w.how, w.what}, 100'000).failed) {
        by = s.name;
        break;
      }
    }
    std::printf("  %-30s caught by: %s\n", w.name, by.empty() ? "NOTHING" : by.c_str());
    std::fflush(stdout);
    CHECK_MESSAGE(!by.empty(), std::string(w.name) << ": no scenario sees it");
  }
  // No other in the source but the two of the slots' owners: what these order is plain memory of the board,
  // which the thread sanitizer watches when several threads call.
  std::ifstream in(file);
  REQUIRE_MESSAGE(in.good(), file);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  const std::regex order("memory_order_(acquire|release|acq_rel|seq_cst)");
  const auto found = std::distance(std::sregex_iterator(text.begin(), text.end(), order), {});
  CHECK(found == static_cast<std::ptrdiff_t>(stronger.size() - 1 + of_forks.size() - 1) + 2);
}

}  // namespace
