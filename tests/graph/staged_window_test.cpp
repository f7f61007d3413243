// Stale reads before a cut: lookup t sees the updates up to t - W and no others, for any timing, over runs
// that end early and go on, and where ops fail.
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/graph/step/staged_program.hpp>
#include <deeprec/graph/step/step_graph.hpp>
#include <deeprec/graph/step/step_program.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

using table = std::array<std::uint64_t, 3>;

constexpr std::uint64_t mixed(std::uint64_t x) {
  x ^= x >> 29;
  return x * 0x9e3779b97f4a7c15U + 1;
}
std::uint64_t looked_up(std::uint64_t item, const table& rows) {
  return rows[(mixed(item) >> 40) % rows.size()];
}
void updated(std::uint64_t item, std::uint64_t row, table& rows) {
  std::uint64_t& to = rows[(mixed(item) >> 40) % rows.size()];
  to = mixed(to ^ row ^ item);
}

/// What fails, by the number of the item: as a status or as an exception.
struct failures {
  std::vector<std::uint64_t> ahead{}, behind{}, in_done{};
  bool throws = false;
  static bool has(const std::vector<std::uint64_t>& of, std::uint64_t item) {
    return std::find(of.begin(), of.end(), item) != of.end();
  }
  [[nodiscard]] status at(const std::vector<std::uint64_t>& of, std::uint64_t item) const {
    if (!has(of, item)) return {};
    if (throws) throw std::runtime_error("as it was told to");
    return {errc::invalid_value, "as it was told to"};
  }
};

/// Two tables, which one op each reads stale and one each updates.
struct trained {
  table users{}, items{};
  std::uint64_t next = 0, end;
  failures fail;
  std::mt19937_64 random;
  bool dawdles;
  step_graph graph;
  value<std::uint64_t> item, of_users, of_items;

  trained(index_t window, std::uint64_t items_in_all, int cuts, failures wanted = {}, bool slow = false)
      : end(items_in_all), fail(std::move(wanted)), random(seed()), dawdles(slow) {
    step_graph& g = graph;
    const auto u = g.variable("users", users), i = g.variable("items", items);
    item = g.source<std::uint64_t>("read", [this](std::uint64_t& out) {
      out = next;
      return next < end && (++next, true);
    });
    if (cuts == 2) item = g.stage("io", item);
    const auto checked = g.add<std::uint64_t>(
        "check",
        [this](std::uint64_t in, std::uint64_t& out) {
          out = in;
          return fail.at(fail.ahead, in);
        },
        item);
    const auto look = [](std::uint64_t in, const table& rows, std::uint64_t& out) {
      out = looked_up(in, rows);
    };
    const auto user = g.add<std::uint64_t>("look up users", look, checked, g.stale_read(u, window));
    const auto other = g.add<std::uint64_t>("look up items", look, checked, g.stale_read(i, window));
    const auto [x, row, row2] = g.stage("rows", item, user, other);
    of_users = row;
    of_items = row2;
    const auto loss = g.add<std::uint64_t>(
        "loss",
        [this](std::uint64_t in, std::uint64_t a, std::uint64_t b, std::uint64_t& out) {
          out = mixed(a + 3 * b);
          if (dawdles && in % 7 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
          return fail.at(fail.behind, in);
        },
        x, row, row2);
    g.add("update users", updated, x, loss, g.accumulate(u)).role(op_role::apply).target();
    g.add("update items", updated, x, loss, g.write(i)).role(op_role::apply).target();
  }
};

/// What each step saw, and the tables at the end.
struct outcome {
  std::vector<std::array<std::uint64_t, 3>> seen;
  table users{}, items{};
  int failed = 0;
  bool operator==(const outcome&) const = default;
};

/// The definition: update u comes after lookup u + W - 1 and before lookup u + W.
outcome expected_of(index_t window, std::uint64_t items, const failures& fail = {}) {
  outcome all;
  std::vector<std::array<std::uint64_t, 2>> looked(items);
  std::uint64_t next_lookup = 0;
  for (std::uint64_t step = 0; step < items; ++step) {
    for (; next_lookup < items && next_lookup < step + static_cast<std::uint64_t>(window); ++next_lookup)
      looked[next_lookup] = {looked_up(next_lookup, all.users), looked_up(next_lookup, all.items)};
    if (failures::has(fail.ahead, step) || failures::has(fail.behind, step)) {
      ++all.failed;
      // The lookup that only the update of this step would have followed comes after the run has ended.
      continue;
    }
    const auto [a, b] = looked[step];
    const std::uint64_t loss = mixed(a + 3 * b);
    updated(step, loss, all.users);
    updated(step, loss, all.items);
    if (failures::has(fail.in_done, step)) {
      ++all.failed;
      continue;
    }
    all.seen.push_back({step, a, b});
  }
  return all;
}

/// Runs until all items are through. `stop_at`: a step whose done() requests a stop.
outcome outcome_of(trained& work, staged_options options, thread_pool& pool,
                   const std::vector<std::uint64_t>& stop_at = {}) {
  staged_program program = staged_program::compile(work.graph, std::move(options)).or_throw();
  outcome all;
  for (int runs = 0;; ++runs) {
    REQUIRE(runs < 1000);
    std::stop_source stop;
    bool is_over = false;
    const auto done = [&](step_state& state) -> status {
      const std::uint64_t item = state.get(work.item);
      if (const status s = work.fail.at(work.fail.in_done, item); !s) return s;
      all.seen.push_back({item, state.get(work.of_users), state.get(work.of_items)});
      if (failures::has(stop_at, item)) stop.request_stop();
      return {};
    };
    try {
      const result<void> ran = program.run(pool, done, stop.get_token());
      is_over = ran.ok();
      if (!ran && ran.code() != errc::stopped) {
        CHECK(ran.fault().message().find("as it was told to") != std::string::npos);
        ++all.failed;
      }
    } catch (const std::exception&) {
      ++all.failed;
    }
    if (is_over) break;
  }
  all.users = work.users;
  all.items = work.items;
  return all;
}

}  // namespace

TEST_CASE("staged_program: lookup t sees the updates up to t - W and no others") {
  thread_pool pool(2);
  std::mt19937_64 random(seed());
  for (const index_t window : {2, 3, 5, 8}) {
    const outcome expected = expected_of(window, 60);
    CHECK_FALSE(expected == expected_of(window + 1, 60));  // or nothing is shown
    CHECK_FALSE(expected == expected_of(window - 1, 60));
    for (int i = 0; i < 12; ++i) {
      const staged_options options{.capacity = 1 + random() % 10,
                                   .producers = 1 + static_cast<int>(random() % 3),
                                   .schedule = static_cast<op_schedule>(i % 4)};
      const int cuts = 1 + i % 2;
      CAPTURE(window);
      CAPTURE(cuts);
      CAPTURE(options.capacity);
      CAPTURE(options.producers);
      trained work(window, 60, cuts, {}, i % 3 == 0);
      CHECK(outcome_of(work, options, pool) == expected);
    }
  }
}

TEST_CASE("staged_program: with fewer steps than the window, and none, a run with a window ends") {
  thread_pool pool(2);
  for (const std::uint64_t items : {0, 1, 2, 3, 7, 8, 9}) {
    trained work(8, items, 1);
    CHECK(outcome_of(work, {}, pool) == expected_of(8, items));
  }
}

TEST_CASE("staged_program: runs with a window that are stopped and go on are one run") {
  thread_pool pool(2);
  std::mt19937_64 random(seed());
  for (int i = 0; i < 24; ++i) {
    const auto window = static_cast<index_t>(2 + random() % 5);
    std::vector<std::uint64_t> stops;
    for (std::uint64_t at = 0; at < 50; at += 1 + random() % 9) stops.push_back(at);
    const staged_options options{.capacity = 1 + random() % 6,
                                 .producers = 1 + static_cast<int>(random() % 3),
                                 .schedule = static_cast<op_schedule>(i % 4)};
    CAPTURE(window);
    CAPTURE(options.capacity);
    CAPTURE(options.producers);
    trained work(window, 50, 1 + i % 2, {}, i % 2 == 0);
    CHECK(outcome_of(work, options, pool, stops) == expected_of(window, 50));
  }
}

TEST_CASE("staged_program: a stop from outside ends a run with a window, wherever it waits") {
  thread_pool pool(2);
  for (int i = 0; i < 20; ++i) {
    trained work(2 + i % 4, 150, 1 + i % 2, {}, true);
    staged_program program = staged_program::compile(work.graph, {.producers = 1 + i % 3}).or_throw();
    outcome all;
    const auto done = [&](step_state& state) {
      all.seen.push_back({state.get(work.item), state.get(work.of_users), state.get(work.of_items)});
    };
    auto delay = std::chrono::microseconds(113 * i);
    for (bool is_over = false; !is_over; delay += std::chrono::microseconds(300)) {
      std::stop_source stop;
      std::jthread later([&] {
        std::this_thread::sleep_for(delay);
        stop.request_stop();
      });
      const result<void> ran = program.run(pool, done, stop.get_token());
      is_over = ran.ok();
      CHECK((ran.ok() || ran.code() == errc::stopped));
    }
    all.users = work.users;
    all.items = work.items;
    CHECK(all == expected_of(2 + i % 4, 150));
  }
}

TEST_CASE("staged_program: a step of a window that fails ends the run, and the next one goes on behind it") {
  thread_pool pool(2);
  std::mt19937_64 random(seed());
  int failed = 0;
  for (int i = 0; i < 60; ++i) {
    failures fail;
    fail.throws = i % 2 == 0;
    for (auto* const of : {&fail.ahead, &fail.behind, &fail.in_done}) {
      for (int n = 0; n < 2; ++n) {
        const std::uint64_t item = random() % 40;
        if (!failures::has(fail.ahead, item) && !failures::has(fail.behind, item) &&
            !failures::has(fail.in_done, item))
          of->push_back(item);
      }
    }
    const auto window = static_cast<index_t>(2 + random() % 4);
    const staged_options options{.capacity = 1 + random() % 6,
                                 .producers = 1 + static_cast<int>(random() % 3),
                                 .schedule = static_cast<op_schedule>(i % 4)};
    CAPTURE(window);
    CAPTURE(options.capacity);
    CAPTURE(options.producers);
    CAPTURE(fail.ahead);
    CAPTURE(fail.behind);
    CAPTURE(fail.in_done);
    trained work(window, 40, 1 + i % 2, fail, i % 3 == 0);
    const outcome expected = expected_of(window, 40, fail);
    const outcome found = outcome_of(work, options, pool);
    CHECK(found == expected);
    failed += found.failed;
  }
  CHECK(failed > 200);
}

TEST_CASE("staged_program: the source of a graph with a window may fail, and the next run calls it again") {
  thread_pool pool(2);
  table rows{};
  std::uint64_t calls = 0;
  step_graph g;
  const auto v = g.variable("rows", rows);
  const auto item = g.source<std::uint64_t>("read", [&](std::uint64_t& out) -> result<bool> {
    out = calls++;
    if (out % 5 == 3) return status(errc::io_error, "no line");
    return out < 40;
  });
  const auto row = g.add<std::uint64_t>(
      "look up", [](std::uint64_t in, const table& r, std::uint64_t& out) { out = looked_up(in, r); }, item,
      g.stale_read(v, 3));
  const auto [x, there] = g.stage("rows", item, row);
  g.add("update", updated, x, there, g.write(v)).role(op_role::apply).target();
  staged_program program = staged_program::compile(g).or_throw();
  index_t steps = 0;
  int failed = 0;
  while (true) {
    const result<void> ran = program.run(pool, [&](step_state&) { ++steps; });
    if (ran.ok()) break;
    CHECK(ran.code() == errc::io_error);
    ++failed;
    REQUIRE(failed < 100);
  }
  CHECK(failed == 8);
  CHECK(steps == 32);
}

TEST_CASE("staged_program: stale reads that no window can serve are refused by name") {
  using word = std::uint64_t;
  struct one {
    step_graph g;
    table rows{}, others{};
    variable<table> v, w;
    value<word> item;
    one() : v(g.variable("rows", rows)), w(g.variable("others", others)) {
      item = g.source<word>("read", [](word&) { return false; });
    }
    op_ref<word> look(const char* name, const variable_access<const table>& at) {
      return g.add<word>(name, [](word in, const table& r, word& out) { out = looked_up(in, r); }, item, at);
    }
    void update(const char* name, const value<word>& of, const variable_access<table>& at) {
      g.add(name, [](word in, table& r) { updated(in, in, r); }, of, at).role(op_role::apply).target();
    }
    void refused(errc code, const char* why) const {
      const auto program = staged_program::compile(g);
      REQUIRE_FALSE(program.ok());
      CHECK(program.code() == code);
      CAPTURE(program.fault().message());
      CHECK(program.fault().message().find(why) != std::string::npos);
    }
  };
  {
    one t;
    const auto of_v = t.look("a", t.g.stale_read(t.v, 2)), of_w = t.look("b", t.g.stale_read(t.w, 3));
    const auto [a, b] = t.g.stage("rows", of_v, of_w);
    t.update("c", a, t.g.write(t.v));
    t.update("d", b, t.g.write(t.w));
    t.refused(errc::invalid_value,
              "stale reads before a cut must have one window (op 4 'b': 3; op 3 'a': 2)");
  }
  {
    one t;
    const auto a = t.g.stage("first", t.look("a", t.g.stale_read(t.v, 2)));
    const auto b = t.g.stage("second", a, t.look("b", t.g.stale_read(t.v, 2)));
    t.update("c", std::get<0>(b), t.g.write(t.v));
    t.refused(errc::invalid_value, "stale reads must be before the same cut");
  }
  {
    one t;
    const auto a = t.g.add<word>(
        "also writes", [](word in, table& r, word& out) { updated(in, out = in, r); }, t.item,
        t.g.write(t.v));
    const auto rows = t.g.stage("rows", a, t.look("late", t.g.stale_read(t.v, 2)));
    t.g.add("end", [](word, word) {}, std::get<0>(rows), std::get<1>(rows)).target();
    t.refused(errc::invalid_value,
              "what is read stale before a cut must be changed behind all cuts (op 3 'also writes'");
  }
  {
    one t;
    const auto rows = t.g.stage("rows", t.item);
    t.item = rows;
    t.update("late", t.look("a", t.g.stale_read(t.v, 2)), t.g.write(t.v));
    t.refused(errc::unsupported, "a stale read must be before a cut, or have a window of 1 (op 4 'a'");
  }
  for (const index_t none : {0, -3}) {
    one t;
    t.update("b", t.g.stage("rows", t.look("a", t.g.stale_read(t.v, none))), t.g.write(t.v));
    t.refused(errc::invalid_value, "a stale read must have a window of at least 1");
  }
  {  // a window of 1 is a read
    one t;
    t.update("b", t.g.stage("rows", t.look("a", t.g.stale_read(t.v, 1))), t.g.write(t.v));
    t.refused(errc::invalid_value, "an op before a cut must not share a variable that changes");
  }
  {  // nothing changes it: any window
    one t;
    t.g.add("end", [](word) {}, t.g.stage("rows", t.look("a", t.g.stale_read(t.v, 9)))).target();
    CHECK(staged_program::compile(t.g).ok());
  }
}
