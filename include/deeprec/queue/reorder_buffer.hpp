// Restores the order of numbered items: item k leaves k-th, whichever thread puts it and whenever.
//
//   put(2) ──┐
//   put(0) ──┼──> [ 0 | 1 | 2 |   ] ──> take: 0, 1, 2, ...     window: the next `capacity` numbers
//   put(1) ──┘
//
// A put beyond the window waits. Every number must be put or skipped, once. Not here: assigning the numbers
// (staging_queue::reserve does, and never one that has no slot yet).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <type_traits>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/queue/detail/slot_ring.hpp>
#include <deeprec/queue/ring_handles.hpp>
#include <deeprec/queue/wait_strategies.hpp>
#include <deeprec/queue/waiting_room.hpp>
#include <deeprec/support/atomics.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// @pre     capacity >= 1; numbers begin at 0, and none is put or skipped twice; its threads are of one
///          process (event_count)
/// @threads every member is thread-safe; only a single consumer sees the items in order
/// @error   invalid_value: a capacity of 0, or too large for the positions or for one block of memory, thrown
///          as deeprec::error; throws what the resource throws
template <class T, class Wait = adaptive_wait, class Atomics = detail::std_atomics, class Seq = std::size_t>
class reorder_buffer {
  static_assert(std::is_nothrow_destructible_v<T>,
                "deeprec::reorder_buffer: the item's destructor may throw. Fix: make it noexcept");
  using core = detail::slot_ring<T, Atomics, Seq>;

 public:
  using value_type = T;
  using token = typename core::token;

  explicit reorder_buffer(std::size_t capacity,
                          std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : core_(checked(capacity), memory, 0) {}

  /// Moves the k-th item in. Returns false, with the item untouched, when k is beyond the window.
  ///
  /// @cost    a load and a store
  /// @threads thread-safe, wait-free
  /// @error   throws what T's constructor throws: number k then counts as skipped
  template <class U>
  bool try_put(std::uint64_t k, U&& item) {
    return put_once(k, std::forward<U>(item)) == queue_result::ok;
  }
  /// The same, waiting until the window reaches k.
  ///
  /// @threads thread-safe
  /// @error   timed_out, stopped: the item is untouched, and number k still to be put; throws as try_put does
  template <class U>
  queue_result put(std::uint64_t k, U&& item, const wait_limit& limit = {}) {
    const queue_result first = put_once(k, std::forward<U>(item));
    if (first != queue_result::not_now) [[likely]]
      return first;
    return space_.wait_for([&] { return put_once(k, std::forward<U>(item)); }, limit, detail::wake_nobody{});
  }
  /// Declares that there is no k-th item; waits until the window reaches k.
  ///
  /// @threads thread-safe
  /// @error   timed_out, stopped: number k is still to be put or skipped
  queue_result skip(std::uint64_t k, const wait_limit& limit = {}) {
    const auto once = [&] {
      token t;
      const queue_result r = core_.claim_number(k, t);
      if (r == queue_result::ok) abandon_push(t);
      return r;
    };
    const queue_result first = once();
    return first != queue_result::not_now ? first : space_.wait_for(once, limit, detail::wake_nobody{});
  }

  /// Moves the next item out.
  ///
  /// @threads thread-safe, lock-free
  /// @error   false: it has not been put yet; throws what T's move throws: that item is lost
  bool try_take(T& item) { return take_once(item) == queue_result::ok; }
  /// The same, waiting for the item.
  ///
  /// @threads thread-safe
  /// @error   timed_out, stopped; throws as try_take does
  queue_result take(T& item, const wait_limit& limit = {}) {
    const auto once = [&] { return take_once(item); };
    const queue_result first = once();
    if (first != queue_result::not_now) [[likely]]
      return first;
    return items_.wait_for(once, limit, [this]() noexcept {
      if (core_.was_takeable()) items_.notify_one();
    });
  }

  [[nodiscard]] std::size_t capacity() const noexcept { return core_.capacity(); }
  [[nodiscard]] wait_counts put_waits() const noexcept { return space_.counts(); }
  [[nodiscard]] wait_counts take_waits() const noexcept { return items_.counts(); }

 private:
  friend ring_claim<reorder_buffer>;
  friend ring_view<reorder_buffer>;

  static std::size_t checked(std::size_t capacity) {
    if (!core::can_have(capacity))
      detail::raise(errc::invalid_value,
                    "reorder_buffer: capacity must be at least 1 and fit positions and memory");
    return capacity;
  }
  static void* place_of(const token& t) noexcept { return t.place->bytes; }
  static T* item_of(const token& t) noexcept { return t.place->item(); }
  void finish_push(const token& t) noexcept {
    core_.publish(t);
    items_.notify_one();
  }
  void abandon_push(const token& t) noexcept {
    core_.publish_hole(t);
    items_.notify_one();
  }
  void finish_pop(const token& t) noexcept {
    core_.release_slot(t);
    space_.notify_all();  // only one of the waiters has the number of this slot
  }

  template <class U>
  queue_result put_once(std::uint64_t k, U&& item) {
    token t;
    const queue_result r = core_.claim_number(k, t);
    if (r != queue_result::ok) return r;
    ring_claim<reorder_buffer> claim(this, t);
    claim.emplace(std::forward<U>(item));
    claim.publish();
    return queue_result::ok;
  }
  queue_result take_once(T& item) {
    token t;
    bool holes = false;
    const queue_result r = core_.take(t, holes);
    if (holes) space_.notify_all();
    if (r != queue_result::ok) return r;
    ring_view<reorder_buffer> view(this, t);
    item = std::move(*view);
    return r;
  }

  core core_;
  alignas(64) waiting_room<Wait, Atomics> items_;  // takers wait here
  alignas(64) waiting_room<Wait, Atomics> space_;  // putters wait here; each notification wakes all
};

}}  // namespace deeprec::DEEPREC_ABI
