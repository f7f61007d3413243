// Which session a request gets, that it has it alone, and how it waits.
#include <deeprec/serving/session_group.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <set>
#include <stdexcept>
#include <stop_token>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/context.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/serving/versioned.hpp>

#include "support/sanitizers.hpp"

using namespace deeprec;

namespace {

/// Not movable, as one that has an executor or memory is not. Its numbers are plain memory.
struct counting_session {
  explicit counting_session(index_t i) : index(i) {}
  counting_session(const counting_session&) = delete;
  counting_session& operator=(const counting_session&) = delete;
  const index_t index;
  index_t requests = 0;
  bool is_used = false;
};
counting_session make_counting(index_t i) { return counting_session(i); }

using turns = session_group<counting_session>;
using by_threads = session_group<counting_session, session_choice::by_thread_t>;
static_assert(std::is_nothrow_move_constructible_v<turns::lease>);
static_assert(!std::is_copy_constructible_v<turns::lease>);

/// Serves a request.
template <class Lease>
index_t use(const Lease& session) {
  CHECK(!std::exchange(session->is_used, true));
  ++session->requests;
  const index_t index = session->index;
  session->is_used = false;
  return index;
}
template <class Group>
std::vector<index_t> requests_of(Group& group) {
  std::vector<index_t> counts;
  for (index_t k = 0; k < group.size(); ++k) counts.push_back(0);
  for (index_t k = 0; k < group.size(); ++k) {
    const auto session = group.acquire();
    counts[static_cast<std::size_t>(session.index())] = session->requests;
  }
  return counts;
}

}  // namespace

TEST_CASE("session_group: make is called once for each session, in their order") {
  std::vector<index_t> calls;
  const session_group group(5, [&](index_t i) {
    calls.push_back(i);
    return make_counting(i);
  });
  static_assert(std::is_same_v<decltype(group), const turns>);
  CHECK(group.size() == 5);
  CHECK(calls == std::vector<index_t>{0, 1, 2, 3, 4});
}

TEST_CASE("session_group: fewer than one session is refused") {
  CHECK_THROWS_WITH_AS(turns(0, make_counting), "session_group: sessions must be at least 1 (was 0)", error);
  CHECK_THROWS_AS(turns(-1, make_counting), error);
}

TEST_CASE("session_group: where make throws, the sessions before it end") {
  const auto alive = std::make_shared<int>();
  struct session {
    std::shared_ptr<int> one;
  };
  const auto make = [&](index_t i) {
    if (i == 2) throw std::runtime_error("no third one");
    return session{alive};
  };
  CHECK_THROWS_AS((session_group<session>(3, make)), std::runtime_error);
  CHECK(alive.use_count() == 1);
}

TEST_CASE("session_group: round_robin gives sessions in turn") {
  turns group(3, make_counting);
  for (index_t k = 0; k < 12; ++k) {
    const auto session = group.acquire();
    REQUIRE(session);
    CHECK(session.outcome().ok());
    CHECK(session.index() == k % 3);
    CHECK(session->index == k % 3);
    CHECK(use(session) == k % 3);
  }
}

TEST_CASE("session_group: round_robin is fair to one request, by many threads") {
  constexpr index_t each = DEEPREC_TEST_SANITIZED ? 500 : 5'001;
  for (const index_t sessions : {1, 2, 3, 7}) {
    CAPTURE(sessions);
    turns group(sessions, make_counting);
    std::vector<std::thread> threads;
    for (int t = 0; t < 5; ++t) {
      threads.emplace_back([&] {
        for (index_t k = 0; k < each; ++k) use(group.acquire());
      });
    }
    for (std::thread& t : threads) t.join();
    const std::vector<index_t> counts = requests_of(group);
    index_t all = 0;
    for (const index_t count : counts) all += count;
    CHECK(all == 5 * each);
    CHECK(*std::max_element(counts.begin(), counts.end()) - *std::min_element(counts.begin(), counts.end()) <=
          1);
  }
}

namespace {

/// Threads that all exist at once and ask one after the other, `times` times in turn: what ask(t) returned to
/// each.
template <class Ask>
std::vector<std::vector<index_t>> asked_in_turn(int threads, int times, Ask ask) {
  std::vector<std::vector<index_t>> seen(static_cast<std::size_t>(threads));
  std::atomic<int> turn{0};
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; ++t) {
    pool.emplace_back([&, t] {
      for (int k = 0; k < times; ++k) {
        while (turn.load() != k * threads + t) std::this_thread::yield();
        seen[static_cast<std::size_t>(t)].push_back(ask(t));
        ++turn;
      }
      while (turn.load() < threads * times) std::this_thread::yield();
    });
  }
  for (std::thread& t : pool) t.join();
  return seen;
}

}  // namespace

TEST_CASE(
    "session_group: by_thread is the same session for a thread, threads in the order in which they come") {
  for (const index_t sessions : {1, 2, 3, 8}) {
    session_group group(sessions, make_counting, session_choice::by_thread);
    static_assert(std::is_same_v<decltype(group), by_threads>);
    const auto seen = asked_in_turn(6, 5, [&](int) { return use(group.acquire()); });
    for (std::size_t t = 0; t < seen.size(); ++t) {
      CHECK(seen[t] == std::vector<index_t>(5, static_cast<index_t>(t) % sessions));
    }
  }
}

TEST_CASE("session_group: least_busy leaves sessions alone that requests have or wait for") {
  using least = session_group<decltype(make_counting(0)), session_choice::least_busy_t>;
  least group(3, make_counting);
  {
    const auto held = group.acquire();
    CHECK(held.index() == 0);
    for (int k = 0; k < 8; ++k) CHECK(group.acquire().index() != 0);
    auto other = group.acquire(), third = group.acquire();
    CHECK(std::set<index_t>{held.index(), other.index(), third.index()}.size() == 3);
    // All are busy: the request waits for one, and that counts while it does.
    const auto late = group.acquire(within(std::chrono::milliseconds(1)));
    CHECK_FALSE(late);
    CHECK(late.outcome().code() == errc::timed_out);
    const index_t free = other.index();
    other.give_back();
    for (int k = 0; k < 8; ++k) CHECK(group.acquire().index() == free);
    auto moved = std::move(third);
    moved.give_back();
    moved.give_back();
    CHECK(group.acquire().index() != held.index());
  }
  // Equal ones come in turn.
  std::set<index_t> seen;
  for (int k = 0; k < 3; ++k) seen.insert(group.acquire().index());
  CHECK(seen.size() == 3);
  // Nothing is left of requests of many threads.
  std::vector<std::thread> threads;
  std::atomic<int> requests{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int k = 0; k < 500; ++k) {
        use(group.acquire());
        ++requests;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(requests.load() == 2000);
  const auto first = group.acquire(), second = group.acquire(), last = group.acquire();
  CHECK(std::set<index_t>{first.index(), second.index(), last.index()}.size() == 3);
}

TEST_CASE("session_group: each group numbers the threads that come to it") {
  by_threads some(2, make_counting), all(4, make_counting);
  const auto seen = asked_in_turn(8, 4, [&](int t) {
    const index_t of_all = use(all.acquire());
    return t % 2 == 0 ? 10 * use(some.acquire()) + of_all : of_all;
  });
  for (index_t t = 0; t < 8; ++t) {
    const index_t expected = t % 4 + (t % 2 == 0 ? 10 * (t / 2 % 2) : 0);
    CHECK(seen[static_cast<std::size_t>(t)] == std::vector<index_t>(4, expected));
  }
}

TEST_CASE("session_group: a request waits until its session is given back") {
  turns group(2, make_counting);
  auto first = group.acquire();
  auto second = group.acquire();
  std::atomic<index_t> got{-1};
  std::thread waiting([&] { got = use(group.acquire()); });
  while (group.acquire_waits(0).waiting == 0) std::this_thread::yield();
  second.give_back();  // another session, which is not the one that it waits for
  CHECK(!second);
  CHECK(group.acquire_waits(0).waiting == 1);
  CHECK(got.load() == -1);
  first.give_back();
  waiting.join();
  CHECK(got.load() == 0);
}

TEST_CASE("session_group: a request that reaches its limit has no session, and says so") {
  turns group(1, make_counting);
  const auto held = group.acquire();
  const auto late = group.acquire(within(std::chrono::milliseconds(0)));
  CHECK(!late);
  CHECK(late.index() == 0);
  CHECK(late.outcome().code() == errc::timed_out);
  CHECK(late.outcome().message() == "timed out: session_group::acquire: the session is in use; item 0");
  std::stop_source stop;
  errc stopped = errc::ok;
  std::thread waiting([&] { stopped = group.acquire({.stop = stop.get_token()}).outcome().code(); });
  while (group.acquire_waits(0).waiting == 0) std::this_thread::yield();
  stop.request_stop();
  waiting.join();
  CHECK(stopped == errc::stopped);
  CHECK(held);
}

TEST_CASE("session_group: a lease that moves is one lease, and may end on another thread") {
  turns group(1, make_counting);
  auto first = group.acquire();
  turns::lease moved(std::move(first));
  CHECK(!first);
  REQUIRE(moved);
  CHECK(!group.acquire(within(std::chrono::milliseconds(0))));
  std::thread([mine = std::move(moved)] { use(mine); }).join();
  auto again = group.acquire(within(std::chrono::milliseconds(0)));
  REQUIRE(again);
  CHECK(again->requests == 1);
  turns::lease empty;
  CHECK(!empty);
  CHECK(empty.index() == -1);
  again = std::move(empty);
  CHECK(group.acquire(within(std::chrono::milliseconds(0))));
}

namespace {

/// What a request needs of its own: threads, memory for scratch, a place for rows.
struct lookup_session {
  explicit lookup_session(index_t i) : pool(static_cast<int>(i % 2 + 1)) {}
  thread_pool pool;
  std::pmr::unsynchronized_pool_resource memory;
  std::vector<float> rows = std::vector<float>(3 * 8);
};
/// A model all of whose weights are its number.
struct table_model {
  explicit table_model(float number) : table(100, 8, std::pmr::new_delete_resource()) {
    auto* const first = reinterpret_cast<float*>(table.view().data());
    std::fill(first, first + table.bytes() / sizeof(float), number);
  }
  dense_table<f32_rows> table;
};

}  // namespace

TEST_CASE("session_group: requests of several threads look rows up while new models are published") {
  constexpr index_t requests = DEEPREC_TEST_SANITIZED ? 50 : 400;
  versioned<table_model> models(2);
  REQUIRE(models.publish(std::make_unique<table_model>(1.0F)).ok());
  session_group group(3, [](index_t i) { return lookup_session(i); });
  const std::vector<std::int64_t> ids{1, 2, 3, 50, 98, 99}, offsets{0, 2, 4, 6};
  std::atomic<index_t> served{0}, faults{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (index_t k = 0; k < requests; ++k) {
        const auto session = group.acquire();
        const auto model = models.read();
        context ctx(session->pool);
        ctx.memory = &session->memory;
        const status s = lookup(ctx, model->table.view(), jagged_view(offsets.data(), 3, ids.data(), 6),
                                combiner::sum, matrix_view<float>(session->rows.data(), 3, 8));
        const auto expected = 2 * static_cast<float>(model.version());
        const bool right =
            std::all_of(session->rows.begin(), session->rows.end(), [&](float x) { return x == expected; });
        faults += s.ok() && right ? 0 : 1;
        ++served;
      }
    });
  }
  index_t version = 1;
  do {
    ++version;
    REQUIRE(models.publish(std::make_unique<table_model>(static_cast<float>(version))).value() == version);
    std::this_thread::yield();
  } while (served.load() < 4 * requests);
  for (std::thread& t : threads) t.join();
  CHECK(faults.load() == 0);
}
