#include <doctest/doctest.h>

#include <deeprec/queue/mpmc_ring.hpp>
#include <deeprec/queue/packed_batch.hpp>
#include <deeprec/queue/reorder_buffer.hpp>
#include <deeprec/queue/spsc_ring.hpp>
#include <deeprec/queue/staging_pool.hpp>
#include <deeprec/queue/staging_queue.hpp>

#if defined(__linux__)
#  include <linux/filter.h>
#  include <linux/membarrier.h>
#  include <linux/seccomp.h>
#  include <sys/prctl.h>
#  include <sys/syscall.h>
#  include <unistd.h>
#endif

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <random>
#include <ratio>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "queue/support.hpp"
#include "support/children.hpp"
#include "support/sanitizers.hpp"
#include "support/seed.hpp"

namespace {

using namespace deeprec;
using namespace std::chrono_literals;
using deeprec_test::fragile;

template <class T, class Seq = std::size_t>
using spsc = spsc_ring<T, adaptive_wait, deeprec::detail::std_atomics, Seq>;
template <class T, class Seq = std::size_t>
using mpmc = mpmc_ring<T, adaptive_wait, deeprec::detail::std_atomics, Seq>;

template <class Ring>
Ring make(std::size_t capacity, spsc_layout layout = spsc_layout::automatic) {
  if constexpr (std::is_constructible_v<Ring, std::size_t, std::pmr::memory_resource*, spsc_layout>) {
    return Ring(capacity, std::pmr::get_default_resource(), layout);
  } else {
    return Ring(capacity);
  }
}

// Random calls by one thread, compared with a deque.
template <class Ring>
void like_a_deque(Ring& ring, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::deque<int> oracle;
  int next = 0;
  bool agrees = true;
  for (int i = 0; i < 3000 && agrees; ++i) {
    switch (random() % 6) {
      case 0:
      case 1: {
        const bool room = oracle.size() < ring.capacity();
        agrees = ring.try_push(int(next)) == room;
        if (room) oracle.push_back(next++);
        break;
      }
      case 2: {
        int got = -1;
        agrees = ring.try_pop(got) == !oracle.empty() && (oracle.empty() || got == oracle.front());
        if (!oracle.empty()) oracle.pop_front();
        break;
      }
      case 3: {  // in place; dropped half of the time
        auto claim = ring.try_claim();
        agrees = static_cast<bool>(claim) == (oracle.size() < ring.capacity());
        if (!claim) break;
        if (random() % 2 == 0) {
          claim.emplace(next);
          claim.publish();
          oracle.push_back(next++);
        } else if (!std::is_same_v<Ring, spsc<int, std::uint8_t>> &&
                   !std::is_same_v<Ring, spsc<int, std::uint16_t>>) {
          claim = {};  // a hole: takes a slot until the consumer passes over it
          if (oracle.empty()) {
            int none = 0;
            agrees = !ring.try_pop(none);
          } else {
            int got = -1;
            while (!oracle.empty()) {  // up to the hole and past it
              agrees = agrees && ring.try_pop(got) && got == oracle.front();
              oracle.pop_front();
            }
            agrees = agrees && !ring.try_pop(got);
          }
        }
        break;
      }
      case 4: {
        auto view = ring.try_peek();
        agrees = static_cast<bool>(view) == !oracle.empty() && (oracle.empty() || *view == oracle.front());
        if (!oracle.empty()) oracle.pop_front();
        break;
      }
      default: {  // several at once
        const std::size_t n = random() % 5;
        std::vector<int> many(n);
        if (random() % 2 == 0) {
          for (std::size_t k = 0; k < n; ++k) many[k] = next + static_cast<int>(k);
          const std::size_t pushed = ring.try_push_n(many.begin(), n);
          agrees = pushed == std::min(n, ring.capacity() - oracle.size());
          for (std::size_t k = 0; k < pushed; ++k) oracle.push_back(next++);
        } else {
          const std::size_t popped = ring.try_pop_n(many.begin(), n);
          agrees = popped == std::min(n, oracle.size());
          for (std::size_t k = 0; k < popped; ++k) {
            agrees = agrees && many[k] == oracle.front();
            oracle.pop_front();
          }
        }
      }
    }
    agrees = agrees && ring.was_size() == oracle.size();
  }
  CHECK(agrees);
}

TEST_CASE("rings: any capacity behaves like a bounded deque, also where 8-bit and 16-bit positions wrap") {
  for (const std::size_t capacity : {1u, 2u, 3u, 5u, 8u}) {
    CAPTURE(capacity);
    for (const spsc_layout layout : {spsc_layout::counters, spsc_layout::flags}) {
      auto small_counts = make<spsc<int, std::uint8_t>>(capacity, layout);
      like_a_deque(small_counts, deeprec_test::seed());
      auto counts = make<spsc<int, std::uint16_t>>(capacity, layout);
      like_a_deque(counts, deeprec_test::seed() + 1);
    }
    mpmc<int, std::uint8_t> small_positions(capacity);
    like_a_deque(small_positions, deeprec_test::seed() + 2);
    mpmc<int, std::uint16_t> positions(capacity, std::pmr::get_default_resource(), 65530);
    like_a_deque(positions, deeprec_test::seed() + 3);
  }
}

TEST_CASE("rings: a capacity of nothing, or beyond the positions, is refused") {
  CHECK_THROWS_AS(mpmc<int>(0), deeprec::error);
  CHECK_THROWS_AS(spsc<int>(0), deeprec::error);
  using tiny = mpmc<int, std::uint8_t>;
  using tiny_pair = spsc<int, std::uint8_t>;
  CHECK_THROWS_AS(tiny(17), deeprec::error);
  CHECK_THROWS_AS(tiny_pair(128), deeprec::error);
}

struct huge {
  std::byte bytes[std::size_t{1} << 26];
};

TEST_CASE("queues: a capacity whose bytes wrap around is refused") {
  // 2^40 slots of more than 2^26 bytes; 2^58 and more of 64 bytes.
  const std::size_t many = std::size_t{1} << 40;
  CHECK_THROWS_AS(mpmc<huge>{many}, deeprec::error);
  CHECK_THROWS_AS(reorder_buffer<huge>{many}, deeprec::error);
  CHECK_THROWS_AS(staging_queue<huge>{many}, deeprec::error);
  using line = std::array<char, 64>;
  for (const int bits : {56, 58, 60, 62}) {
    CAPTURE(bits);
    for (const spsc_layout layout : {spsc_layout::automatic, spsc_layout::counters, spsc_layout::flags}) {
      if (bits == 56 && layout != spsc_layout::flags) continue;  // 2^62 bytes: the allocator's to refuse
      CHECK_THROWS_AS(spsc<line>(std::size_t{1} << bits, std::pmr::get_default_resource(), layout),
                      deeprec::error);
    }
  }
  CHECK_THROWS_AS(staging_pool<int>{0}, deeprec::error);
  CHECK_THROWS_AS(staging_pool<int>{(1u << 30) + 1}, deeprec::error);
}

TEST_CASE(
    "packed_layout: slices that no address can count don't fit, and neither does what comes after them") {
  constexpr std::size_t most = (std::numeric_limits<std::size_t>::max)() / 2;
  for (const std::size_t size : {most + 1, most, most - 255, most / 2 + 1}) {
    CAPTURE(size);
    packed_layout layout;
    std::size_t end = layout.add<char>(size).size;
    for (int k = 0; k < 3; ++k) {
      const auto slice = layout.add<char>(most - 300);
      if (slice.size == 0) continue;
      CHECK(slice.offset >= end);
      CHECK(slice.offset <= most);
      CHECK(slice.size <= most - slice.offset);
      end = slice.offset + slice.size;
    }
    CHECK(!layout.fits());
    CHECK(layout.bytes() <= most);
  }
  packed_layout layout;
  CHECK(layout.add<int>(3).offset == 0);
  CHECK(layout.add<char>(1).offset == 256);
  CHECK(layout.bytes() == 512);
  CHECK(layout.fits());
}

template <class Rep, class Period>
std::chrono::steady_clock::time_point deadline_of(std::chrono::duration<Rep, Period> time) {
  return within(time).deadline;
}

TEST_CASE("within: any time of any unit, however large, small or negative") {
  using namespace std::chrono;
  constexpr auto forever = (steady_clock::time_point::max)();
  CHECK(deadline_of((nanoseconds::max)()) == forever);
  CHECK(deadline_of((microseconds::max)()) == forever);
  CHECK(deadline_of((milliseconds::max)()) == forever);
  CHECK(deadline_of((seconds::max)()) == forever);
  CHECK(deadline_of((minutes::max)()) == forever);
  CHECK(deadline_of((hours::max)()) == forever);
  CHECK(deadline_of(duration<std::uint64_t, std::milli>((std::numeric_limits<std::uint64_t>::max)())) ==
        forever);
  CHECK(deadline_of(duration<double>(std::numeric_limits<double>::infinity())) == forever);
  CHECK(deadline_of(duration<float, std::ratio<3600>>(1e30f)) == forever);
  CHECK(deadline_of(duration<std::int64_t, std::ratio<31'556'952>>(400)) == forever);  // years
  const auto begin = steady_clock::now();
  for (const auto passed :
       {deadline_of(hours(-1)), deadline_of((hours::min)()), deadline_of((milliseconds::min)()),
        deadline_of(0ms), deadline_of(duration<double>(-1e300)),
        deadline_of(duration<double>(std::numeric_limits<double>::quiet_NaN()))}) {
    CHECK(passed <= steady_clock::now());
  }
  const struct {
    steady_clock::time_point deadline;
    nanoseconds time;
  } exact[] = {
      {deadline_of(5ms), 5ms},
      {deadline_of(1ns), 1ns},
      {deadline_of(duration<double>(2.5)), 2'500ms},
      {deadline_of(duration<std::int8_t, std::ratio<3600>>(100)), 100h},
      {deadline_of(duration<std::int64_t, std::pico>(7'000)), 7ns},
      {deadline_of(hours(24 * 365 * 200)), hours(24 * 365 * 200)},
      {deadline_of(duration<std::int64_t, std::ratio<1001, 30000>>(std::int64_t{30} * 86400 * 365 * 200)),
       seconds(std::int64_t{1001} * 86400 * 365 * 200 / 1000)},
  };
  const auto end = steady_clock::now();
  for (const auto& e : exact) {
    CHECK(e.deadline >= begin + e.time);
    CHECK(e.deadline <= end + e.time);
  }
}

// Two threads that block in call() until release(): one of them leaves by an exception, and the other has to
// go on.
template <class Counts, class Call, class Release>
int one_of_two_throws(Counts counts, Call call, Release release) {
  return deeprec_test::in_child(
      [&] {
        std::atomic<int> threw{0};
        const auto blocked = [&] {
          try {
            call();
          } catch (const std::runtime_error&) {
            ++threw;
          }
        };
        std::thread a(blocked);
        std::thread b(blocked);
        deeprec_test::until_asleep(2, counts);
        release([&] { deeprec_test::until_asleep(2, counts); });
        a.join();
        b.join();
        return threw == 1 ? 0 : 1;
      },
      20);
}

TEST_CASE("queues: a thread that leaves a wait by an exception wakes the next one") {
  SUBCASE("mpmc_ring, pop") {
    mpmc<fragile> ring(8);
    auto first = ring.try_claim();
    REQUIRE(ring.try_emplace(2));
    first.emplace(1);
    const auto call = [&] {
      fragile out;
      static_cast<void>(ring.pop(out));
    };
    CHECK(one_of_two_throws([&] { return ring.pop_waits(); }, call,
                            [&](auto) {
                              fragile::until = 0;
                              first.publish();
                            }) == 0);
  }
  SUBCASE("mpmc_ring, push") {
    mpmc<fragile> ring(2);
    REQUIRE(ring.try_emplace(1));
    REQUIRE(ring.try_emplace(2));
    auto front = ring.try_peek();
    const auto call = [&] { static_cast<void>(ring.push(fragile(3))); };
    CHECK(
        one_of_two_throws([&] { return ring.push_waits(); }, call,
                          [&](auto until_asleep) {
                            const std::uint64_t parks = ring.push_waits().parks;
                            static_cast<void>(
                                ring.try_peek());  // the slot behind is free first: who is woken sleeps again
                            while (ring.push_waits().parks == parks) std::this_thread::yield();
                            until_asleep();
                            fragile::until = 0;
                            front.release();
                          }) == 0);
  }
  SUBCASE("reorder_buffer, take") {
    reorder_buffer<fragile> buffer(4);
    CHECK(buffer.try_put(1, fragile(1)));
    fragile zero(0);
    const auto call = [&] {
      fragile out;
      static_cast<void>(buffer.take(out));
    };
    CHECK(one_of_two_throws([&] { return buffer.take_waits(); }, call,
                            [&](auto) {
                              fragile::until = 1;  // the put moves once
                              static_cast<void>(buffer.try_put(0, std::move(zero)));
                            }) == 0);
  }
  SUBCASE("staging_queue, take") {
    staging_queue<fragile> q(4);
    auto first = q.reserve();
    CHECK(q.put(fragile(2)) == queue_result::ok);
    fragile one(1);
    CHECK(one_of_two_throws([&] { return q.stats().take; }, [&] { static_cast<void>(q.take().result()); },
                            [&](auto) {
                              fragile::until = 1;
                              static_cast<void>(first.put(std::move(one)));
                            }) == 0);
  }
}

#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__)) && !DEEPREC_TEST_TSAN
TEST_CASE(
    "deeprec::detail::std_atomics: where membarrier is refused after all, light fences are whole fences") {
  event_count<> registers_it;
  if (!deeprec::detail::std_atomics::light_fence_is_free()) return;
  CHECK(deeprec_test::in_child([] {
          // Answers EPERM to membarrier, as a filter that a program installs late does.
          sock_filter program[] = {
              BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
              BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
              BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
              BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
          };
          const sock_fprog filter{sizeof(program) / sizeof(*program), program};
          if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
              prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
            return 0;  // no filters here
          }
          if (syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0) return 1;
          deeprec::detail::std_atomics::heavy_fence(deeprec::detail::access::wait_fence);
          if (deeprec::detail::std_atomics::light_fence_is_free()) return 2;
          mpmc<int> ring(1);  // and everything goes on
          std::thread producer([&] {
            for (int k = 0; k < 20; ++k) static_cast<void>(ring.push(int(k)));
          });
          int out = -1;
          bool all = true;
          for (int k = 0; k < 20; ++k) all = ring.pop(out) == queue_result::ok && out == k && all;
          producer.join();
          return all ? 0 : 3;
        }) == 0);
}
#endif

template <class Ring>
void no_item_is_lost_or_leaked(Ring&& ring) {
  for (int at = 0; at < 6; ++at) {
    CAPTURE(at);
    int got = 0;
    int pushed = 0;
    {
      fragile out;
      fragile::until = at;
      for (int k = 1; k <= 4; ++k) {
        try {
          fragile item(k);
          if (ring.try_push(std::move(item))) ++pushed;
        } catch (const std::runtime_error&) {
        }
      }
      for (int k = 0; k < 8; ++k) {
        try {
          if (ring.try_pop(out)) ++got;
        } catch (const std::runtime_error&) {
          got += std::is_same_v<std::decay_t<Ring>, mpmc<fragile>> ? 1 : 0;  // there that item is gone
        }
      }
      fragile::until = -1;
    }
    CHECK(got == pushed);
    CHECK(fragile::alive == 0);
    // And the ring goes on, with all of its slots.
    std::size_t room = 0;
    while (ring.try_push(fragile(7))) ++room;
    CHECK(room == ring.capacity());
    fragile out;
    while (ring.try_pop(out)) {
    }
  }
  CHECK(fragile::alive == 0);
}

TEST_CASE("rings: a move that throws at any point costs no slot and leaks nothing") {
  no_item_is_lost_or_leaked(mpmc<fragile>(4));
  no_item_is_lost_or_leaked(make<spsc<fragile>>(4, spsc_layout::flags));
  no_item_is_lost_or_leaked(make<spsc<fragile>>(4, spsc_layout::counters));
}

TEST_CASE("rings: items that are left are destroyed with the ring, over the end of it too") {
  {
    mpmc<fragile> ring(3);
    auto pair_ring = make<spsc<fragile>>(3, spsc_layout::counters);
    fragile out;
    for (int k = 0; k < 2; ++k) {
      ring.try_push(fragile(k)), pair_ring.try_push(fragile(k));
      ring.try_pop(out), pair_ring.try_pop(out);
    }
    for (int k = 0; k < 3; ++k) ring.try_push(fragile(k)), pair_ring.try_push(fragile(k));
    reorder_buffer<fragile> gaps(4);
    CHECK(gaps.try_put(1, fragile(1)));
    CHECK(gaps.try_put(3, fragile(3)));
    CHECK(gaps.skip(2) == queue_result::ok);
  }
  CHECK(fragile::alive == 0);
}

TEST_CASE("rings: items that can only be moved") {
  mpmc<std::unique_ptr<int>> ring(2);
  CHECK(ring.try_push(std::make_unique<int>(1)));
  CHECK(ring.try_push(std::make_unique<int>(2)));
  auto kept = std::make_unique<int>(3);
  CHECK(!ring.try_push(std::move(kept)));
  REQUIRE(kept);  // full: untouched
  CHECK(**ring.try_pop() == 1);
  CHECK(ring.push(std::move(kept)) == queue_result::ok);
  CHECK(!kept);
  CHECK(**ring.try_pop() == 2);
  CHECK(**ring.try_pop() == 3);
  CHECK(!ring.try_pop().has_value());
}

TEST_CASE("rings: a deadline passes, a stop token wakes, and the item stays with the caller") {
  mpmc<std::string> ring(1);
  spsc<std::string> pair_ring(1);
  std::string item = "second";
  REQUIRE(ring.try_push(std::string("first")));
  REQUIRE(pair_ring.try_push(std::string("first")));
  const auto begin = std::chrono::steady_clock::now();
  CHECK(ring.push(std::move(item), within(3ms)) == queue_result::timed_out);
  CHECK(pair_ring.push(std::move(item), within(3ms)) == queue_result::timed_out);
  CHECK(std::chrono::steady_clock::now() - begin >= 6ms);
  CHECK(item == "second");

  std::stop_source stop;
  std::thread stopper([&] {
    std::this_thread::sleep_for(5ms);
    stop.request_stop();
  });
  CHECK(ring.push(std::move(item), {.stop = stop.get_token()}) == queue_result::stopped);
  CHECK(pair_ring.push(std::move(item), {.stop = stop.get_token()}) == queue_result::stopped);
  CHECK(item == "second");
  stopper.join();
  std::string out;
  CHECK(ring.pop(out) == queue_result::ok);
  CHECK(ring.pop(out, within(1ms)) == queue_result::timed_out);
  CHECK(ring.pop(out, within(-1h)) == queue_result::timed_out);
  CHECK(out == "first");
}

TEST_CASE("rings: closed takes no more, gives what it has, and then says so") {
  mpmc<int> ring(4);
  CHECK(ring.push(1) == queue_result::ok);
  auto late = ring.try_claim();
  ring.close();
  ring.close();
  CHECK(ring.push(2) == queue_result::closed);
  CHECK(!ring.try_push(2));
  int out = 0;
  CHECK(ring.pop(out) == queue_result::ok);
  CHECK(ring.pop(out, within(2ms)) == queue_result::timed_out);  // a slot is claimed: not the end yet
  std::thread other([&] {
    std::this_thread::sleep_for(3ms);
    late = {};
  });
  CHECK(ring.pop(out) == queue_result::closed);
  other.join();
}

TEST_CASE("wait strategies: each brings every item through a ring of one") {
  const auto through = [](auto&& ring) {
    std::thread producer([&] {
      for (int k = 0; k < 200; ++k) CHECK(ring.push(int(k)) == queue_result::ok);
    });
    int out = -1;
    for (int k = 0; k < 200; ++k) {
      CHECK(ring.pop(out) == queue_result::ok);
      CHECK(out == k);
    }
    CHECK(ring.pop(out, within(1ms)) == queue_result::timed_out);
    producer.join();
  };
  through(mpmc_ring<int, yield_wait>(1));
  through(mpmc_ring<int, park_wait>(1));
  through(spsc_ring<int, spin_wait>(1));
}

TEST_CASE("adaptive_wait: looks 5 to 50 us, longer when that would have helped") {
  std::uint64_t budget = 20'000;
  for (int i = 0; i < 100; ++i) budget = adaptive_wait::learn(budget, 1'000'000, true);
  CHECK(budget < 5'100);
  for (int i = 0; i < 100; ++i) budget = adaptive_wait::learn(budget, 60'000, true);
  CHECK(budget > 49'000);
  for (int i = 0; i < 100; ++i) budget = adaptive_wait::learn(budget, 8'000, false);
  CHECK(budget < 17'000);
  CHECK(budget >= 15'900);
}

TEST_CASE(
    "reorder_buffer: items leave by number, numbers beyond the window wait, skipped ones are passed over") {
  reorder_buffer<int> buffer(4);
  int out = -1;
  CHECK(buffer.try_put(3, 30));
  CHECK(buffer.try_put(1, 10));
  CHECK(!buffer.try_put(4, 40));
  CHECK(!buffer.try_take(out));
  CHECK(buffer.skip(0) == queue_result::ok);
  CHECK(buffer.try_take(out));
  CHECK(out == 10);
  CHECK(buffer.put(9, 90, within(1ms)) == queue_result::timed_out);
  CHECK(buffer.try_put(2, 20));
  for (const int k : {20, 30}) {
    CHECK(buffer.take(out) == queue_result::ok);
    CHECK(out == k);
  }
  constexpr int n = 3000;
  std::vector<std::thread> makers;
  std::atomic<int> number{4};
  for (int t = 0; t < 3; ++t) {
    makers.emplace_back([&] {
      for (int k = number++; k < n; k = number++) {
        CHECK(buffer.put(static_cast<std::uint64_t>(k), int(k)) == queue_result::ok);
      }
    });
  }
  bool in_order = true;
  for (int k = 4; k < n; ++k) in_order = buffer.take(out) == queue_result::ok && out == k && in_order;
  CHECK(in_order);
  for (std::thread& t : makers) t.join();
}

}  // namespace
