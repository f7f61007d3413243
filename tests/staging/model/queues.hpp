// Scenarios for the explorer: threads that call the queues of staging/, and what must hold at their end.
#pragma once

#include <deeprec/staging/mpmc_ring.hpp>
#include <deeprec/staging/reorder_buffer.hpp>
#include <deeprec/staging/spsc_ring.hpp>
#include <deeprec/staging/staging_pool.hpp>
#include <deeprec/staging/staging_queue.hpp>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "staging/history.hpp"
#include "staging/model/explorer.hpp"

namespace deeprec_test::model {

using deeprec::access;
using deeprec::queue_result;
using deeprec::wait_limit;

// One call of a scenario. `soon`: with a deadline, which may pass at any moment.
struct step {
  enum kind { put, put_soon, try_put, reserve_put, reserve_drop, take, take_soon, try_take, close, cancel,
              resume, put_throws, peek } what;
  int value = 0;
};
using program = std::vector<std::vector<step>>;

inline wait_limit soon() { return {std::chrono::steady_clock::time_point{}, {}}; }

// --- the queues, with one face ---------------------------------------------------------------------

struct ring_face {  // mpmc_ring
  using queue = deeprec::mpmc_ring<watched, deeprec::park_wait, model_atomics, std::uint32_t>;
  // Positions wrap in the middle of every scenario.
  explicit ring_face(std::size_t capacity)
      : q(capacity, std::pmr::get_default_resource(), static_cast<std::uint32_t>(-1)) {}
  queue_result put(watched& item, const wait_limit& limit) { return q.push(std::move(item), limit); }
  queue_result try_put(watched& item) {
    return q.try_push(std::move(item)) ? queue_result::ok
           : q.is_closed()             ? queue_result::closed
                                       : queue_result::not_now;
  }
  queue_result take(watched& item, const wait_limit& limit) { return q.pop(item, limit); }
  queue_result try_take(watched& item) {
    return q.try_pop(item) ? queue_result::ok : queue_result::not_now;
  }
  queue_result peek(watched& item) {
    auto view = q.try_peek();
    if (!view) return queue_result::not_now;
    item = std::move(*view);
    return queue_result::ok;
  }
  void drop() { auto c = q.try_claim(); }
  void close() { q.close(); }
  void cancel() {}
  void resume() {}
  queue q;
};

template <deeprec::spsc_layout Layout>
struct pair_face {  // spsc_ring
  using queue = deeprec::spsc_ring<watched, deeprec::park_wait, model_atomics, std::uint8_t>;
  explicit pair_face(std::size_t capacity)
      : q(capacity, std::pmr::get_default_resource(), Layout, static_cast<std::uint8_t>(254)) {}
  queue_result put(watched& item, const wait_limit& limit) { return q.push(std::move(item), limit); }
  queue_result try_put(watched& item) {
    return q.try_push(std::move(item)) ? queue_result::ok : queue_result::not_now;
  }
  queue_result take(watched& item, const wait_limit& limit) { return q.pop(item, limit); }
  queue_result try_take(watched& item) {
    return q.try_pop(item) ? queue_result::ok : queue_result::not_now;
  }
  queue_result peek(watched& item) {
    auto view = q.try_peek();
    if (!view) return queue_result::not_now;
    item = std::move(*view);
    return queue_result::ok;
  }
  void drop() { auto c = q.try_claim(); }
  void close() {}
  void cancel() {}
  void resume() {}
  queue q;
};

struct staging_face {
  using queue = deeprec::staging_queue<watched, deeprec::park_wait, model_atomics>;
  explicit staging_face(std::size_t capacity, std::size_t budget = 0)
      : q({.capacity = capacity, .byte_budget = budget}) {}
  queue_result put(watched& item, const wait_limit& limit) { return q.put(std::move(item), limit); }
  queue_result try_put(watched& item) { return q.try_put(std::move(item)); }
  queue_result got(watched& item, deeprec::taken<watched> t) {
    if (t) item = std::move(*t);
    return t.result();
  }
  queue_result take(watched& item, const wait_limit& limit) { return got(item, q.take(limit)); }
  queue_result try_take(watched& item) { return got(item, q.try_take()); }
  queue_result peek(watched& item) { return try_take(item); }
  void drop() { auto place = q.reserve(); }
  void close() { q.close(); }
  void cancel() { q.cancel(); }
  void resume() { q.resume(); }
  queue q;
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
  silent_close,        // close() wakes nobody
  cancel_one_side,     // cancel() wakes producers only
  drop_on_timeout,     // hazard H1: a put that times out says ok
  put_after_timeout,   // a put that times out leaves a claimed slot behind
};

template <mistake Bug>
struct wrong_face {
  using core = deeprec::detail::slot_ring<watched, model_atomics, std::uint32_t>;
  using room = deeprec::detail::waiting_room<deeprec::park_wait, model_atomics>;
  explicit wrong_face(std::size_t capacity) : ring(capacity, std::pmr::get_default_resource(), 0) {}

  static model_order at(std::memory_order o) { return {access::closed_seen, o}; }
  room& space() { return Bug == mistake::one_room ? items_room : space_room; }
  room& items() { return items_room; }
  [[nodiscard]] bool flag(const model_atomic<std::uint32_t>& f) const {
    return f.load(at(std::memory_order_acquire)) != 0;
  }

  queue_result push_once(watched& item) {
    if (flag(cancelled)) return queue_result::cancelled;
    if (Bug == mistake::closed_apart && flag(closed)) return queue_result::closed;
    core::token t;
    const queue_result r = ring.claim(t);
    if (r != queue_result::ok) return r;
    ::new (static_cast<void*>(t.place->bytes)) watched(std::move(item));
    if (Bug == mistake::notify_first) {
      items().notify_one();
      ring.publish(t);
    } else {
      ring.publish(t);
      items().notify_one();
    }
    return queue_result::ok;
  }
  queue_result pop_once(watched& item) {
    if (flag(cancelled)) return queue_result::cancelled;
    core::token t;
    bool holes = false;
    const queue_result r = ring.take(t, holes);
    if (r == queue_result::not_now) {
      if (Bug == mistake::no_drain && ring.is_closed()) return queue_result::closed;
      if (Bug == mistake::closed_apart && flag(closed)) return queue_result::closed;
    }
    if (r != queue_result::ok) return r;
    item = std::move(*t.place->item());
    std::destroy_at(t.place->item());
    ring.release_slot(t);
    space().notify_one();
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
  queue_result put(watched& item, const wait_limit& limit) {
    queue_result r = push_once(item);
    if (r != queue_result::not_now) return r;
    r = wait(space(), [&] { return push_once(item); }, limit, [this]() noexcept {
      if (Bug != mistake::no_chain && ring.was_claimable()) space().notify_one();
    });
    if (Bug == mistake::drop_on_timeout && r == queue_result::timed_out) return queue_result::ok;
    if (Bug == mistake::put_after_timeout && r == queue_result::timed_out) {
      core::token t;
      static_cast<void>(ring.claim(t));
    }
    return r;
  }
  queue_result take(watched& item, const wait_limit& limit) {
    queue_result r = pop_once(item);
    if (r != queue_result::not_now) return r;
    return wait(items(), [&] { return pop_once(item); }, limit, [this]() noexcept {
      if (Bug != mistake::no_chain && ring.was_takeable()) items().notify_one();
    });
  }
  queue_result try_put(watched& item) { return push_once(item); }
  queue_result try_take(watched& item) { return pop_once(item); }
  queue_result peek(watched& item) { return pop_once(item); }
  void drop() {}
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
      watched item;
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
  void one(const step& s) {
    explorer& x = explorer::current();
    const clock_vector begun = x.clock();
    event e;
    watched item(s.value);
    switch (s.what) {
      case step::put: e = {call::put, s.value, face_.put(item, {}), 0}; break;
      case step::put_soon: e = {call::put, s.value, face_.put(item, soon()), 0}; break;
      case step::try_put: e = {call::put, s.value, face_.try_put(item), 0}; break;
      case step::take: e = {call::take, 0, face_.take(item, {}), 0}; break;
      case step::take_soon: e = {call::take, 0, face_.take(item, soon()), 0}; break;
      case step::try_take: e = {call::take, 0, face_.try_take(item), 0}; break;
      case step::peek: e = {call::take, 0, face_.peek(item), 0}; break;
      case step::close: face_.close(); e = {call::close, 0, queue_result::ok, 0}; break;
      case step::cancel: face_.cancel(); e = {call::cancel, 0, queue_result::ok, 0}; break;
      case step::resume: face_.resume(); e = {call::resume, 0, queue_result::ok, 0}; break;
      case step::reserve_drop: face_.drop(); return;
      default: return;
    }
    if (e.what == call::take && e.answer == queue_result::ok) e.value = item.value();
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
};

template <class Face>
outcome explore(std::size_t capacity, const program& p, const mutant& broken = {}, const limits& bounds = {}) {
  explorer x;
  return x.explore([&] { return std::make_unique<scenario_of<Face>>(capacity, p); }, broken, bounds);
}

}  // namespace deeprec_test::model
