// Every order in which a few threads can call the queues, under weak memory; and mutants, each of which has
// to be caught. DEEPREC_TEST_LONG=1 adds the orders that take minutes. `stale`: how many loads of each thread
// may read something else than the newest store, in one execution.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "queue/model/scenarios.hpp"

namespace {

using namespace deeprec_test::model;
using deeprec::detail::access;
bool long_run() { return std::getenv("DEEPREC_TEST_LONG") != nullptr; }

std::uint64_t total = 0;

void print(const char* name, const char* capacity, int stale, const outcome& o) {
  std::printf("  %-46s  %8s  %5d  %13llu  %12llu\n", name, capacity, stale,
              static_cast<unsigned long long>(o.executions), static_cast<unsigned long long>(o.steps));
  std::fflush(stdout);
}

template <class Face>
void all_orders(const char* name, std::size_t capacity, const program& p, int stale = 1) {
  const outcome o = explore<Face>(capacity, p, {}, {.executions = 3'000'000, .stale_reads = stale});
  print(name, std::to_string(capacity).c_str(), stale, o);
  total += o.executions;
  CHECK_MESSAGE(!o.failed, name << ": " << o.what);
  if (!o.complete) std::printf("    stopped there: not all of them\n");
  CHECK((o.complete || long_run()));
}

// --- the memory that the explorer knows --------------------------------------------------------------

struct two_flags : explorer::scenario {
  explicit two_flags(bool fences) : with_fences(fences) {}
  int threads() const override { return 2; }
  void run(int t) override {
    (t == 0 ? x : y).store(1, {deeprec::detail::access::position, std::memory_order_release});
    if (with_fences) explorer::current().fence(deeprec::detail::access::notify_one_fence);
    seen[t] = (t == 0 ? y : x).load({deeprec::detail::access::position, std::memory_order_acquire});
  }
  void finish() override {
    if (seen[0] == 0 && seen[1] == 0) explorer::current().fail("both were late");
  }
  bool with_fences;
  model_atomic<int> x, y;
  int seen[2] = {};
};

struct message_passing : explorer::scenario {
  message_passing(std::memory_order w, std::memory_order r) : write(w), read(r) {}
  int threads() const override { return 2; }
  void run(int t) override {
    if (t == 0) {
      item = watched(5);
      ready.store(1, {deeprec::detail::access::position, write});
    } else if (ready.load({deeprec::detail::access::position, read}) == 1) {
      if (item.value() != 5) explorer::current().fail("wrong item");
    }
  }
  std::memory_order write, read;
  watched item;
  model_atomic<int> ready;
};

// The second store comes after the first one for everybody, if its thread knows the first one.
struct store_after : explorer::scenario {
  explicit store_after(std::memory_order r) : read(r) {}
  int threads() const override { return 2; }
  void run(int t) override {
    if (t == 0) {
      x.store(1, {deeprec::detail::access::position, std::memory_order_relaxed});
      flag.store(1, {deeprec::detail::access::position, std::memory_order_release});
    } else if (flag.load({deeprec::detail::access::position, read}) == 1) {
      x.store(2, {deeprec::detail::access::position, std::memory_order_relaxed});
      wrote = true;
    }
  }
  void finish() override {
    if (wrote && x.load({deeprec::detail::access::position, read}) == 1) explorer::current().fail("late");
  }
  std::memory_order read;
  bool wrote = false;
  model_atomic<int> x{0}, flag{0};
};

template <class Scenario, class... Args>
outcome try_all(Args... args) {
  explorer x;
  return x.explore([&] { return std::make_unique<Scenario>(args...); });
}

TEST_CASE("explorer: stores may pass loads unless both threads have a fence") {
  CHECK(try_all<two_flags>(false).failed);
  const outcome fenced = try_all<two_flags>(true);
  CHECK(!fenced.failed);
  CHECK(fenced.executions >= 3);
}

TEST_CASE("explorer: an item travels with release and acquire, and with nothing less") {
  using enum std::memory_order;
  CHECK(!try_all<message_passing>(release, acquire).failed);
  CHECK(try_all<message_passing>(relaxed, acquire).failed);
  CHECK(try_all<message_passing>(release, relaxed).failed);
}

TEST_CASE("explorer: a store is late only where its thread does not know the one that it comes behind") {
  const auto fails = [](std::memory_order read, int late) {
    explorer x;
    return x.explore([&] { return std::make_unique<store_after>(read); }, {}, {.late_stores = late}).failed;
  };
  CHECK(!fails(std::memory_order_acquire, 1));
  CHECK(!fails(std::memory_order_relaxed, 0));
  CHECK(fails(std::memory_order_relaxed, 1));
}

TEST_CASE("history: the checker refuses what no queue does") {
  using deeprec::queue_result;
  using deeprec_test::call;
  using deeprec_test::linearizable;
  const auto put = [](int v, std::uint32_t before) {
    return deeprec_test::event{call::put, v, queue_result::ok, before};
  };
  const auto take = [](int v, std::uint32_t before) {
    return deeprec_test::event{call::take, v, queue_result::ok, before};
  };
  CHECK(linearizable({put(1, 0), put(2, 0), take(2, 3), take(1, 7)}, {.capacity = 2}));  // puts side by side
  CHECK(
      !linearizable({put(1, 0), put(2, 1), take(2, 3), take(1, 7)}, {.capacity = 2}));  // one after the other
  CHECK(!linearizable({put(1, 0), put(2, 1)}, {.capacity = 1}));
  CHECK(!linearizable({take(1, 0), put(1, 1)}, {.capacity = 1}));
  CHECK(!linearizable({put(1, 0), {call::take, 0, queue_result::not_now, 1}}, {.capacity = 1}));
  CHECK(!linearizable(
      {put(1, 0), {call::close, 0, queue_result::ok, 1}, {call::take, 0, queue_result::closed, 3}},
      {.capacity = 1}));
}

// --- the queues ----------------------------------------------------------------------------------------

TEST_CASE("model: every interleaving of the rings keeps order, capacity and every item") {
  std::printf("  %-46s  %8s  %5s  %13s  %12s\n", "threads", "capacity", "stale", "interleavings", "steps");
  all_orders<flags>("spsc_ring, flags: put put | take take", 1, pair, 0);
  all_orders<counters>("spsc_ring, counters: put put | take take", 1, pair, 0);
  for (const std::size_t capacity : {std::size_t{2}, std::size_t{3}}) {
    all_orders<flags>("spsc_ring, flags: put put | take take", capacity, pair);
    all_orders<counters>("spsc_ring, counters: put put | take take", capacity, pair);
  }
  for (const std::size_t capacity : {std::size_t{1}, std::size_t{2}, std::size_t{3}}) {
    all_orders<flags>("spsc_ring, flags: try x3 | try peek try", capacity, pair_try, 2);
    all_orders<counters>("spsc_ring, counters: try x3 | try peek try", capacity, pair_try, 2);
    all_orders<ring_face>("mpmc_ring: try x3 | try peek try", capacity, pair_try);
    all_orders<ring_face>("mpmc_ring: try_put try_take | the same", capacity, crossing);
  }
  all_orders<ring_face>("mpmc_ring: put put | take take", 2, pair, 0);
  all_orders<ring_face>("mpmc_ring: claim, drop, put | take", 1, dropping, 0);
  all_orders<flags>("spsc_ring, flags: put, put by a deadline | take", 1, pair_soon, 0);
  all_orders<counters>("spsc_ring, counters: the same", 1, pair_soon, 0);
  all_orders<ring_face>("mpmc_ring: put | put | take", 2, two_put, 0);
  if (long_run()) {
    for (const std::size_t capacity : {std::size_t{1}, std::size_t{2}, std::size_t{3}}) {
      all_orders<flags>("spsc_ring, flags: put put | take take", capacity, pair);
      all_orders<counters>("spsc_ring, counters: put put | take take", capacity, pair);
      all_orders<ring_face>("mpmc_ring: put put | take take", capacity, pair);
      all_orders<ring_face>("mpmc_ring: put | put | take", capacity, two_put);
      all_orders<ring_face>("mpmc_ring: put put | take | take", capacity, two_take, 0);
      all_orders<ring_face>("mpmc_ring: claim, drop, put | take", capacity, dropping);
    }
  }
}

// As far as `most` executions go: those of the long run are too many for each run of the tests.
template <class Face>
void some_orders(const char* name, std::size_t capacity, const program& p, int stale, bool membarrier = false,
                 std::uint64_t most = 10'000) {
  const outcome o = explore<Face>(
      capacity, p, {},
      {.executions = long_run() ? 300'000 : most, .stale_reads = stale, .membarrier = membarrier});
  print(name, std::to_string(capacity).c_str(), stale, o);
  total += o.executions;
  CHECK_MESSAGE(!o.failed, name << ": " << o.what);
}

TEST_CASE("model: every interleaving of staging_queue with close, cancel, resume and deadlines") {
  all_orders<staging_face>("put close | take take", 1, closing, 0);
  all_orders<staging_face>("put | close | take", 1, closing_beside, 0);
  all_orders<staging_face>("reserve, drop | close | take", 1, dropping_last, 0);
  all_orders<staging_face>("put try_put | cancel resume try_take", 1, resuming, 0);
  all_orders<staging_face>("cancel | take | take", 1, cancelled_takers, 0);
  all_orders<staging_face>("put put_by_a_deadline | take close", 1, deadline_full, 0);
}

TEST_CASE("model: staging_queue at capacities 1 to 3, under weak memory") {
  for (const std::size_t capacity : {std::size_t{1}, std::size_t{2}, std::size_t{3}}) {
    all_orders<staging_face>("staging: put close | take take", capacity, closing);
    all_orders<staging_face>("staging: put try_put | cancel resume try_take", capacity, resuming);
    some_orders<staging_face>("staging: put put | take take", capacity, pair, 1);
    some_orders<staging_face>("staging: put put | take take, membarrier", capacity, pair, 1, true);
    some_orders<staging_face>("staging: put | close | take", capacity, closing_beside, 1);
    some_orders<staging_face>("staging: reserve, drop | close | take", capacity, dropping_last, 1);
    some_orders<staging_face>("staging: put put_by_a_deadline | take close", capacity, deadline_full, 1);
    some_orders<staging_face>("staging: put put | cancel | take", capacity, cancelling, 1);
    some_orders<staging_face>("staging: try_put put | close | take", capacity, closing_full, 1);
    some_orders<staging_face>("staging: cancel | take | take", capacity, cancelled_takers, 1);
    some_orders<limited_face>("staging, limited: put put | take take", capacity, pair, 1);
    some_orders<limited_face>("staging, limited: put put | take take, membarrier", capacity, pair, 1, true);
    some_orders<limited_face>("staging, limited: try_put put | close | take", capacity, closing_full, 1);
  }
}

TEST_CASE("model: a queue that is closed while it is resumed leaves no consumer asleep") {
  for (const int late : {0, 1, 2}) {
    for (const bool membarrier : {false, true}) {
      const limits bounds{.stale_reads = 1, .membarrier = membarrier, .late_stores = late};
      const outcome o = explore_scenario<resumed_queue>({}, bounds);
      print("staging: close | resume, stores may be late", " ", late, o);
      total += o.executions;
      CHECK_MESSAGE(!o.failed, "late stores " << late << ": " << o.what);
      CHECK(o.complete);
    }
  }
}

template <class Scenario>
void orders_of(const char* name, int stale, bool all = true, bool membarrier = false) {
  const std::uint64_t most = long_run() ? 300'000 : all ? 200'000'000 : 10'000;
  const outcome o =
      explore_scenario<Scenario>({}, {.executions = most, .stale_reads = stale, .membarrier = membarrier});
  print(name, " ", stale, o);
  total += o.executions;
  CHECK_MESSAGE(!o.failed, name << ": " << o.what);
  if (all && !long_run()) CHECK(o.complete);
}

TEST_CASE("model: a put or a take that throws, in every queue") {
  for (const std::size_t capacity : {std::size_t{1}, std::size_t{2}, std::size_t{3}}) {
    all_orders<brittle_flags>("spsc_ring, flags: a put throws", capacity, throwing_put, 0);
    all_orders<brittle_counters>("spsc_ring, counters: a put throws", capacity, throwing_put, 0);
    some_orders<brittle_ring>("mpmc_ring: a put throws", capacity, throwing_put, 0);
    some_orders<brittle_staging>("staging: a put throws", capacity, throwing_put, 0);
    some_orders<brittle_reorder>("reorder_buffer: a put throws", capacity, throwing_put, 0);
    some_orders<brittle_ring>("mpmc_ring: a put throws beside a put", capacity, throwing_beside, 0);
    some_orders<brittle_staging>("staging: a put throws beside a put", capacity, throwing_beside, 0);
    all_orders<brittle_flags>("spsc_ring, flags: a take throws", capacity, throwing_take);
    all_orders<brittle_counters>("spsc_ring, counters: a take throws", capacity, throwing_take);
    all_orders<brittle_ring>("mpmc_ring: a take throws", capacity, throwing_take, 0);
    all_orders<brittle_staging>("staging: a take throws", capacity, throwing_take, 0);
    all_orders<brittle_reorder>("reorder_buffer: a take throws", capacity, throwing_take, 0);
    some_orders<brittle_ring>("mpmc_ring: the last take throws", capacity, throwing_last, 0);
    some_orders<brittle_staging>("staging: the last take throws", capacity, throwing_last, 0);
    if (capacity == 1) continue;
    some_orders<brittle_ring>("mpmc_ring: the first of two takes throws", capacity, throwing_behind, 0);
    some_orders<brittle_staging>("staging: the first of two takes throws", capacity, throwing_behind, 0);
    some_orders<brittle_reorder>("reorder_buffer: the first of two throws", capacity, throwing_behind, 0);
  }
  orders_of<reorder_throws>("reorder_buffer: put 0 throws | put 1", 1);
  orders_of<budget_throws>("budget: a put throws | put take", 1, false);
}

TEST_CASE("model: a waiter that leaves without an item passes its wake-up on") {
  for (const bool membarrier : {false, true}) {
    orders_of<room_deadline>("a waiting room: a deadline beside a wait", 2, false, membarrier);
    orders_of<pool_deadline>("staging_pool: a deadline beside a wait", 1, false, membarrier);
    orders_of<take_deadline<ring_face>>("mpmc_ring: a take's deadline beside a wait", 1, false, membarrier);
    orders_of<take_deadline<staging_face>>("staging: a take's deadline beside a wait", 1, false, membarrier);
    orders_of<put_deadline<ring_face>>("mpmc_ring: a put's deadline beside a wait", 1, false, membarrier);
    orders_of<put_deadline<staging_face>>("staging: a put's deadline beside a wait", 1, false, membarrier);
    orders_of<take_stopped<ring_face>>("mpmc_ring: a stop beside a wait", 0, false, membarrier);
    orders_of<take_stopped<staging_face>>("staging: a stop beside a wait", 0, false, membarrier);
    orders_of<take_cancelled>("staging: a cancel beside a wait", 0, false, membarrier);
  }
  orders_of<never_full>("slot_ring: claimable while not full", 1);
  orders_of<put_between>("mpmc_ring: put | put | pop pop | try_put", 0, false);
}

TEST_CASE("model: staging_pool, reorder_buffer and byte budgets") {
  orders_of<pool_scenario<3, 1>>("staging_pool: three try, one buffer", 1);
  orders_of<pool_scenario<2, 1>>("staging_pool: two threads wait for one buffer", 1);
  orders_of<pool_again>("staging_pool: two threads, each buffer twice", 1, false);
  orders_of<reorder_scenario>("reorder_buffer: put 1 | put 0 take take", 1);
  orders_of<budget_scenario>("budget: the later record first | take take", 1);
  orders_of<hole_scenario>("mpmc_ring: a claim dies | take put", 2);
  orders_of<batches<spsc_layout::flags>>("spsc_ring, flags: batches of two", 2);
  orders_of<batches<spsc_layout::counters>>("spsc_ring, counters: batches of two", 2);
  orders_of<counted<counters_of_three>>("spsc_ring, counters: was_size beside", 2);
  if (long_run()) orders_of<pool_scenario<3, 2>>("staging_pool: three try, two buffers", 1);
}

// --- mutants -------------------------------------------------------------------------------------------

using attempt = outcome (*)(const mutant&);
template <class Face, const program& P, std::size_t Capacity, int Stale>
outcome with(const mutant& m) {
  return explore<Face>(Capacity, P, m, {.executions = 3'000'000, .stale_reads = Stale});
}

int caught = 0;
void must_be_caught(const mutant& m, attempt run) {
  const outcome o = run(m);
  std::printf("  %-56s %s after %llu: %s\n", m.name, o.failed ? "caught" : "MISSED",
              static_cast<unsigned long long>(o.executions + o.pruned),
              o.what.substr(0, o.what.find('\n')).c_str());
  std::fflush(stdout);
  CHECK_MESSAGE(o.failed, "a mutant was not caught: " << std::string(m.name));
  caught += o.failed ? 1 : 0;
}

// Orders and fences: sites_test.cpp.
TEST_CASE("model: each step of the library that is left out is caught") {
  using enum mutant::kind_type;
  must_be_caught({"slot: never freed", omit, deeprec::detail::access::slot_release},
                 with<ring_face, pair, 1, 0>);
  must_be_caught({"hole: never published", omit, deeprec::detail::access::slot_hole},
                 with<ring_face, dropping, 1, 0>);
  must_be_caught({"tail: claimed without an exchange", omit, deeprec::detail::access::tail_claim},
                 with<ring_face, crossing, 2, 1>);
  must_be_caught({"head: claimed without an exchange", omit, deeprec::detail::access::head_claim},
                 with<ring_face, two_take, 2, 0>);
  must_be_caught({"close: the bit is not set", omit, deeprec::detail::access::close_mark},
                 with<staging_face, closing, 1, 0>);
  must_be_caught({"close: consumers are not told", omit, deeprec::detail::access::close_hint},
                 with<staging_face, closing, 1, 0>);
  must_be_caught({"wait: the lost waiter flag", omit, deeprec::detail::access::waiter_count},
                 with<flags, pair, 1, 0>);
  must_be_caught({"notify: the epoch is not raised", omit, deeprec::detail::access::epoch_raise},
                 with<flags, pair, 1, 0>);
  must_be_caught({"cancel: the mark is not made", omit, deeprec::detail::access::cancel_mark},
                 with<staging_face, cancelled_takers, 1, 0>);
}

outcome late_stores(const mutant& m) {
  return explore_scenario<resumed_queue>(m, {.stale_reads = 1, .late_stores = 1});
}
TEST_CASE("model: a close that a resume does not come before is caught, where stores may be late") {
  must_be_caught({"close: relaxed", mutant::relax, deeprec::detail::access::close_mark}, late_stores);
  must_be_caught({"close: not acquired from resume", mutant::no_acquire, deeprec::detail::access::close_mark},
                 late_stores);
  must_be_caught({"resume: not released to close", mutant::relax, deeprec::detail::access::open_mark},
                 late_stores);
}

TEST_CASE("model: each mistake in the logic of a queue is caught") {
  using m = mistake;
  must_be_caught({"one waiter flag for both directions"}, with<wrong_face<m::one_room>, two_take, 1, 0>);
  must_be_caught({"close without drain"}, with<wrong_face<m::no_drain>, closing, 1, 0>);
  must_be_caught({"closed apart from the position"}, with<wrong_face<m::closed_apart>, closing_beside, 1, 0>);
  must_be_caught({"sleep without a second look"}, with<wrong_face<m::no_second_look>, pair, 1, 0>);
  must_be_caught({"notify before publish"}, with<wrong_face<m::notify_first>, pair, 2, 0>);
  must_be_caught({"close that wakes nobody"}, with<wrong_face<m::silent_close>, closing, 1, 0>);
  must_be_caught({"cancel that wakes producers only"},
                 with<wrong_face<m::cancel_one_side>, cancelled_takers, 1, 0>);
  must_be_caught({"hazard H1: a put that times out says ok"},
                 with<wrong_face<m::drop_on_timeout>, deadline_full, 1, 0>);
  must_be_caught({"a put that times out keeps a slot"},
                 with<wrong_face<m::put_after_timeout>, deadline_end, 1, 0>);
  must_be_caught({"no chain of wake-ups"}, with<wrong_face<m::no_chain>, four, 2, 0>);
  must_be_caught({"a take that throws does not go on with the chain"},
                 with<wrong_face<m::chain_after_return, brittle>, throwing_behind, 3, 0>);
}

TEST_CASE("model: how many") {
  std::printf("  %llu interleavings explored, %d mutants caught\n", static_cast<unsigned long long>(total),
              caught);
  CHECK(total > 10'000);
  CHECK(caught == 23);
}

}  // namespace
