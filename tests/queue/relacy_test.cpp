// The rings under Relacy, a race detector that simulates C++'s memory: as they are, and weakened at
// one access at a time, which it has to notice. Built only where Relacy's header is found.
#include <deeprec/queue/mpmc_ring.hpp>
#include <deeprec/queue/spsc_ring.hpp>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <type_traits>
#include <utility>

#include "queue/relacy_runs.hpp"  // last: it brings macros

namespace {

using namespace deeprec_test;
using deeprec::queue_result;
using deeprec::spsc_layout;
using deeprec::detail::access;

// Positions wrap in the middle of every simulation.
template <class Wait>
using pair_ring = deeprec::spsc_ring<checked_item, Wait, relacy_atomics, std::uint8_t>;
template <class Wait>
using shared_ring = deeprec::mpmc_ring<checked_item, Wait, relacy_atomics, std::uint32_t>;

template <class Ring>
std::unique_ptr<Ring> make_ring(std::size_t capacity, ground& memory, spsc_layout layout) {
  if constexpr (std::is_same_v<typename Ring::token, checked_item*>) {
    return std::make_unique<Ring>(capacity, &memory, layout, std::uint8_t{254});
  } else {
    return std::make_unique<Ring>(capacity, &memory, static_cast<std::uint32_t>(-1));
  }
}

template <class Ring>
void put(Ring& ring, int value) {
  checked_item item(value);
  while (!ring.try_push(std::move(item))) relacy_atomics::yield();
}
template <class Ring>
int take(Ring& ring) {
  checked_item item;
  while (!ring.try_pop(item)) relacy_atomics::yield();
  return item.value();
}

// The last thread takes what the others put: each producer's items in order, all of them, once.
// While the ring is full or empty they try again, or sleep.
template <class Ring, bool Sleeps, int Producers, int Each, std::size_t Capacity,
          spsc_layout Layout = spsc_layout::automatic>
struct hand_over : rl::test_suite<hand_over<Ring, Sleeps, Producers, Each, Capacity, Layout>, Producers + 1> {
  ground memory;
  // Not in place: Relacy allocates its suites without regard to their alignment.
  std::unique_ptr<Ring> ring = make_ring<Ring>(Capacity, memory, Layout);

  void thread(unsigned index) {
    if (index < Producers) {
      for (int i = 1; i <= Each; ++i) {
        const int value = static_cast<int>(index) * 16 + i;
        if constexpr (Sleeps) {
          RL_ASSERT(ring->push(checked_item(value)) == queue_result::ok);
        } else {
          put(*ring, value);
        }
      }
      return;
    }
    int last[Producers] = {};
    for (int i = 0; i < Producers * Each; ++i) {
      int value = 0;
      if constexpr (Sleeps) {
        checked_item item;
        RL_ASSERT(ring->pop(item) == queue_result::ok);
        value = item.value();
      } else {
        value = take(*ring);
      }
      RL_ASSERT(value / 16 < Producers);
      int& before = last[value / 16];
      RL_ASSERT(value % 16 == before + 1);
      before = value % 16;
    }
  }
  void after() { RL_ASSERT(ring->was_size() == 0); }
};

// What was put before the close is taken, and then the consumer is told.
struct closing : rl::test_suite<closing, 2> {
  using ring_type = shared_ring<deeprec::park_wait>;
  ground memory;
  std::unique_ptr<ring_type> ring = make_ring<ring_type>(2, memory, spsc_layout::automatic);

  void thread(unsigned index) {
    if (index == 0) {
      RL_ASSERT(ring->push(checked_item(1)) == queue_result::ok);
      ring->close();
      return;
    }
    checked_item item;
    RL_ASSERT(ring->pop(item) == queue_result::ok);
    RL_ASSERT(ring->pop(item) == queue_result::closed);
  }
};

long timeouts = 0;  // of all simulations

// An item whose put ran out of time is still the producer's; one whose put didn't arrives.
struct deadlines : rl::test_suite<deadlines, 2> {
  using ring_type = shared_ring<deeprec::park_wait>;
  ground memory;
  std::unique_ptr<ring_type> ring = make_ring<ring_type>(1, memory, spsc_layout::automatic);
  int put_items = 0;
  int taken_items = 0;

  void thread(unsigned index) {
    const deeprec::wait_limit soon{relacy_atomics::now(), {}};
    for (int i = 0; i < 2; ++i) {
      if (index == 0) {
        checked_item item(i + 1);
        const queue_result r = ring->push(std::move(item), soon);
        RL_ASSERT(r == queue_result::ok || r == queue_result::timed_out);
        RL_ASSERT(item.value() == (r == queue_result::ok ? checked_item::gone : i + 1));
        timeouts += r == queue_result::timed_out ? 1 : 0;
        put_items += r == queue_result::ok ? 1 : 0;
      } else {
        checked_item item;
        const queue_result r = ring->pop(item, soon);
        RL_ASSERT(r == queue_result::ok || r == queue_result::timed_out);
        taken_items += r == queue_result::ok ? 1 : 0;
      }
    }
  }
  void after() {
    checked_item item;
    while (ring->try_pop(item)) ++taken_items;
    RL_ASSERT(taken_items == put_items);
  }
};

}  // namespace

int main(int count, char** words) {
  if (count > 1) executions = std::strtoull(words[1], nullptr, 10);
  using deeprec::park_wait;
  using deeprec::spin_wait;
  using pair = pair_ring<spin_wait>;
  using shared = shared_ring<spin_wait>;
  using sleeping_pair = pair_ring<park_wait>;
  using sleeping_shared = shared_ring<park_wait>;
  using flags_1 = hand_over<pair, false, 1, 3, 1, spsc_layout::flags>;
  using flags_2 = hand_over<pair, false, 1, 4, 2, spsc_layout::flags>;
  using counters_1 = hand_over<pair, false, 1, 3, 1, spsc_layout::counters>;
  using counters_2 = hand_over<pair, false, 1, 4, 2, spsc_layout::counters>;
  using shared_1 = hand_over<shared, false, 2, 2, 1>;
  using shared_2 = hand_over<shared, false, 2, 2, 2>;
  using few = hand_over<shared, false, 2, 1, 1>;
  using sleeping_flags = hand_over<sleeping_pair, true, 1, 3, 1, spsc_layout::flags>;
  using sleeping_two = hand_over<sleeping_shared, true, 2, 2, 1>;

  holds<flags_1>("spsc_ring, flags, capacity 1", rl::sched_random);
  holds<flags_2>("spsc_ring, flags, capacity 2", rl::sched_random);
  holds<counters_1>("spsc_ring, counters, capacity 1", rl::sched_random);
  holds<counters_2>("spsc_ring, counters, capacity 2", rl::sched_random);
  holds<shared_1>("mpmc_ring, 2 producers, capacity 1", rl::sched_random);
  holds<shared_2>("mpmc_ring, 2 producers, capacity 2", rl::sched_random);
  holds<sleeping_flags>("spsc_ring, asleep, capacity 1", rl::sched_random);
  holds<sleeping_two>("mpmc_ring, 2 producers, asleep, capacity 1", rl::sched_random);
  holds<closing>("mpmc_ring, closed while the consumer sleeps", rl::sched_random);
  holds<deadlines>("mpmc_ring, deadlines on both sides", rl::sched_random);
  failures += timeouts > 0 ? 0 : 1;

  // All orders with at most so many switches away from a thread that could have gone on.
  holds<flags_1>("spsc_ring, flags, capacity 1", rl::sched_bound, 3);
  holds<counters_2>("spsc_ring, counters, capacity 2", rl::sched_bound, 3);
  holds<few>("mpmc_ring, 2 producers, capacity 1", rl::sched_bound, 1);

  const auto race = rl::test_result_data_race;
  breaks<flags_1>("spsc_ring: flag_publish", deeprec::detail::access::flag_publish, race);
  breaks<flags_1>("spsc_ring: flag_seen_full", deeprec::detail::access::flag_seen_full, race);
  breaks<flags_1>("spsc_ring: flag_release", deeprec::detail::access::flag_release, race);
  breaks<flags_1>("spsc_ring: flag_seen_free", deeprec::detail::access::flag_seen_free, race);
  breaks<counters_1>("spsc_ring: count_publish", deeprec::detail::access::count_publish, race);
  breaks<counters_1>("spsc_ring: count_seen", deeprec::detail::access::count_seen, race);
  breaks<counters_1>("spsc_ring: taken_publish", deeprec::detail::access::taken_publish, race);
  breaks<counters_1>("spsc_ring: taken_seen", deeprec::detail::access::taken_seen, race);
  breaks<shared_1>("mpmc_ring: slot_publish", deeprec::detail::access::slot_publish, race);
  breaks<shared_1>("mpmc_ring: slot_seen_full", deeprec::detail::access::slot_seen_full, race);
  breaks<shared_1>("mpmc_ring: slot_release", deeprec::detail::access::slot_release, race);
  breaks<shared_1>("mpmc_ring: slot_seen_free", deeprec::detail::access::slot_seen_free, race);
  breaks<sleeping_flags>("event_count: no notify_one_fence", deeprec::detail::access::notify_one_fence,
                         rl::test_result_deadlock);
  breaks<sleeping_flags>("event_count: no wait_fence", deeprec::detail::access::wait_fence,
                         rl::test_result_deadlock);

  std::printf(failures == 0 ? "all as expected\n" : "%d not as expected\n", failures);
  return failures == 0 ? 0 : 1;
}
