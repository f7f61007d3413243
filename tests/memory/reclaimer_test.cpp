// Pins and epochs, by real threads. Every order of a few threads under weak memory:
// tests/queue/reclaimer_orders_test.cpp.

#include <deeprec/memory/reclaimer.hpp>

#include "support/sanitizers.hpp"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

using namespace deeprec;

namespace {

using pin = reclaimer::pin;
static_assert(std::is_nothrow_move_constructible_v<pin> && std::is_nothrow_move_assignable_v<pin>);
static_assert(!std::is_copy_constructible_v<pin> && !std::is_copy_assignable_v<pin>);
static_assert(!std::is_copy_constructible_v<reclaimer> && !std::is_move_constructible_v<reclaimer>);
constexpr int places = 64;

// Moves a pin to another thread, which ends it.
template <class Pin>
void end_elsewhere(Pin one) {
  std::thread([mine = std::move(one)]() mutable { const Pin ends = std::move(mine); }).join();
}

}  // namespace

TEST_CASE("reclaimer: each call of unlinked ends one epoch") {
  reclaimer readers;
  CHECK(readers.epoch() == 1);
  CHECK(readers.unlinked() == 1);
  CHECK(readers.unlinked() == 2);
  CHECK(readers.epoch() == 3);
}

TEST_CASE("reclaimer: an epoch is over when it has ended and no pin is as old") {
  reclaimer readers;
  CHECK(!readers.over(1));  // it goes on, although nobody reads
  CHECK(!readers.over(2));
  pin first = readers.enter();
  const std::uint64_t one = readers.unlinked();
  CHECK(!readers.over(one));
  pin second = readers.enter();
  const std::uint64_t two = readers.unlinked();
  CHECK(!readers.over(one));
  CHECK(!readers.over(two));
  first = {};
  CHECK(readers.over(one));  // the second pin came after it
  CHECK(!readers.over(two));
  second = {};
  CHECK(readers.over(two));
  CHECK(!readers.over(two + 1));
}

TEST_CASE("reclaimer: pins in reverse order, and pins that are younger, keep nothing that is older") {
  reclaimer readers;
  std::vector<pin> pins;
  std::vector<std::uint64_t> ended;
  for (int k = 0; k < 8; ++k) {
    pins.push_back(readers.enter());
    ended.push_back(readers.unlinked());
  }
  while (!pins.empty()) {
    for (const std::uint64_t e : ended) CHECK(!readers.over(e));
    pins.pop_back();
  }
  for (const std::uint64_t e : ended) CHECK(readers.over(e));
  const pin late = readers.enter();
  for (const std::uint64_t e : ended) CHECK(readers.over(e));
}

TEST_CASE("reclaimer: pins beyond the last place are counted, and while there is one nothing is over") {
  reclaimer readers;
  const std::uint64_t before = readers.unlinked();
  CHECK(readers.over(before));
  std::vector<pin> pins;
  for (int k = 0; k < places; ++k) {
    pins.push_back(readers.enter());
    CHECK(readers.pins() == k + 1);
  }
  CHECK(readers.over(before));
  pin beyond = readers.enter();
  pin another = readers.enter();
  CHECK(readers.pins() == places + 2);
  CHECK(!readers.over(before));  // it keeps more than it has to
  pins.erase(pins.begin() + 10);
  CHECK(!readers.over(before));
  beyond = {};
  CHECK(!readers.over(before));
  another = {};
  CHECK(readers.over(before));
  CHECK(readers.pins() == places - 1);
  const std::uint64_t now = readers.unlinked();
  CHECK(!readers.over(now));
  pins.clear();
  CHECK(readers.over(now));
  CHECK(readers.pins() == 0);
}

TEST_CASE("reclaimer: places are given back") {
  reclaimer readers;
  const std::uint64_t before = readers.unlinked();
  for (int k = 0; k < 10 * places; ++k) {
    std::vector<pin> some;
    for (int i = 0; i < k % (places + 1); ++i) some.push_back(readers.enter());
    CHECK(readers.over(before));  // no pin had to go to the crowd
  }
  CHECK(readers.pins() == 0);
}

TEST_CASE("reclaimer: a pin that moves is one pin") {
  basic_reclaimer<2> readers;
  using small_pin = basic_reclaimer<2>::pin;
  {
    small_pin empty;
    small_pin first = readers.enter();
    small_pin moved(std::move(first));
    CHECK(readers.pins() == 1);
    empty = std::move(moved);
    CHECK(readers.pins() == 1);
    small_pin& same = empty;
    empty = std::move(same);
    CHECK(readers.pins() == 1);
    small_pin second = readers.enter();
    CHECK(readers.pins() == 2);
    second = std::move(empty);  // the one that it held ends
    CHECK(readers.pins() == 1);
    second = {};
    CHECK(readers.pins() == 0);
  }
  CHECK(readers.pins() == 0);
  {
    // Between places and the crowd.
    const std::uint64_t ended = readers.unlinked();
    small_pin a = readers.enter(), b = readers.enter(), beyond = readers.enter();
    CHECK(!readers.over(ended));
    b = std::move(beyond);
    CHECK(readers.pins() == 2);
    CHECK(!readers.over(ended));
    small_pin in_place = readers.enter();
    std::swap(b, in_place);
    in_place = {};
    CHECK(readers.over(ended));
    CHECK(readers.pins() == 2);
  }
  CHECK(readers.pins() == 0);
}

TEST_CASE("reclaimer: a pin ends on another thread, from a place and from the crowd") {
  basic_reclaimer<1> readers;
  auto in_place = readers.enter();
  auto beyond = readers.enter();
  const std::uint64_t ended = readers.unlinked();
  CHECK(readers.pins() == 2);
  end_elsewhere(std::move(in_place));
  CHECK(readers.pins() == 1);
  CHECK(!readers.over(ended));
  end_elsewhere(std::move(beyond));
  CHECK(readers.pins() == 0);
  CHECK(readers.over(ended));
}

TEST_CASE("reclaimer: a pin that is never dropped keeps everything after it, and nobody waits") {
  reclaimer readers;
  const std::uint64_t before = readers.unlinked();
  const pin forgotten = readers.enter();
  for (int k = 0; k < 1000; ++k) {
    const std::uint64_t ended = readers.unlinked();
    CHECK(!readers.over(ended));
    static_cast<void>(readers.enter());
  }
  CHECK(readers.over(before));
  CHECK(readers.pins() == 1);  // what its owner reports
}

TEST_CASE("reclaimer: threads that begin in different places") {
  reclaimer readers;
  std::atomic<int> inside{0};
  std::atomic<bool> leave{false};
  std::vector<std::thread> threads;
  constexpr int count = 8, each = 9;  // more than there are places
  for (int t = 0; t < count; ++t) {
    threads.emplace_back([&] {
      std::vector<pin> mine;
      for (int k = 0; k < each; ++k) mine.push_back(readers.enter());
      ++inside;
      while (!leave.load()) std::this_thread::yield();
    });
  }
  while (inside.load() < count) std::this_thread::yield();
  CHECK(readers.pins() == count * each);
  const std::uint64_t ended = readers.unlinked();
  CHECK(!readers.over(ended));
  leave = true;
  for (std::thread& t : threads) t.join();
  CHECK(readers.pins() == 0);
  CHECK(readers.over(ended));
}

namespace {

// Plain memory, so that the thread sanitizer watches it.
struct page {
  std::uint64_t number = 0;
  std::array<std::uint64_t, 6> copies{};
  void write(std::uint64_t n) {
    number = n;
    copies.fill(n);
  }
  [[nodiscard]] bool is_whole() const {
    for (const std::uint64_t copy : copies) {
      if (copy != number) return false;
    }
    return true;
  }
};

struct counts {
  std::uint64_t faults, reads, reuses;
};

// Readers follow a link to the newest page. The owner replaces the page and writes to those that are over.
// Begins when each reader has read once; ends after `enough` reuses, or after a minute. `hands_over`: some
// readers leave their pin to the next one, so there is always a pin. Where that one is in the crowd, nothing
// is over.
template <int Places>
counts replace_pages(int threads, bool hands_over, std::uint64_t enough) {
  using reclaimer_type = basic_reclaimer<Places>;
  struct handed {
    std::mutex mutex;
    typename reclaimer_type::pin its_pin;
    const page* read = nullptr;
  };
  reclaimer_type readers;
  std::vector<std::unique_ptr<page>> all;
  all.push_back(std::make_unique<page>());
  std::atomic<page*> newest{all.front().get()};
  std::atomic<bool> ends{false};
  std::atomic<std::uint64_t> faults{0}, reads{0};
  std::atomic<int> begun{0};
  handed between;
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; ++t) {
    pool.emplace_back([&] {
      std::uint64_t seen = 0, count = 0, wrong = 0;
      while (!ends.load(std::memory_order_relaxed)) {
        {
          auto mine = readers.enter();
          const page* const at = newest.load(std::memory_order_acquire);
          wrong += at->is_whole() && at->number >= seen ? 0 : 1;
          seen = at->number;
          if (hands_over && count % 16 == 0) {
            const std::lock_guard lock(between.mutex);
            if (between.read != nullptr) wrong += between.read->is_whole() ? 0 : 1;
            between.its_pin = std::move(mine);
            between.read = at;
          }
        }
        if (++count == 1) ++begun;
        if (count % 64 == 0) std::this_thread::yield();
      }
      const std::lock_guard lock(between.mutex);
      between.read = nullptr;
      between.its_pin = {};
      faults += wrong;
      reads += count;
    });
  }
  struct retired {
    page* what;
    std::uint64_t ended;
  };
  std::deque<retired> waiting;
  std::uint64_t number = 0, reuses = 0;
  while (begun < threads) std::this_thread::yield();
  const auto last = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (reuses < enough && std::chrono::steady_clock::now() < last) {
    page* next = nullptr;
    if (!waiting.empty() && readers.over(waiting.front().ended)) {
      next = waiting.front().what;
      waiting.pop_front();
      ++reuses;
    } else if (all.size() < 1000) {
      next = all.emplace_back(std::make_unique<page>()).get();
    } else {
      std::this_thread::yield();
      continue;
    }
    next->write(++number);
    page* const old = newest.exchange(next, std::memory_order_release);
    waiting.push_back({old, readers.unlinked()});
  }
  ends = true;
  for (std::thread& t : pool) t.join();
  return {faults.load(), reads.load(), reuses};
}

}  // namespace

TEST_CASE("reclaimer: readers beside an owner that writes to what is over") {
  const std::uint64_t enough = DEEPREC_TEST_SANITIZED ? 2'000 : 20'000;
  const auto holds = [](const counts& c) {
    CHECK(c.faults == 0);
    CHECK(c.reads > 0);
    CHECK(c.reuses > 0);
  };
  holds(replace_pages<64>(3, true, enough));
  holds(
      replace_pages<1>(3, false, enough));  // pins in the crowd, and pins that follow each other in one place
}
