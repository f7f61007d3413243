// Real threads, many of them. DEEPREC_TEST_ITEMS sets how many items go through each queue (some 10^7; fewer
// under sanitizers); scripts/stress_queues.sh runs 10^9.
#include <doctest/doctest.h>

#include <deeprec/queue/mpmc_ring.hpp>
#include <deeprec/queue/reorder_buffer.hpp>
#include <deeprec/queue/spsc_ring.hpp>
#include <deeprec/queue/staging_pool.hpp>
#include <deeprec/queue/staging_queue.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <latch>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "queue/history.hpp"
#include "support/sanitizers.hpp"
#include "support/seed.hpp"

namespace {

using namespace deeprec;

// Of each queue, over all of its mixes.
std::uint64_t items_of(std::uint64_t otherwise) {
  if (const char* text = std::getenv("DEEPREC_TEST_ITEMS")) return std::strtoull(text, nullptr, 10);
#if DEEPREC_TEST_SANITIZED
  return otherwise / 500;
#else
  return otherwise;
#endif
}

struct item {
  std::uint32_t producer = 0;
  std::uint64_t number = 0;
};

constexpr std::size_t batch = 32;  // the most items that a thread puts or takes at once

// Producer p puts (p, 0), (p, 1), ...; every consumer must see each producer's numbers rise, and all
// consumers together each number once. put(items, n) and take(items, n) answer how many of up to n they
// moved, at least one.
template <class Put, class Take>
void exactly_once(int producers, int consumers, std::uint64_t items, Put put, Take take) {
  std::vector<std::thread> threads;
  std::atomic<std::uint64_t> taken{0};
  std::atomic<bool> in_order{true};
  std::vector<std::atomic<std::uint64_t>> sums(static_cast<std::size_t>(producers));
  std::vector<std::atomic<std::uint64_t>> counts(static_cast<std::size_t>(producers));
  const auto share = [items](int of, int i) {
    const auto n = static_cast<std::uint64_t>(of);
    return items / n + (static_cast<std::uint64_t>(i) < items % n ? 1 : 0);
  };
  for (int p = 0; p < producers; ++p) {
    threads.emplace_back([&, p] {
      const std::uint64_t mine = share(producers, p);
      item many[batch];
      for (std::uint64_t k = 0; k < mine;) {
        const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(batch, mine - k));
        for (std::size_t i = 0; i < n; ++i) many[i] = {static_cast<std::uint32_t>(p), k + i};
        k += put(many, n);
      }
    });
  }
  for (int c = 0; c < consumers; ++c) {
    threads.emplace_back([&, c] {
      const std::uint64_t mine = share(consumers, c);
      std::vector<std::uint64_t> least(static_cast<std::size_t>(producers), 0);
      std::vector<std::uint64_t> sum(static_cast<std::size_t>(producers), 0);
      std::vector<std::uint64_t> count(static_cast<std::size_t>(producers), 0);
      item many[batch];
      for (std::uint64_t k = 0; k < mine;) {
        const std::size_t n = take(many, static_cast<std::size_t>(std::min<std::uint64_t>(batch, mine - k)));
        for (std::size_t i = 0; i < n; ++i) {
          const auto p = static_cast<std::size_t>(many[i].producer);
          if (many[i].number < least[p]) in_order = false;
          least[p] = many[i].number + 1;
          sum[p] += many[i].number * many[i].number + 1;
          ++count[p];
        }
        k += n;
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
    for (std::uint64_t k = 0; k < share(producers, p); ++k) sum += k * k + 1;
    CHECK(sums[static_cast<std::size_t>(p)] == sum);
    CHECK(counts[static_cast<std::size_t>(p)] == share(producers, p));
  }
}

// One item at a time, waiting.
template <class Push>
auto one_by_one(Push push) {
  return [push](item* many, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) {
      if (push(many[i]) != queue_result::ok) std::abort();
    }
    return n;
  };
}
// One waiting, and as many more as go at once.
template <class First, class More>
auto batch_wise(First first, More more) {
  return [first, more](item* many, std::size_t n) {
    if (first(many[0]) != queue_result::ok) std::abort();
    return 1 + more(many + 1, n - 1);
  };
}
template <class Ring>
void through_ring(Ring& ring, int producers, int consumers, std::uint64_t items, bool in_batches) {
  const auto push = [&](item& i) { return ring.push(i); };
  const auto pop = [&](item& i) { return ring.pop(i); };
  if (in_batches) {
    exactly_once(producers, consumers, items,
                 batch_wise(push, [&](item* many, std::size_t n) { return ring.try_push_n(many, n); }),
                 batch_wise(pop, [&](item* many, std::size_t n) { return ring.try_pop_n(many, n); }));
  } else {
    exactly_once(producers, consumers, items, one_by_one(push), one_by_one(pop));
  }
  CHECK(ring.was_size() == 0);
}

// Prints how many items of a queue have gone, in how many mixes; flushed, since the long run takes an hour.
struct report {
  const char* queue;
  std::uint64_t items = 0;
  int mixes = 0;
  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
  void done(std::uint64_t n) {
    items += n;
    ++mixes;
  }
  ~report() {
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::printf("  %s: %llu items in %d mixes, %.1f s\n", queue, static_cast<unsigned long long>(items),
                mixes, seconds.count());
    std::fflush(stdout);
  }
};

TEST_CASE("stress: every mix of 1 to 8 producers and consumers, each item once and in its producer's order") {
#if DEEPREC_TEST_SANITIZED
  const int step = 7;
#else
  const int step = 1;
#endif
  const int mixes = step == 1 ? 64 : 4;
  const std::uint64_t items = items_of(64'000'000) / static_cast<std::uint64_t>(mixes);
  report log{"mpmc_ring"};
  for (int producers = 1; producers <= 8; producers += step) {
    for (int consumers = 1; consumers <= 8; consumers += step) {
      CAPTURE(producers);
      CAPTURE(consumers);
      // 32-bit positions that wrap on the way; every other mix in batches.
      mpmc_ring<item, adaptive_wait, deeprec::detail::std_atomics, std::uint32_t> ring(
          256, std::pmr::get_default_resource(), static_cast<std::uint32_t>(-3));
      through_ring(ring, producers, consumers, items, (producers + consumers) % 2 == 1);
      log.done(items);
    }
  }
}

TEST_CASE("stress: spsc_ring, both layouts, one by one and in batches, and at small capacities") {
  const std::uint64_t items = items_of(16'000'000);
  report log{"spsc_ring"};
  const auto run = [&](std::size_t capacity, spsc_layout layout, bool in_batches, std::uint64_t n) {
    CAPTURE(capacity);
    CAPTURE(in_batches);
    spsc_ring<item, adaptive_wait, deeprec::detail::std_atomics, std::uint16_t> ring(
        capacity, std::pmr::get_default_resource(), layout, 65'500);
    through_ring(ring, 1, 1, n, in_batches);
    log.done(n);
  };
  std::uint64_t left = items;
  for (const std::size_t capacity : {1u, 2u, 4u}) {
    for (const spsc_layout layout : {spsc_layout::flags, spsc_layout::counters}) {
      for (const bool in_batches : {false, true}) {
        run(capacity, layout, in_batches, items / 1000);
        left -= items / 1000;
      }
    }
  }
  run(64, spsc_layout::flags, false, left / 4);
  run(64, spsc_layout::flags, true, left / 4);
  run(1024, spsc_layout::counters, false, left / 4);
  run(1024, spsc_layout::counters, true, left - left / 4 * 3);
}

TEST_CASE("stress: staging_queue, put and ordered, and at small capacities") {
  const std::uint64_t items = items_of(8'000'000);
  report log{"staging_queue"};
  const auto run = [&](std::size_t capacity, int producers, int consumers, bool ordered, std::uint64_t n) {
    CAPTURE(capacity);
    CAPTURE(producers);
    CAPTURE(ordered);
    staging_queue<item> q(capacity);
    std::atomic<int> inside{0};
    std::atomic<bool> too_many{false};
    exactly_once(producers, consumers, n, one_by_one([&](const item& i) {
                   queue_result r = queue_result::ok;
                   if (ordered) {
                     r = q.reserve().put(i);
                   } else {
                     r = q.put(i);
                   }
                   // Counted after it went in and taken off after it came out: never more than the capacity
                   // and the consumers' hands.
                   if (capacity <= 4 && ++inside > static_cast<int>(capacity) + consumers) too_many = true;
                   return r;
                 }),
                 one_by_one([&](item& i) {
                   auto t = q.take();
                   if (capacity <= 4) --inside;
                   if (t) i = *t;
                   return t.result();
                 }));
    CHECK(!too_many);
    const staging_stats stats = q.stats();
    CHECK(stats.claimed == n);
    CHECK(stats.taken == n);
    log.done(n);
  };
  std::uint64_t left = items;
  for (const std::size_t capacity : {1u, 2u, 4u}) {
    for (const bool ordered : {false, true}) {
      run(capacity, 2, 2, ordered, items / 500);
      left -= items / 500;
    }
  }
  constexpr int mixes[][2] = {{1, 1}, {1, 4}, {4, 1}, {2, 2}, {8, 8}};
  for (const auto& mix : mixes) {
    for (const bool ordered : {false, true}) {
      const bool last = mix[0] == 8 && ordered;
      const std::uint64_t n = last ? left : items / 11;
      run(256, mix[0], mix[1], ordered, n);
      left -= n;
    }
  }
}

TEST_CASE("stress: reorder_buffer, each number once and in order") {
  const std::uint64_t items = items_of(8'000'000);
  report log{"reorder_buffer"};
  const auto run = [&](std::size_t capacity, int putters, std::uint64_t n) {
    CAPTURE(capacity);
    CAPTURE(putters);
    reorder_buffer<std::uint64_t, adaptive_wait, deeprec::detail::std_atomics, std::uint32_t> buffer(
        capacity);
    std::atomic<std::uint64_t> number{0};
    std::atomic<bool> put_all{true};
    std::vector<std::thread> threads;
    for (int t = 0; t < putters; ++t) {
      threads.emplace_back([&] {
        // Several numbers at once, and the last of them first where the window has them.
        constexpr std::uint64_t at_once = 8;
        for (std::uint64_t k = number.fetch_add(at_once); k < n; k = number.fetch_add(at_once)) {
          const std::uint64_t end = std::min(k + at_once, n);
          const bool last_went = end - 1 > k && buffer.try_put(end - 1, end - 1);
          for (; k < (last_went ? end - 1 : end); ++k) {
            if (k % 1001 == 1000) {
              if (buffer.skip(k) != queue_result::ok) put_all = false;
            } else if (buffer.put(k, k) != queue_result::ok) {
              put_all = false;
            }
          }
        }
      });
    }
    bool in_order = true;
    for (std::uint64_t k = 0; k < n; ++k) {
      // A number that is skipped may have been put by try_put.
      std::uint64_t got = 0;
      if (buffer.take(got) != queue_result::ok) in_order = false;
      if (got == k + 1 && k % 1001 == 1000) ++k;
      if (got != k) in_order = false;
      if (k + 2 == n && (n - 1) % 1001 == 1000) break;  // whether the last one comes is open
    }
    for (std::thread& t : threads) t.join();
    CHECK(put_all);
    CHECK(in_order);
    log.done(n);
  };
  std::uint64_t left = items;
  for (const std::size_t capacity : {1u, 3u, 16u}) {
    run(capacity, 2, items / 500);
    left -= items / 500;
  }
  for (const int putters : {1, 2, 4}) {
    run(256, putters, items / 4);
    left -= items / 4;
  }
  run(1000, 8, left);
}

TEST_CASE("stress: staging_pool, a buffer is one thread's at a time") {
  const std::uint64_t items = items_of(16'000'000);
  report log{"staging_pool"};
  struct buffer {
    std::uint64_t uses = 0;  // plain: two owners would lose some
    int owner = -1;
  };
  const auto run = [&](std::uint32_t buffers, int users, std::uint64_t n) {
    CAPTURE(buffers);
    CAPTURE(users);
    staging_pool<buffer> pool(buffers);
    std::atomic<bool> alone{true};
    std::vector<std::thread> threads;
    for (int t = 0; t < users; ++t) {
      const auto all = static_cast<std::uint64_t>(users);
      const std::uint64_t mine = n / all + (static_cast<std::uint64_t>(t) < n % all ? 1 : 0);
      threads.emplace_back([&, t, mine] {
        for (std::uint64_t k = 0; k < mine; ++k) {
          auto lease = pool.acquire();
          if (!lease || lease->owner != -1) alone = false;
          lease->owner = t;
          ++lease->uses;
          if (k % 64 == 63) std::this_thread::yield();  // with the buffer in hand
          if (lease->owner != t) alone = false;
          lease->owner = -1;
        }
      });
    }
    for (std::thread& t : threads) t.join();
    CHECK(alone);
    std::uint64_t uses = 0;
    std::vector<staging_pool<buffer>::lease> out;
    while (auto lease = pool.try_acquire()) {
      uses += lease->uses;
      out.push_back(std::move(lease));
    }
    CHECK(out.size() == buffers);
    CHECK(uses == n);
    log.done(n);
  };
  std::uint64_t left = items;
  for (const int users : {2, 8}) {
    run(1, users, items / 100);
    left -= items / 100;
  }
  for (const int users : {1, 2, 4, 8}) {
    const std::uint64_t n = users == 8 ? left : items / 4;
    run(4, users, n);
    left -= n;
  }
}

// Four threads call whatever they like; what they were answered has to be what a queue could answer. A fence
// at both ends of a call, or a store that is still on its way would look like a late one.
TEST_CASE("stress: recorded histories of random calls are linearizable") {
#if DEEPREC_TEST_SANITIZED
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
  int taken = 0;
  int caught = 0;
  for (int round = 0; round < rounds; ++round) {
    const std::size_t capacity = 1 + static_cast<std::size_t>(round) % 3;
    staging_queue<int> q(capacity);
    std::vector<std::vector<timed>> logs(threads);
    std::vector<std::uint64_t> seeds(threads);
    for (auto& s : seeds) s = random = random * 6364136223846793005u + 1442695040888963407u;
    std::latch start(static_cast<std::ptrdiff_t>(threads));
    std::atomic<std::size_t> fence{0};
    std::vector<std::thread> workers;
    for (std::size_t t = 0; t < threads; ++t) {
      workers.emplace_back([&, t] {
        std::uint64_t mine = seeds[t];
        start.arrive_and_wait();
        for (std::size_t c = 0; c < calls; ++c) {
          mine = mine * 6364136223846793005u + 1442695040888963407u;
          timed one;
          const int value = static_cast<int>(t * calls + c);
          const auto what = mine >> 60;
          one.begin = clock::now();
          fence.fetch_add(1);  // a full fence
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
          fence.fetch_add(1);  // a full fence
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
    // The checker can refuse: the same history with a value that nobody put.
    for (auto& e : history) {
      if (e.what == call::take && e.answer == queue_result::ok) {
        e.value = static_cast<int>(threads * calls);
        ++taken;
        caught += !deeprec_test::linearizable(history, {.capacity = capacity});
        break;
      }
    }
  }
  CHECK(refused == 0);
  CHECK(taken > 0);
  CHECK(caught == taken);
}

}  // namespace
