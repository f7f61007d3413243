// The scenarios that the explorer tries: programs for the queues' common face, and threads written out.
#pragma once

#include <memory>
#include <stop_token>
#include <utility>
#include <vector>

#include "queue/model/queues.hpp"

namespace deeprec_test::model {

using deeprec::spsc_layout;
using flags = pair_face<spsc_layout::flags>;
using counters = pair_face<spsc_layout::counters>;
using brittle_ring = ring_face_of<brittle>;
using brittle_flags = pair_face<spsc_layout::flags, brittle>;
using brittle_counters = pair_face<spsc_layout::counters, brittle>;
using brittle_staging = staging_face_of<brittle>;
using brittle_reorder = reorder_face_of<brittle>;
using reorder_face = reorder_face_of<watched>;
using S = step;

inline const program pair{{{S::put, 1}, {S::put, 2}}, {{S::take}, {S::take}}};
inline const program pair_soon{{{S::put_soon, 1}, {S::put_soon, 2}}, {{S::take_soon}}};
inline const program pair_try{{{S::try_put, 1}, {S::try_put, 2}, {S::try_put, 3}},
                              {{S::try_take}, {S::peek}, {S::try_take}}};
inline const program two_put{{{S::put, 1}}, {{S::put, 2}}, {{S::take}}};
inline const program two_take{{{S::put, 1}, {S::put, 2}}, {{S::take}}, {{S::take}}};
inline const program crossing{{{S::try_put, 1}, {S::try_take}}, {{S::try_put, 2}, {S::try_take}}};
inline const program closing{{{S::put, 1}, {S::close}}, {{S::take}, {S::take}}};
inline const program closing_beside{{{S::put, 1}}, {{S::close}}, {{S::take}}};
inline const program closing_full{{{S::try_put, 1}, {S::put, 2}}, {{S::close}}, {{S::take}}};
inline const program cancelling{{{S::put, 1}, {S::put, 2}}, {{S::cancel}}, {{S::take}}};
inline const program cancelled_takers{{{S::cancel}}, {{S::take}}, {{S::take}}};
inline const program resuming{{{S::put, 1}, {S::try_put, 2}}, {{S::cancel}, {S::resume}, {S::try_take}}};
inline const program dropping{{{S::reserve_drop}, {S::put, 1}}, {{S::take}}};
inline const program dropping_last{{{S::reserve_drop}}, {{S::close}}, {{S::take}}};
inline const program deadline_full{{{S::put, 1}, {S::put_soon, 2}}, {{S::take}, {S::close}}};
inline const program deadline_end{{{S::put, 1}, {S::put_soon, 2}, {S::close}}, {{S::take}, {S::take}}};
inline const program four{{{S::put, 1}}, {{S::put, 2}}, {{S::take}}, {{S::take}}};
// T's moves throw: in a put, in a take, and in the take of the first of two that were published behind each
// other.
inline const program throwing_put{{{S::put, 1}, {S::put_throws, 2}, {S::put, 3}}, {{S::take}, {S::take}}};
inline const program throwing_take{{{S::put_brittle, 1}, {S::put, 2}}, {{S::take}, {S::take}}};
inline const program throwing_beside{
    {{S::put, 1}, {S::put_throws, 2}}, {{S::put, 3}}, {{S::take}, {S::take}}};
inline const program throwing_behind{{{S::take}}, {{S::take}}, {{S::behind_brittle, 1}}};
inline const program throwing_last{{{S::take}}, {{S::take}}, {{S::put_brittle, 1}, {S::close}}};

// Who gets a buffer may write to it. Three threads that don't wait, or two that wait for one buffer.
template <int Threads, std::uint32_t Buffers>
struct pool_scenario : explorer::scenario {
  using pool_type = deeprec::staging_pool<watched, deeprec::park_wait, model_atomics>;
  int threads() const override { return Threads; }
  void run(int) override {
    auto lease = Threads == 3 ? pool.try_acquire() : pool.acquire();
    if (!lease) return;
    *lease = watched(1);
    static_cast<void>(lease->value());
  }
  pool_type pool{Buffers, [] { return watched(0); }};
};

// Each thread takes and gives back, one of them twice: exchanges fail, and tops come back.
struct pool_again : explorer::scenario {
  using pool_type = deeprec::staging_pool<watched, deeprec::park_wait, model_atomics>;
  int threads() const override { return 2; }
  void run(int t) override {
    for (int k = 0; k < (t == 0 ? 2 : 1); ++k) {
      auto first = pool.try_acquire();
      if (first) *first = watched(t);
      auto second = pool.try_acquire();
      if (second) *second = watched(t);
    }
  }
  void finish() override {
    auto a = pool.try_acquire();
    auto b = pool.try_acquire();
    if (!a || !b || &*a == &*b || pool.try_acquire()) explorer::current().fail("a buffer is lost or doubled");
  }
  pool_type pool{2, [] { return watched(0); }};
};

// A waiter whose time may be over takes a wake-up with it: the other one must not sleep on.
struct pool_deadline : explorer::scenario {
  using pool_type = deeprec::staging_pool<watched, deeprec::park_wait, model_atomics>;
  int threads() const override { return 3; }
  void run(int t) override {
    if (t == 2) {
      out.give_back();
    } else {
      auto lease = pool.acquire(t == 1 ? soon() : wait_limit{});
      if (lease) *lease = watched(t);
    }
  }
  pool_type pool{1, [] { return watched(0); }};
  pool_type::lease out = pool.acquire();
};

// The same for items: whoever is in time hands the item on.
template <class Face>
struct take_deadline : explorer::scenario {
  int threads() const override { return 3; }
  void run(int t) override {
    watched item(t);
    if (t == 2) {
      static_cast<void>(face.put(item, {}));
    } else if (face.take(item, t == 1 ? soon() : wait_limit{}) == queue_result::ok && t == 1) {
      static_cast<void>(face.put(item, {}));
    }
  }
  Face face{2};
};

// And for space: whoever got in time makes room again.
template <class Face>
struct put_deadline : explorer::scenario {
  put_deadline() {
    watched item(9);
    static_cast<void>(face.try_put(item));
  }
  int threads() const override { return 3; }
  void run(int t) override {
    watched item(t);
    if (t == 2) {
      static_cast<void>(face.take(item, {}));
    } else if (face.put(item, t == 1 ? soon() : wait_limit{}) == queue_result::ok && t == 1) {
      static_cast<void>(face.take(item, {}));
    }
  }
  Face face{1};
};

// A waiter that is stopped, beside one that is not.
template <class Face>
struct take_stopped : explorer::scenario {
  int threads() const override { return 4; }
  void run(int t) override {
    watched item(t);
    if (t == 3) {
      static_cast<void>(face.put(item, {}));
    } else if (t == 2) {
      stop.request_stop();
    } else if (t == 1) {
      if (face.take(item, {.stop = stop.get_token()}) == queue_result::ok)
        static_cast<void>(face.put(item, {}));
    } else {
      static_cast<void>(face.take(item, {}));
    }
  }
  std::stop_source stop;
  Face face{2};
};

// A waiter that is cancelled may have been woken for an item that comes after the resume, which the other one
// needs.
struct take_cancelled : explorer::scenario {
  int threads() const override { return 3; }
  void run(int t) override {
    watched item(t);
    if (t == 2) {
      face.cancel();
      face.resume();
      static_cast<void>(face.put(item, {}));
    } else if (t == 1) {
      if (face.take(item, soon()) == queue_result::ok) static_cast<void>(face.put(item, {}));
    } else {
      static_cast<void>(face.take(item, {}));
    }
  }
  staging_face face{2};
};

// A ring that was never full could be claimed at any moment.
struct never_full : explorer::scenario {
  using core = deeprec::detail::slot_ring<watched, model_atomics, std::uint32_t>;
  int threads() const override { return 2; }
  void run(int t) override {
    if (t == 0) {
      if (!ring.was_claimable()) explorer::current().fail("full with one item of three");
    } else {
      core::token slot;
      static_cast<void>(ring.claim(slot));
      ::new (static_cast<void*>(slot.place->bytes)) watched(1);
      ring.publish(slot);
    }
  }
  core ring{3, std::pmr::get_default_resource(), 0};
};

// Two producers sleep while slot 0 is not free; a third thread comes between when it is.
struct put_between : explorer::scenario {
  using ring_type = deeprec::mpmc_ring<watched, deeprec::park_wait, model_atomics, std::uint32_t>;
  put_between() {
    for (int k = 0; k < 3; ++k) static_cast<void>(ring.try_push(watched(k)));
    front = ring.try_peek();
  }
  int threads() const override { return 4; }
  void run(int t) override {
    if (t < 2) {
      static_cast<void>(ring.push(watched(t)));
    } else if (t == 3) {
      static_cast<void>(ring.try_push(watched(t)));
    } else {
      static_cast<void>(ring.try_pop());
      static_cast<void>(ring.try_pop());
      front.release();
    }
  }
  ring_type ring{3};
  deeprec::ring_view<ring_type> front;
};

struct reorder_scenario : explorer::scenario {
  using buffer_type = deeprec::reorder_buffer<watched, deeprec::park_wait, model_atomics>;
  int threads() const override { return 2; }
  void run(int t) override {
    if (t == 0) {  // 1, while only 0 has a slot
      static_cast<void>(buffer.put(1, watched(1)));
      return;
    }
    static_cast<void>(buffer.put(0, watched(0)));
    for (int k = 0; k < 2; ++k) {
      watched item;
      static_cast<void>(buffer.take(item));
      if (item.value() != k) explorer::current().fail("out of order");
    }
  }
  buffer_type buffer{1};
};

// Number 0 is skipped by a put that throws, number 1 waits for its slot.
struct reorder_throws : explorer::scenario {
  using buffer_type = deeprec::reorder_buffer<brittle, deeprec::park_wait, model_atomics>;
  int threads() const override { return 2; }
  void run(int t) override {
    if (t == 0) {
      static_cast<void>(buffer.put(1, brittle(1)));
      return;
    }
    try {
      static_cast<void>(buffer.put(0, brittle(0, 0)));
      explorer::current().fail("a put did not throw");
    } catch (const brittle::broken&) {
    }
    brittle item;
    static_cast<void>(buffer.take(item));
    if (item.value() != 1) explorer::current().fail("out of order");
  }
  buffer_type buffer{1};
};

// The second record alone exceeds the budget, and its place comes first.
struct budget_scenario : explorer::scenario {
  using queue_type = deeprec::staging_queue<watched, deeprec::park_wait, model_atomics>;
  static std::size_t bytes(const watched& w) { return static_cast<std::size_t>(w.value()); }
  int threads() const override { return 2; }
  void run(int t) override {
    if (t == 0) {
      auto first = queue.reserve();
      auto second = queue.reserve();
      static_cast<void>(second.put(watched(2)));
      static_cast<void>(first.put(watched(3)));
    } else {
      for (const int wanted : {3, 2}) {
        auto got = queue.take();
        if (!got || got->value() != wanted) explorer::current().fail("wrong record");
      }
    }
  }
  queue_type queue{{.capacity = 2, .byte_budget = 2}, &bytes};
};

// A put that throws gives its bytes back to the one that waits for them.
struct budget_throws : explorer::scenario {
  using queue_type = deeprec::staging_queue<brittle, deeprec::park_wait, model_atomics>;
  static std::size_t bytes(const brittle& w) { return static_cast<std::size_t>(w.value()); }
  int threads() const override { return 2; }
  void run(int t) override {
    if (t == 0) {
      try {
        static_cast<void>(queue.put(brittle(2, 0)));
        explorer::current().fail("a put did not throw");
      } catch (const brittle::broken&) {
      }
    } else {
      static_cast<void>(queue.put(brittle(1)));
      auto got = queue.take();
      if (!got || got->value() != 1) explorer::current().fail("wrong record");
    }
  }
  queue_type queue{{.capacity = 2, .byte_budget = 2}, &bytes};
};

// Batches of two through a spsc_ring of two, by tries.
template <spsc_layout Layout>
struct batches : explorer::scenario {
  using ring_type = deeprec::spsc_ring<watched, deeprec::park_wait, model_atomics, std::uint8_t>;
  int threads() const override { return 2; }
  void run(int t) override {
    std::array<watched, 2> two;
    for (int round = 0; round < 2; ++round) {
      if (t == 0) {
        for (watched& w : two) w = watched(pushed + 1 + static_cast<int>(&w - two.data()));
        pushed += static_cast<int>(ring.try_push_n(two.begin(), 2));
      } else {
        const std::size_t n = ring.try_pop_n(two.begin(), 2);
        for (std::size_t i = 0; i < n; ++i) {
          if (two[i].value() != ++popped) explorer::current().fail("out of order");
        }
      }
    }
  }
  ring_type ring{2, std::pmr::get_default_resource(), Layout, 254};
  int pushed = 0;
  int popped = 0;
};

// Somebody else looks how many items there are; there is never more than one.
template <class Ring>
struct counted : explorer::scenario {
  int threads() const override { return 3; }
  void run(int t) override {
    if (t == 0) {
      static_cast<void>(ring.try_push(watched(1)));
    } else if (t == 1) {
      static_cast<void>(ring.try_pop());
    } else if (ring.was_size() > 1) {
      explorer::current().fail("more items than were ever put");
    }
  }
  Ring ring{3};
};
struct counters_of_three : deeprec::spsc_ring<watched, deeprec::park_wait, model_atomics, std::uint8_t> {
  explicit counters_of_three(std::size_t n)
      : spsc_ring(n, std::pmr::get_default_resource(), spsc_layout::counters, 254) {}
};

// A claim that dies with an item in it, passed over, and its slot used again.
struct hole_scenario : explorer::scenario {
  using ring_type = deeprec::mpmc_ring<watched, deeprec::park_wait, model_atomics, std::uint32_t>;
  int threads() const override { return 2; }
  void run(int t) override {
    if (t == 0) {
      auto claim = ring.try_claim();
      if (claim) claim.emplace(1);
    } else {
      static_cast<void>(ring.try_pop());
      static_cast<void>(ring.try_push(watched(2)));
    }
  }
  ring_type ring{1};
};

// Whoever is answered closed or cancelled, or open and going on again, sees what came before. The data is
// plain.
enum class told { closed_put, closed_take, closed_asked, open_asked, cancelled, resumed };
template <told How>
struct told_scenario : explorer::scenario {
  using queue_type = deeprec::staging_queue<watched, deeprec::park_wait, model_atomics>;
  told_scenario() {
    if (How == told::open_asked) queue.close();
    if (How == told::resumed) queue.cancel();
  }
  int threads() const override { return 2; }
  void run(int t) override {
    if (t == 0) {
      data = watched(7);
      if (How == told::open_asked || How == told::resumed) {
        queue.resume();
      } else if (How == told::cancelled) {
        queue.cancel();
      } else {
        queue.close();
      }
    } else if (is_told() && data.value() != 7) {
      explorer::current().fail("old data");
    }
  }
  bool is_told() {
    switch (How) {
      case told::closed_put:
        return queue.try_put(watched(1)) == queue_result::closed;
      case told::closed_take:
        return queue.try_take().result() == queue_result::closed;
      case told::closed_asked:
        return queue.is_closed();
      case told::open_asked:
        return !queue.is_closed();
      case told::cancelled:
        return queue.try_take().result() == queue_result::cancelled;
      case told::resumed:
        return queue.try_take().result() != queue_result::cancelled;
    }
    return false;
  }
  queue_type queue{1};
  watched data{0};
};

// A queue that is closed and resumed at once is one or the other: where it is closed, consumers see it.
template <class Queue>
struct close_beside_resume : explorer::scenario {
  int threads() const override { return 2; }
  void run(int t) override {
    if (t == 0) {
      queue.close();
    } else {
      queue.resume();
    }
  }
  void finish() override {
    if (queue.is_closed() && queue.try_take().result() != queue_result::closed) {
      explorer::current().fail("closed, and consumers wait for more");
    }
  }
  Queue queue{1};
};
using resumed_queue = close_beside_resume<deeprec::staging_queue<watched, deeprec::park_wait, model_atomics>>;

// What every waiting call consists of, with nothing else: two wait until a word is set, one of them for a
// time that may be over when its wake-up comes. The one that notifies is the last: the search begins with
// both asleep.
struct room_deadline : explorer::scenario {
  int threads() const override { return 3; }
  void run(int t) override {
    if (t == 2) {
      ready.store(1, {deeprec::detail::access::position, std::memory_order_release});
      room.notify_one();
      return;
    }
    const auto look = [&] {
      return ready.load({deeprec::detail::access::position, std::memory_order_acquire}) != 0
                 ? queue_result::ok
                 : queue_result::not_now;
    };
    static_cast<void>(room.wait_for(look, t == 1 ? soon() : wait_limit{}, [&]() noexcept {
      if (ready.load({deeprec::detail::access::position, std::memory_order_relaxed}) != 0) room.notify_one();
    }));
  }
  model_atomic<std::uint32_t> ready{0};
  deeprec::waiting_room<deeprec::park_wait, model_atomics> room;
};

// One look of each kind at the memory of a scenario, with what the explorer is allowed.
template <class Scenario>
outcome explore_scenario(const mutant& broken, const limits& bounds) {
  explorer x;
  return x.explore([] { return std::make_unique<Scenario>(); }, broken, bounds);
}

}  // namespace deeprec_test::model
