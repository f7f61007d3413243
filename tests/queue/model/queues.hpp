// Scenarios for the explorer: threads that call the queues of queue/, and what must hold at their end.
#pragma once

#include <deeprec/queue/mpmc_ring.hpp>
#include <deeprec/queue/reorder_buffer.hpp>
#include <deeprec/queue/spsc_ring.hpp>
#include <deeprec/queue/staging_pool.hpp>
#include <deeprec/queue/staging_queue.hpp>
#include <deeprec/queue/waiting_room.hpp>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "queue/history.hpp"
#include "queue/model/explorer.hpp"

namespace deeprec_test::model {

using deeprec::queue_result;
using deeprec::wait_limit;
using deeprec::detail::access;

// One call of a scenario. `soon`: with a deadline, which may pass at any moment.
struct step {
  enum kind {
    put,
    put_soon,
    try_put,
    take,
    take_soon,
    try_take,
    peek,
    close,
    cancel,
    resume,
    reserve_drop,   // a place that nothing is put into
    put_behind,     // a place, then value + 1 into the next one, then value into the first
    put_throws,     // a put whose move throws: nothing was put
    put_brittle,    // a put of an item whose next move throws, in the take
    behind_brittle  // put_behind, with such an item in the first place
  } what;
  int value = 0;
};
using program = std::vector<std::vector<step>>;

inline wait_limit soon() { return {std::chrono::steady_clock::time_point{}, {}}; }

// --- the queues, with one face ---------------------------------------------------------------------

// What a take that throws leaves: the item is gone, or still there.
template <class Item>
struct ring_face_of {  // mpmc_ring
  using item_type = Item;
  static constexpr bool throwing_take_drops = true;
  using queue = deeprec::mpmc_ring<Item, deeprec::park_wait, model_atomics, std::uint32_t>;
  // Positions wrap in the middle of every scenario.
  explicit ring_face_of(std::size_t capacity)
      : q(capacity, std::pmr::get_default_resource(), static_cast<std::uint32_t>(-1)) {}
  queue_result put(Item& item, const wait_limit& limit) { return q.push(std::move(item), limit); }
  queue_result try_put(Item& item) {
    return q.try_push(std::move(item)) ? queue_result::ok
           : q.is_closed()             ? queue_result::closed
                                       : queue_result::not_now;
  }
  queue_result take(Item& item, const wait_limit& limit) { return q.pop(item, limit); }
  queue_result try_take(Item& item) { return q.try_pop(item) ? queue_result::ok : queue_result::not_now; }
  queue_result peek(Item& item) {
    auto view = q.try_peek();
    if (!view) return queue_result::not_now;
    item = std::move(*view);
    return queue_result::ok;
  }
  void drop() { auto c = q.try_claim(); }
  void put_behind(Item& first, Item& second) {
    auto c = q.try_claim();
    static_cast<void>(q.push(std::move(second)));
    c.emplace(std::move(first));
    c.publish();
  }
  void close() { q.close(); }
  void cancel() {}
  void resume() {}
  queue q;
};
using ring_face = ring_face_of<watched>;

template <deeprec::spsc_layout Layout, class Item = watched>
struct pair_face {  // spsc_ring
  using item_type = Item;
  static constexpr bool throwing_take_drops = false;
  using queue = deeprec::spsc_ring<Item, deeprec::park_wait, model_atomics, std::uint8_t>;
  explicit pair_face(std::size_t capacity)
      : q(capacity, std::pmr::get_default_resource(), Layout, static_cast<std::uint8_t>(254)) {}
  queue_result put(Item& item, const wait_limit& limit) { return q.push(std::move(item), limit); }
  queue_result try_put(Item& item) {
    return q.try_push(std::move(item)) ? queue_result::ok : queue_result::not_now;
  }
  queue_result take(Item& item, const wait_limit& limit) { return q.pop(item, limit); }
  queue_result try_take(Item& item) { return q.try_pop(item) ? queue_result::ok : queue_result::not_now; }
  queue_result peek(Item& item) {
    auto view = q.try_peek();
    if (!view) return queue_result::not_now;
    item = std::move(*view);
    return queue_result::ok;
  }
  void drop() { auto c = q.try_claim(); }
  void put_behind(Item&, Item&) {}
  void close() {}
  void cancel() {}
  void resume() {}
  queue q;
};

template <class Item>
struct staging_face_of {
  using item_type = Item;
  static constexpr bool throwing_take_drops = true;
  using queue = deeprec::staging_queue<Item, deeprec::park_wait, model_atomics>;
  explicit staging_face_of(std::size_t capacity, std::size_t budget = 0)
      : q({.capacity = capacity, .byte_budget = budget}) {}
  queue_result put(Item& item, const wait_limit& limit) { return q.put(std::move(item), limit); }
  queue_result try_put(Item& item) { return q.try_put(std::move(item)); }
  queue_result got(Item& item, deeprec::taken_item<Item> t) {
    if (t) item = std::move(*t);
    return t.result();
  }
  queue_result take(Item& item, const wait_limit& limit) { return got(item, q.take(limit)); }
  queue_result try_take(Item& item) { return got(item, q.try_take()); }
  queue_result peek(Item& item) { return try_take(item); }
  void drop() { auto place = q.reserve(); }
  void put_behind(Item& first, Item& second) {
    auto place = q.reserve();
    static_cast<void>(q.put(std::move(second)));
    static_cast<void>(place.put(std::move(first)));
  }
  void close() { q.close(); }
  void cancel() { q.cancel(); }
  void resume() { q.resume(); }
  queue q;
};
using staging_face = staging_face_of<watched>;

// Room for more than the limit allows: it holds as many as `capacity` says, like the others.
struct limited_face : staging_face {
  explicit limited_face(std::size_t capacity) : staging_face(capacity + 1) { q.limit_depth(capacity); }
};

// reorder_buffer: producers draw the numbers from a counter that the model does not look into, so one thread
// puts.
template <class Item>
struct reorder_face_of {
  using item_type = Item;
  static constexpr bool throwing_take_drops = true;
  using queue = deeprec::reorder_buffer<Item, deeprec::park_wait, model_atomics>;
  explicit reorder_face_of(std::size_t capacity) : q(capacity) {}
  queue_result put(Item& item, const wait_limit& limit) {
    return counted(q.put(next, std::move(item), limit));
  }
  queue_result try_put(Item& item) {
    return counted(q.try_put(next, std::move(item)) ? queue_result::ok : queue_result::not_now);
  }
  queue_result take(Item& item, const wait_limit& limit) { return q.take(item, limit); }
  queue_result try_take(Item& item) { return q.try_take(item) ? queue_result::ok : queue_result::not_now; }
  queue_result peek(Item& item) { return try_take(item); }
  void drop() { static_cast<void>(q.skip(next++)); }
  void put_behind(Item& first, Item& second) {
    const std::uint64_t k = next;
    next += 2;
    static_cast<void>(q.put(k + 1, std::move(second)));
    static_cast<void>(q.put(k, std::move(first)));
  }
  void skipped() { ++next; }  // a put that threw
  void close() {}
  void cancel() {}
  void resume() {}
  queue_result counted(queue_result r) { return next += r == queue_result::ok ? 1 : 0, r; }
  queue q;
  std::uint64_t next = 0;
};

// Queues that are wrong in their logic, not in an order: each is a mistake that somebody made.
enum class mistake {
  none,
  one_room,            // producers and consumers wait in one room: a wake-up goes to the wrong side
  no_drain,            // closed is answered without a look at what is left
  closed_apart,        // closed is a flag of its own, not a bit of the position: a claim slips behind the end
  no_second_look,      // sleeps without a second look after announcing itself
  notify_first,        // looks for waiters before it publishes
  no_chain,            // a waiter that succeeds wakes no other: the wake-up of a slot further on is lost
  chain_after_return,  // only a waiter that returns wakes the next one, not one that leaves by an exception
  silent_close,        // close() wakes nobody
  cancel_one_side,     // cancel() wakes producers only
  drop_on_timeout,     // hazard H1: a put that times out says ok
  put_after_timeout,   // a put that times out leaves a claimed slot behind
};

template <mistake Bug, class Item = watched>
struct wrong_face {
  using item_type = Item;
  static constexpr bool throwing_take_drops = true;
  using core = deeprec::detail::slot_ring<Item, model_atomics, std::uint32_t>;
  using room = deeprec::waiting_room<deeprec::park_wait, model_atomics>;
  explicit wrong_face(std::size_t capacity) : ring(capacity, std::pmr::get_default_resource(), 0) {}

  static model_order at(std::memory_order o) { return {deeprec::detail::access::closed_asked, o}; }
  room& space() { return Bug == mistake::one_room ? items_room : space_room; }
  room& items() { return items_room; }
  [[nodiscard]] bool flag(const model_atomic<std::uint32_t>& f) const {
    return f.load(at(std::memory_order_acquire)) != 0;
  }

  queue_result push_once(Item& item) {
    if (flag(cancelled)) return queue_result::cancelled;
    if (Bug == mistake::closed_apart && flag(closed)) return queue_result::closed;
    typename core::token t;
    const queue_result r = ring.claim(t);
    if (r != queue_result::ok) return r;
    ::new (static_cast<void*>(t.place->bytes)) Item(std::move(item));
    if (Bug == mistake::notify_first) {
      items().notify_one();
      ring.publish(t);
    } else {
      ring.publish(t);
      items().notify_one();
    }
    return queue_result::ok;
  }
  queue_result pop_once(Item& item) {
    if (flag(cancelled)) return queue_result::cancelled;
    typename core::token t;
    bool holes = false;
    const queue_result r = ring.take(t, holes);
    if (r == queue_result::not_now) {
      if (Bug == mistake::no_drain && ring.is_closed()) return queue_result::closed;
      if (Bug == mistake::closed_apart && flag(closed)) return queue_result::closed;
    }
    if (r != queue_result::ok) return r;
    struct guard {
      wrong_face* self;
      typename core::token slot;
      ~guard() {
        std::destroy_at(slot.place->item());
        self->ring.release_slot(slot);
        self->space().notify_one();
      }
    } const free_the_slot{this, t};
    item = std::move(*t.place->item());
    return queue_result::ok;
  }
  template <class Look, class WakeNext>
  queue_result wait(room& where, Look&& look, const wait_limit& limit, const WakeNext& wake_next) {
    if (Bug == mistake::no_second_look) {
      bool first = true;
      return where.wait_for(
          [&] {  // looks once before it announces itself, and not between that and sleeping
            const bool skip = !first && !std::exchange(slept, true);
            first = false;
            return skip ? queue_result::not_now : look();
          },
          limit, wake_next);
    }
    return where.wait_for(look, limit, wake_next);
  }
  queue_result put(Item& item, const wait_limit& limit) {
    queue_result r = push_once(item);
    if (r != queue_result::not_now) return r;
    r = wait(
        space(), [&] { return push_once(item); }, limit,
        [this]() noexcept {
          if (Bug != mistake::no_chain && ring.was_claimable()) space().notify_one();
        });
    if (Bug == mistake::drop_on_timeout && r == queue_result::timed_out) return queue_result::ok;
    if (Bug == mistake::put_after_timeout && r == queue_result::timed_out) {
      typename core::token t;
      static_cast<void>(ring.claim(t));
    }
    return r;
  }
  queue_result take(Item& item, const wait_limit& limit) {
    queue_result r = pop_once(item);
    if (r != queue_result::not_now) return r;
    const auto wake_next = [this]() noexcept {
      if (Bug != mistake::no_chain && ring.was_takeable()) items().notify_one();
    };
    if (Bug != mistake::chain_after_return)
      return wait(items(), [&] { return pop_once(item); }, limit, wake_next);
    r = wait(items(), [&] { return pop_once(item); }, limit, []() noexcept {});
    if (items().counts().waiting != 0) wake_next();
    return r;
  }
  queue_result try_put(Item& item) { return push_once(item); }
  queue_result try_take(Item& item) { return pop_once(item); }
  queue_result peek(Item& item) { return pop_once(item); }
  void drop() {}
  void put_behind(Item& first, Item& second) {
    typename core::token t;
    static_cast<void>(ring.claim(t));
    static_cast<void>(push_once(second));
    ::new (static_cast<void*>(t.place->bytes)) Item(std::move(first));
    ring.publish(t);
    items().notify_one();
  }
  void close() {
    if (Bug == mistake::closed_apart) {
      closed.store(1, at(std::memory_order_release));
    } else {
      ring.close();
    }
    if (Bug == mistake::silent_close) return;
    items().notify_all();
    space().notify_all();
  }
  void cancel() {
    cancelled.store(1, at(std::memory_order_release));
    space().notify_all();
    if (Bug != mistake::cancel_one_side) items().notify_all();
  }
  void resume() {}

  core ring;
  model_atomic<std::uint32_t> closed{0};
  model_atomic<std::uint32_t> cancelled{0};
  room items_room;
  room space_room;
  bool slept = false;
};

// --- a scenario --------------------------------------------------------------------------------------

template <class Face>
class scenario_of final : public explorer::scenario {
 public:
  scenario_of(std::size_t capacity, const program& p) : program_(p), face_(capacity), capacity_(capacity) {}

  int threads() const override { return static_cast<int>(program_.size()); }

  void run(int thread) override {
    for (const step& s : program_[static_cast<std::size_t>(thread)]) one(s);
  }

  void finish() override {
    // What is left is taken here, by one thread, and is part of the history; and in the end there is nothing.
    bool cancelled = false;
    for (const event& h : history_) cancelled |= h.what == call::cancel;
    const auto all = [&] { return static_cast<std::uint32_t>((std::uint64_t{1} << history_.size()) - 1); };
    if (cancelled) {
      face_.resume();
      history_.push_back({call::resume, 0, queue_result::ok, all()});
    }
    for (event e{call::take, 0, queue_result::ok, 0}; e.answer == queue_result::ok && history_.size() < 20;) {
      item_type item;
      e.answer = face_.try_take(item);
      e.value = e.answer == queue_result::ok ? item.value() : 0;
      e.before = all();
      history_.push_back(e);
    }
    if (!linearizable(history_, {.capacity = capacity_})) {
      explorer::current().fail("no order explains this history:" + to_string(history_));
    }
  }

 private:
  using item_type = typename Face::item_type;
  static item_type make(int value, int moves = -1) {
    if constexpr (std::is_same_v<item_type, brittle>) {
      return item_type(value, moves);
    } else {
      return item_type(value);
    }
  }

  void one(const step& s) {
    explorer& x = explorer::current();
    const clock_vector begun = x.clock();
    event e;
    item_type item(make(s.value, s.what == step::put_throws                                      ? 0
                                 : s.what == step::put_brittle || s.what == step::behind_brittle ? 1
                                                                                                 : -1));
    switch (s.what) {
      case step::put_brittle:
      case step::put:
        e = {call::put, s.value, face_.put(item, {}), 0};
        break;
      case step::put_soon:
        e = {call::put, s.value, face_.put(item, soon()), 0};
        break;
      case step::try_put:
        e = {call::put, s.value, face_.try_put(item), 0};
        break;
      case step::put_throws:
        try {
          static_cast<void>(face_.put(item, {}));
          x.fail("a put did not throw");
        } catch (const brittle::broken&) {
          if constexpr (requires { face_.skipped(); }) face_.skipped();
        }
        return;
      case step::behind_brittle:
      case step::put_behind: {
        item_type second(make(s.value + 1));
        face_.put_behind(item, second);
        // Two puts side by side: which is first was decided in the middle.
        note({call::put, s.value, queue_result::ok, 0}, begun);
        history_.push_back({call::put, s.value + 1, queue_result::ok, history_.back().before});
        ends_.push_back(ends_.back());
        return;
      }
      case step::take:
        e = {call::take, 0, taken(item, {}), 0};
        break;
      case step::take_soon:
        e = {call::take, 0, taken(item, soon()), 0};
        break;
      case step::try_take:
        e = {call::take, 0, face_.try_take(item), 0};
        break;
      case step::peek:
        e = {call::take, 0, face_.peek(item), 0};
        break;
      case step::close:
        face_.close();
        e = {call::close, 0, queue_result::ok, 0};
        break;
      case step::cancel:
        face_.cancel();
        e = {call::cancel, 0, queue_result::ok, 0};
        break;
      case step::resume:
        face_.resume();
        e = {call::resume, 0, queue_result::ok, 0};
        break;
      case step::reserve_drop:
        face_.drop();
        return;
      default:
        return;
    }
    if (e.what == call::take && e.answer == queue_result::failed) {  // threw
      if (!Face::throwing_take_drops) return;
      e.value = std::exchange(broken_[static_cast<std::size_t>(x.thread())], 0);
      e.answer = queue_result::ok;
    } else if (e.what == call::take && e.answer == queue_result::ok) {
      e.value = item.value();
    }
    note(e, begun);
  }
  // failed: the item's move threw.
  queue_result taken(item_type& item, const wait_limit& limit) {
    try {
      return face_.take(item, limit);
    } catch (const brittle::broken& b) {
      broken_[static_cast<std::size_t>(explorer::current().thread())] = b.value;
      return queue_result::failed;
    }
  }
  void note(event e, const clock_vector& begun) {
    explorer& x = explorer::current();
    for (std::size_t k = 0; k < history_.size(); ++k) {
      const auto& [thread, end] = ends_[k];
      // Ended before this began: known by happens-before, not by the order in which steps were tried.
      if (end <= begun[static_cast<std::size_t>(thread)]) e.before |= 1u << k;
    }
    ends_.emplace_back(x.thread(), x.clock()[static_cast<std::size_t>(x.thread())]);
    history_.push_back(e);
    x.tick();
  }

  program program_;
  Face face_;
  std::size_t capacity_;
  std::vector<event> history_;
  std::vector<std::pair<int, std::uint32_t>> ends_;
  std::array<int, max_threads> broken_{};
};

template <class Face>
outcome explore(std::size_t capacity, const program& p, const mutant& broken = {},
                const limits& bounds = {}) {
  explorer x;
  return x.explore([&] { return std::make_unique<scenario_of<Face>>(capacity, p); }, broken, bounds);
}

}  // namespace deeprec_test::model
