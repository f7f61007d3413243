// A bounded queue for any number of producers and consumers, without locks.
//
//   producers ──> [ 5 | 6 | 7 |   |   ] ──> consumers        a state in each slot
//
//   ring.try_push(std::move(x))           ring.push(std::move(x), within(10ms))
//   auto claim = ring.try_claim();        if (auto view = ring.try_peek()) use(*view);
//   claim.emplace(...); claim.publish();
//
// Items leave in the order in which their slots were claimed. Not here: cancellation, byte budgets, enqueued
// exceptions (staging_queue.hpp).
#pragma once

#include <cstddef>
#include <memory>
#include <memory_resource>
#include <optional>
#include <type_traits>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/queue/detail/slot_ring.hpp>
#include <deeprec/queue/ring_handles.hpp>
#include <deeprec/queue/wait_strategies.hpp>
#include <deeprec/queue/waiting_room.hpp>
#include <deeprec/support/atomics.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// @pre     capacity >= 1; no thread uses the ring when it is destroyed; its threads are of one process
///          (event_count)
/// @cost    memory: one block from the resource, at construction
/// @threads every member is thread-safe. A try_ call is lock-free; it may fail while another thread is in the
///          middle of an operation on the next slot
/// @error   invalid_value: a capacity of 0, or too large for the positions or for one block of memory, thrown
///          as deeprec::error; throws what the resource throws
template <class T, class Wait = adaptive_wait, class Atomics = detail::std_atomics, class Seq = std::size_t>
class mpmc_ring {
  static_assert(std::is_nothrow_destructible_v<T>,
                "deeprec::mpmc_ring: the item's destructor may throw. Fix: make it noexcept");
  using core = detail::slot_ring<T, Atomics, Seq>;

 public:
  using value_type = T;
  using token = typename core::token;

  explicit mpmc_ring(std::size_t capacity,
                     std::pmr::memory_resource* memory = std::pmr::get_default_resource(), Seq first_lap = 0)
      : core_(checked(capacity), memory, first_lap) {}

  /// Moves (or copies) the item in. Returns false, with the item untouched, when the ring is full or closed.
  ///
  /// @cost    an atomic exchange, two loads and a store
  /// @threads thread-safe, lock-free
  /// @error   throws what T's constructor throws: the slot is skipped, and the ring stays usable
  template <class U>
  bool try_push(U&& item) {
    return push_once(std::forward<U>(item)) == queue_result::ok;
  }
  template <class... Args>
  bool try_emplace(Args&&... args) {
    return push_once(std::forward<Args>(args)...) == queue_result::ok;
  }

  /// The same, waiting while the ring is full. Unless the result is ok the item is untouched.
  ///
  /// @threads thread-safe
  /// @error   timed_out, stopped, closed; throws as try_push does
  template <class U>
  queue_result push(U&& item, const wait_limit& limit = {}) {
    const queue_result first = push_once(std::forward<U>(item));
    if (first != queue_result::not_now) [[likely]]
      return first;
    return wait_for_space([&] { return push_once(std::forward<U>(item)); }, limit);
  }

  /// Moves the next item out; returns nullopt (false) when the ring is empty.
  ///
  /// @cost    an atomic exchange, two loads and a store
  /// @threads thread-safe, lock-free
  /// @error   throws what T's move throws: that item is lost, and the ring stays usable
  std::optional<T> try_pop() {
    std::optional<T> item;
    static_cast<void>(pop_once([&](T&& moved) { item.emplace(std::move(moved)); }));
    return item;
  }
  bool try_pop(T& item) {
    return pop_once([&](T&& moved) { item = std::move(moved); }) == queue_result::ok;
  }

  /// The same, waiting while the ring is empty.
  ///
  /// @threads thread-safe
  /// @error   timed_out, stopped, closed (after the last item); throws as try_pop does
  queue_result pop(T& item, const wait_limit& limit = {}) {
    const auto once = [&] { return pop_once([&](T&& moved) { item = std::move(moved); }); };
    const queue_result first = once();
    if (first != queue_result::not_now) [[likely]]
      return first;
    return wait_for_items(once, limit);
  }

  /// A free slot to fill in place. Items leave in the order of the claims: later ones wait until this one is
  /// published or destroyed.
  ///
  /// @threads thread-safe, lock-free
  /// @error   an empty claim: full or closed
  ring_claim<mpmc_ring> try_claim() noexcept {
    token t;
    return core_.claim(t) == queue_result::ok ? ring_claim<mpmc_ring>(this, t) : ring_claim<mpmc_ring>();
  }
  /// The next item in place.
  ///
  /// @threads thread-safe, lock-free
  /// @error   an empty view: the ring is empty
  ring_view<mpmc_ring> try_peek() noexcept {
    token t;
    return take(t) == queue_result::ok ? ring_view<mpmc_ring>(this, t) : ring_view<mpmc_ring>();
  }

  /// Moves in up to n items from `first` on, one by one as try_push does; returns their number. They need not
  /// be adjacent in the ring.
  ///
  /// @cost    n times that of try_push
  /// @threads thread-safe, lock-free
  /// @error   throws as try_push does; the items before that one are pushed
  template <class It>
  std::size_t try_push_n(It first, std::size_t n) {
    std::size_t done = 0;
    while (done < n && push_once(std::move(*first)) == queue_result::ok) ++first, ++done;
    return done;
  }
  /// Moves out up to n items to `out`, one by one as try_pop does; returns their number.
  ///
  /// @cost    n times that of try_pop
  /// @threads thread-safe, lock-free
  /// @error   throws as try_pop does: the items before that one are at `out`
  template <class It>
  std::size_t try_pop_n(It out, std::size_t n) {
    std::size_t done = 0;
    while (done < n && pop_once([&](T&& moved) { *out = std::move(moved); }) == queue_result::ok) {
      ++out, ++done;
    }
    return done;
  }

  /// Refuses further pushes; pops continue until the ring is empty, then return closed. Permanent,
  /// idempotent.
  ///
  /// @threads thread-safe
  /// @error   none
  void close() noexcept {
    core_.close();
    items_.notify_all();
    space_.notify_all();
  }
  [[nodiscard]] bool is_closed() const noexcept { return core_.is_closed(); }

  [[nodiscard]] std::size_t capacity() const noexcept { return core_.capacity(); }
  /// @post    between 0 and capacity; a snapshot
  [[nodiscard]] std::size_t was_size() const noexcept {
    const std::size_t n = core_.was_size();
    return n < capacity() ? n : capacity();
  }
  [[nodiscard]] wait_counts push_waits() const noexcept { return space_.counts(); }
  [[nodiscard]] wait_counts pop_waits() const noexcept { return items_.counts(); }

 private:
  friend ring_claim<mpmc_ring>;
  friend ring_view<mpmc_ring>;

  static std::size_t checked(std::size_t capacity) {
    if (!core::can_have(capacity))
      detail::raise(errc::invalid_value,
                    "mpmc_ring: capacity must be at least 1 and fit positions and memory");
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
    items_.notify_one();  // consumers of a closed ring may wait for this slot only
  }
  void finish_pop(const token& t) noexcept {
    core_.release_slot(t);
    space_.notify_one();
  }
  queue_result take(token& t) noexcept {
    bool holes = false;
    const queue_result r = core_.take(t, holes);
    if (holes) space_.notify_all();
    return r;
  }

  template <class... Args>
  queue_result push_once(Args&&... args) {
    token t;
    const queue_result r = core_.claim(t);
    if (r != queue_result::ok) return r;
    if constexpr (std::is_nothrow_constructible_v<T, Args&&...>) {
      ::new (place_of(t)) T(std::forward<Args>(args)...);
      finish_push(t);
    } else {
      ring_claim<mpmc_ring> claim(this, t);
      claim.emplace(std::forward<Args>(args)...);
      claim.publish();
    }
    return queue_result::ok;
  }
  template <class Use>
  queue_result pop_once(Use&& use) {
    token t;
    const queue_result r = take(t);
    if (r != queue_result::ok) return r;
    ring_view<mpmc_ring> view(this, t);
    use(std::move(*view));
    return queue_result::ok;
  }

  template <class Look>
  queue_result wait_for_space(Look&& look, const wait_limit& limit) {
    return space_.wait_for(look, limit, [this]() noexcept {
      if (core_.was_claimable()) space_.notify_one();
    });
  }
  template <class Look>
  queue_result wait_for_items(Look&& look, const wait_limit& limit) {
    return items_.wait_for(look, limit, [this]() noexcept {
      if (core_.was_takeable()) items_.notify_one();
    });
  }

  core core_;
  alignas(64) waiting_room<Wait, Atomics> items_;  // consumers wait here
  alignas(64) waiting_room<Wait, Atomics> space_;  // producers wait here
};

}}  // namespace deeprec::DEEPREC_ABI
