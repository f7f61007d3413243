// Real threads, many of them. DEEPREC_TEST_ITEMS sets how many items each mix moves (10^6; fewer under
// sanitizers); scripts/stress_queues.sh runs 10^9.
#include <doctest/doctest.h>

#include <deeprec/staging/mpmc_ring.hpp>
#include <deeprec/staging/spsc_ring.hpp>
#include <deeprec/staging/staging_queue.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "staging/history.hpp"
#include "support/seed.hpp"

#if defined(__has_feature)
#  if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#    define SANITIZED 1
#  endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#  define SANITIZED 1
#endif

namespace {

using namespace deeprec;

std::uint64_t items_of_a_mix() {
  if (const char* text = std::getenv("DEEPREC_TEST_ITEMS")) return std::strtoull(text, nullptr, 10);
#if defined(SANITIZED)
  return 3'000;
#else
  return 1'000'000;
#endif
}

struct item {
  std::uint32_t producer = 0;
  std::uint64_t number = 0;
};

// Producer p puts (p, 0), (p, 1), ...; every consumer must see each producer's numbers rise, and all
// consumers together each number once. In flight: put begun minus take ended, never above the capacity and
// what the threads have in their hands.
template <class Put, class Take>
void exactly_once(int producers, int consumers, std::uint64_t items, Put put, Take take) {
  std::vector<std::thread> threads;
  std::atomic<std::uint64_t> taken{0};
  std::atomic<bool> in_order{true};
  std::vector<std::atomic<std::uint64_t>> sums(static_cast<std::size_t>(producers));
  std::vector<std::atomic<std::uint64_t>> counts(static_cast<std::size_t>(producers));
  const auto of_producer = [&](int p) {
    const auto n = static_cast<std::uint64_t>(producers);
    return items / n + (static_cast<std::uint64_t>(p) < items % n ? 1 : 0);
  };
  for (int p = 0; p < producers; ++p) {
    threads.emplace_back([&, p] {
      const std::uint64_t mine = of_producer(p);
      for (std::uint64_t k = 0; k < mine; ++k) put(item{static_cast<std::uint32_t>(p), k});
    });
  }
  for (int c = 0; c < consumers; ++c) {
    threads.emplace_back([&, c] {
      const auto n = static_cast<std::uint64_t>(consumers);
      const std::uint64_t mine = items / n + (static_cast<std::uint64_t>(c) < items % n ? 1 : 0);
      std::vector<std::uint64_t> least(static_cast<std::size_t>(producers), 0);
      std::vector<std::uint64_t> sum(static_cast<std::size_t>(producers), 0);
      std::vector<std::uint64_t> count(static_cast<std::size_t>(producers), 0);
      for (std::uint64_t k = 0; k < mine; ++k) {
        const item got = take();
        const auto p = static_cast<std::size_t>(got.producer);
        if (got.number < least[p]) in_order = false;
        least[p] = got.number + 1;
        sum[p] += got.number * got.number + 1;
        ++count[p];
      }
      for (std::size_t p = 0; p < sum.size(); ++p) {
        sums[p] += sum[p];
        counts[p] += count[p];
      }
      taken += mine;
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(taken == items);
  CHECK(in_order);
  for (int p = 0; p < producers; ++p) {
    std::uint64_t sum = 0;
    for (std::uint64_t k = 0; k < of_producer(p); ++k) sum += k * k + 1;
    CHECK(sums[static_cast<std::size_t>(p)] == sum);
    CHECK(counts[static_cast<std::size_t>(p)] == of_producer(p));
  }
}

TEST_CASE("stress: every mix of 1 to 8 producers and consumers, each item once and in its producer's order") {
  const std::uint64_t items = items_of_a_mix();
  std::uint64_t mixes = 0;
  const auto begin = std::chrono::steady_clock::now();
#if defined(SANITIZED)
  const int step = 7;
#else
  const int step = 1;
#endif
  for (int producers = 1; producers <= 8; producers += step) {
    for (int consumers = 1; consumers <= 8; consumers += step) {
      CAPTURE(producers);
      CAPTURE(consumers);
      // 32-bit positions that wrap on the way.
      mpmc_ring<item, adaptive_wait, std_atomics, std::uint32_t> ring(
          256, std::pmr::get_default_resource(), static_cast<std::uint32_t>(-3));
      exactly_once(
          producers, consumers, items,
          [&](item i) {
            if (ring.push(i) != queue_result::ok) std::abort();
          },
          [&] {
            item i;
            if (ring.pop(i) != queue_result::ok) std::abort();
            return i;
          });
      CHECK(ring.was_size() == 0);
      ++mixes;
    }
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::printf("  mpmc_ring: %llu mixes of %llu items in %.1f s\n", static_cast<unsigned long long>(mixes),
              static_cast<unsigned long long>(items), seconds.count());
}

TEST_CASE("stress: staging_queue and the rings at small capacities") {
  const std::uint64_t items = std::max<std::uint64_t>(items_of_a_mix() / 10, 1000);
  for (const std::size_t capacity : {1u, 2u, 4u}) {
    CAPTURE(capacity);
    staging_queue<item> q(capacity);
    std::atomic<int> inside{0};
    std::atomic<bool> too_many{false};
    exactly_once(
        2, 2, items / capacity,
        [&](item i) {
          if (q.put(i) != queue_result::ok) std::abort();
          // Counted after it went in and taken off after it came out: never more than the capacity and the
          // two consumers' hands.
          if (++inside > static_cast<int>(capacity) + 2) too_many = true;
        },
        [&] {
          auto t = q.take();
          --inside;
          return *t;
        });
    CHECK(!too_many);
    for (const spsc_layout layout : {spsc_layout::flags, spsc_layout::counters}) {
      spsc_ring<item, adaptive_wait, std_atomics, std::uint8_t> ring(
          capacity, std::pmr::get_default_resource(), layout, 250);
      exactly_once(
          1, 1, items / capacity,
          [&](item i) {
            if (ring.push(i) != queue_result::ok) std::abort();
          },
          [&] {
            item i;
            if (ring.pop(i) != queue_result::ok) std::abort();
            return i;
          });
    }
  }
}

// Four threads call whatever they like; what they were answered has to be what a queue could answer. A fence at
// both ends of a call, or a store that is still on its way would look like a late one.
TEST_CASE("stress: recorded histories of random calls are linearizable") {
#if defined(SANITIZED)
  const int rounds = 40;
#else
  const int rounds = 1500;
#endif
  using deeprec_test::call;
  using clock = std::chrono::steady_clock;
  struct timed {
    deeprec_test::event e;
    clock::time_point begin, end;
  };
  constexpr std::size_t threads = 4;
  constexpr std::size_t calls = 5;
  std::uint64_t random = deeprec_test::seed();
  int refused = 0;
  int caught = 0;
  for (int round = 0; round < rounds; ++round) {
    const std::size_t capacity = 1 + static_cast<std::size_t>(round) % 3;
    staging_queue<int> q(capacity);
    std::vector<std::vector<timed>> logs(threads);
    std::vector<std::uint64_t> seeds(threads);
    for (auto& s : seeds) s = random = random * 6364136223846793005u + 1442695040888963407u;
    std::atomic<std::size_t> ready{0};
    std::vector<std::thread> workers;
    for (std::size_t t = 0; t < threads; ++t) {
      workers.emplace_back([&, t] {
        std::uint64_t mine = seeds[t];
        ++ready;
        while (ready < threads) std::this_thread::yield();
        for (std::size_t c = 0; c < calls; ++c) {
          mine = mine * 6364136223846793005u + 1442695040888963407u;
          timed one;
          const int value = static_cast<int>(t * calls + c);
          const auto what = mine >> 60;
          one.begin = clock::now();
          ready.fetch_add(1);  // a full fence
          if (what < 6) {
            one.e = {call::put, value, q.put(value, within(std::chrono::microseconds(mine >> 40 & 255))), 0};
          } else if (what < 13) {
            auto got = q.take(within(std::chrono::microseconds(mine >> 40 & 255)));
            one.e = {call::take, got ? *got : 0, got.result(), 0};
          } else if (what == 13) {
            q.close();
            one.e = {call::close, 0, queue_result::ok, 0};
          } else {
            one.e = {call::take, 0, queue_result::not_now, 0};
            auto got = q.try_take();
            one.e.answer = got.result();
            one.e.value = got ? *got : 0;
          }
          ready.fetch_add(1);  // a full fence
          one.end = clock::now();
          logs[t].push_back(one);
        }
      });
    }
    for (std::thread& w : workers) w.join();
    std::vector<timed> all;
    for (const auto& log : logs) all.insert(all.end(), log.begin(), log.end());
    std::vector<deeprec_test::event> history;
    for (const timed& i : all) {
      deeprec_test::event e = i.e;
      for (std::size_t k = 0; k < all.size(); ++k) {
        if (all[k].end < i.begin) e.before |= 1u << k;
      }
      history.push_back(e);
    }
    if (!deeprec_test::linearizable(history, {.capacity = capacity})) {
      ++refused;
      MESSAGE(deeprec_test::to_string(history));
    }
    // The checker can refuse: the same history with two values exchanged, where they were taken in order.
    for (auto& e : history) {
      if (e.what == call::take && e.answer == queue_result::ok) {
        e.value = static_cast<int>(threads * calls) - 1 - e.value;
        caught += !deeprec_test::linearizable(history, {.capacity = capacity});
        break;
      }
    }
  }
  CHECK(refused == 0);
  CHECK(caught > rounds / 2);
}

}  // namespace
