// Faults of queue/: wake-ups, deadlines, conversions, capacities, fences.
#include <doctest/doctest.h>

#include <deeprec/queue/mpmc_ring.hpp>
#include <deeprec/queue/spsc_ring.hpp>
#include <deeprec/queue/staging_queue.hpp>

#if defined(__linux__)
#  include <linux/membarrier.h>
#  include <sys/syscall.h>
#  include <unistd.h>
#endif

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>

#include "queue/support.hpp"
#include "support/children.hpp"
#if !defined(DEEPREC_TEST_NO_FIBERS)
#  include "queue/model/queues.hpp"
#endif

namespace {

using namespace deeprec;
using deeprec_test::fragile;
using deeprec_test::in_child;

// Two threads that wait in take() when release() is called: one leaves by an exception, the other has to come
// back.
template <class Counts, class Take, class Release>
int one_throws(Counts counts, Take take, Release release) {
  return in_child(
      [&] {
        std::atomic<int> threw{0};
        const auto consumer = [&] {
          try {
            take();
          } catch (const std::runtime_error&) {
            ++threw;
          }
        };
        std::thread a(consumer);
        std::thread b(consumer);
        deeprec_test::until_asleep(2, counts);
        fragile::until = 0;
        release();
        a.join();
        b.join();
        return threw == 1 ? 0 : 1;
      },
      20);
}

TEST_CASE("r04: a consumer that leaves by an exception of T's move wakes the next") {
  {
    mpmc_ring<fragile> ring(8);
    auto first = ring.try_claim();
    ring.try_emplace(2), ring.try_emplace(3);
    const auto take = [&] {
      fragile out;
      static_cast<void>(ring.pop(out));
    };
    const auto counts = [&] { return ring.pop_waits(); };
    CHECK(one_throws(counts, take, [&] { first.emplace(1), first.publish(); }) == 0);
  }
  {
    mpmc_ring<fragile> ring(8);
    auto last = ring.try_claim();
    const auto take = [&] {
      fragile out;
      static_cast<void>(ring.pop(out));
    };
    const auto counts = [&] { return ring.pop_waits(); };
    const auto release = [&] {
      const std::uint64_t parks = ring.pop_waits().parks;
      ring.close();
      while (ring.pop_waits().parks < parks + 2) std::this_thread::yield();  // both look, and sleep again
      deeprec_test::until_asleep(2, counts);
      last.emplace(1), last.publish();
    };
    CHECK(one_throws(counts, take, release) == 0);
  }
  {
    staging_queue<fragile> q(8);
    auto p1 = q.reserve(), p2 = q.reserve(), p3 = q.reserve();
    CHECK(p2.put(fragile(2)) == queue_result::ok);
    CHECK(p3.put(fragile(3)) == queue_result::ok);
    fragile one(1);
    const auto counts = [&] { return q.stats().take; };
    const auto release = [&] {
      fragile::until = 1;  // put moves once, take once
      static_cast<void>(p1.put(std::move(one)));
    };
    CHECK(one_throws(counts, [&] { static_cast<void>(q.take().result()); }, release) == 0);
  }
}

template <class Duration>
bool endless(Duration time) {
  return within(time).deadline == std::chrono::steady_clock::time_point::max();
}

TEST_CASE("r05: the longest time of every unit is no limit") {
  using namespace std::chrono;
  CHECK(endless((nanoseconds::max)()));
  CHECK(endless((microseconds::max)()));
  CHECK(endless((milliseconds::max)()));
  CHECK(endless((seconds::max)()));
  CHECK(endless((minutes::max)()));
  CHECK(endless((hours::max)()));
  mpmc_ring<int> ring(1);
  CHECK(ring.push(1, within((milliseconds::max)())) == queue_result::ok);
  std::atomic<queue_result> second{queue_result::not_now};
  std::thread producer([&] { second = ring.push(2, within((milliseconds::max)())); });
  while (ring.push_waits().waiting != 1 && second == queue_result::not_now) std::this_thread::yield();
  int out = 0;
  CHECK(ring.pop(out) == queue_result::ok);
  producer.join();
  CHECK(second == queue_result::ok);
}

struct base {
  virtual ~base() = default;
  virtual int number() const { return 0; }
};
struct derived final : base {
  int number() const override { return 1; }
};

TEST_CASE("r06: an item that only moves into a record can be put") {
  staging_queue<std::unique_ptr<base>> q(2);
  CHECK(q.put(std::make_unique<derived>()) == queue_result::ok);
  CHECK(q.try_put(std::make_unique<derived>()) == queue_result::ok);
  auto kept = std::make_unique<derived>();
  CHECK(q.try_put(std::move(kept)) == queue_result::not_now);
  CHECK(kept);
  CHECK((*q.take())->number() == 1);
  auto place = q.reserve();
  CHECK(place.put(std::move(kept)) == queue_result::ok);
}

TEST_CASE("r08: a capacity whose bytes no block can have is refused") {
  using ring = spsc_ring<std::array<char, 64>>;
  CHECK_THROWS_AS(ring(std::size_t{1} << 60), deeprec::error);
}

#if defined(__linux__)
TEST_CASE("r15: a forked child keeps the registration for membarrier") {
  const event_count<> parent;
  const auto barrier = [] { return syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0); };
  const bool registered = barrier() == 0;  // refused in some containers: then both sides have fences
  CHECK(in_child([&] { return (barrier() == 0) == registered ? 0 : 1; }) == 0);
}
#endif

#if !defined(DEEPREC_TEST_NO_FIBERS)
namespace model = deeprec_test::model;

struct throwing_item {
  int v = 0;
  throwing_item() = default;
  explicit throwing_item(int x) : v(x) {}
  throwing_item(throwing_item&& o) noexcept : v(o.v) {}
  throwing_item& operator=(throwing_item&& o) {
    if (o.v == 1) throw 1;
    v = o.v;
    return *this;
  }
};

struct throwing_take : model::explorer::scenario {
  int threads() const override { return 3; }
  void run(int t) override {
    if (t == 0) {
      auto first = ring.try_claim();
      ring.try_emplace(2);
      first.emplace(1);
      first.publish();
      return;
    }
    throwing_item out;
    try {
      static_cast<void>(ring.pop(out));
    } catch (int) {
    }
  }
  mpmc_ring<throwing_item, park_wait, model::model_atomics, std::uint32_t> ring{4};
};

TEST_CASE("r16: in no order of steps does a throwing take leave another consumer asleep") {
  model::explorer x;
  const model::outcome o = x.explore([] { return std::make_unique<throwing_take>(); }, {},
                                     {.executions = 100'000, .stale_reads = 0});
  CHECK_MESSAGE(!o.failed, o.what);
}
#endif

}  // namespace
