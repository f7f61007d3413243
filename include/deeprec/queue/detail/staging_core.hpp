// The protocol of a staging_queue: records, faults and exceptions in the slots of a ring, admitted by a
// budget of bytes and a depth, with waits on both sides.
//
//   put ── cancelled? deep? bytes? ──> claim ── make ──> publish      a claimed position is filled, or passed
//   take ── cancelled? ──> ring ── move out ──> release, wake         over: consumers skip it
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <memory_resource>
#include <new>
#include <type_traits>
#include <utility>
#include <variant>

#include <deeprec/core/config.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/queue/detail/slot_ring.hpp>
#include <deeprec/queue/taken_item.hpp>
#include <deeprec/queue/wait_strategies.hpp>
#include <deeprec/queue/waiting_room.hpp>
#include <deeprec/support/atomics.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

template <class T, class Wait, class Atomics>
class staging_core {
  struct entry {
    std::variant<T, std::exception_ptr, std::unique_ptr<const fault>> content;
    std::size_t bytes;
    template <std::size_t Which, class U>
    entry(std::in_place_index_t<Which> which, U&& value, std::size_t size)
        : content(which, std::forward<U>(value)), bytes(size) {}
  };
  using ring = slot_ring<entry, Atomics, std::size_t>;
  using token = typename ring::token;

 public:
  /// The bytes of the budget that a record takes; null: sizeof(T).
  using size_function = std::size_t (*)(const T&);
  static constexpr std::in_place_index_t<0> record{};
  static constexpr std::in_place_index_t<1> exception{};
  static constexpr std::in_place_index_t<2> failure{};

  staging_core(std::size_t capacity, std::size_t byte_budget, std::pmr::memory_resource* memory,
               size_function size_of)
      : ring_(checked(capacity), memory, 0), budget_(byte_budget), bytes_of_(size_of), depth_(capacity) {}

  /// A claimed position. It is filled, or passed over when this is destroyed.
  class held_place {
   public:
    held_place() noexcept = default;
    held_place(staging_core* core, token t) noexcept : core_(core), token_(t) {}
    held_place(held_place&& other) noexcept
        : core_(std::exchange(other.core_, nullptr)), token_(other.token_) {}
    held_place& operator=(held_place&& other) noexcept {
      if (this != &other) {
        abandon();
        core_ = std::exchange(other.core_, nullptr);
        token_ = other.token_;
      }
      return *this;
    }
    ~held_place() { abandon(); }

    /// Null once it is filled or passed over.
    [[nodiscard]] staging_core* core() const noexcept { return core_; }
    [[nodiscard]] std::uint64_t number() const noexcept { return core_->ring_.number_of(token_); }
    void abandon() noexcept {
      if (core_ != nullptr) std::exchange(core_, nullptr)->pass_over(token_);
    }

   private:
    friend class staging_core;
    staging_core* core_ = nullptr;
    token token_{};
  };

  // --- producers -----------------------------------------------------------------------------------

  // Calls put(item, bytes), with the item converted to T where only a T can be measured.
  template <class U, class Put>
  queue_result as_measured(U&& item, Put put) const {
    using given = std::remove_cvref_t<U>;
    if constexpr (std::is_same_v<given, T>) {
      std::size_t bytes = 0;
      if (budget_ != 0) bytes = bytes_of_ != nullptr ? bytes_of_(item) : sizeof(T);
      return put(std::forward<U>(item), bytes);
    } else {
      if (budget_ == 0 || bytes_of_ == nullptr)
        return put(std::forward<U>(item), budget_ != 0 ? sizeof(T) : 0);
      if constexpr (std::is_constructible_v<T, const given&>) {
        T made(std::as_const(item));
        const std::size_t bytes = bytes_of_(made);
        return put(std::move(made), bytes);
      } else {
        raise(errc::unsupported,
              "staging_queue: an item that is measured must be a record, or copyable into one");
      }
    }
  }

  template <class Which, class U>
  queue_result put_once(Which which, U&& item, std::size_t bytes) {
    if (is_cancelled()) return queue_result::cancelled;
    if (is_deep()) return full();
    if (budget_ != 0) {
      // Checks for a slot first: bytes that are held and given back in vain would wake others for nothing.
      if (!ring_.was_claimable()) return queue_result::not_now;
      if (!admit(bytes, [] { return false; })) return full();
    }
    token t;
    const queue_result r = ring_.claim(t);
    if (r != queue_result::ok) {
      give_back(bytes);
      return r;
    }
    held_place place(this, t);  // a hole where the constructor throws
    make(place, which, std::forward<U>(item), bytes);
    return queue_result::ok;
  }
  template <class Which, class U>
  queue_result put_as(Which which, U&& item, std::size_t bytes, const wait_limit& limit) {
    const queue_result first = put_once(which, std::forward<U>(item), bytes);
    if (first != queue_result::not_now) [[likely]]
      return first;
    return wait_for_space([&] { return put_once(which, std::forward<U>(item), bytes); }, limit);
  }
  template <class Which, class U>
  queue_result fill(held_place& where, Which which, U&& item, std::size_t bytes, const wait_limit& limit) {
    const token t = where.token_;
    const auto admitted = [&] {
      if (is_cancelled()) return queue_result::cancelled;
      // The next position to be taken is admitted at any size: everything else waits for it.
      return budget_ == 0 || admit(bytes, [&] { return ring_.is_next(t); }) ? queue_result::ok
                                                                            : queue_result::not_now;
    };
    queue_result r = admitted();
    if (r == queue_result::not_now) r = wait_for_space(admitted, limit);
    if (r == queue_result::ok) make(where, which, std::forward<U>(item), bytes);
    return r;
  }

  /// Waits for the next position.
  queue_result claim(held_place& place, const wait_limit& limit) {
    token t;
    const auto once = [&] {
      if (is_cancelled()) return queue_result::cancelled;
      return is_deep() ? full() : ring_.claim(t);
    };
    queue_result r = once();
    if (r == queue_result::not_now) r = wait_for_space(once, limit);
    if (r == queue_result::ok) place = held_place(this, t);
    return r;
  }

  // --- consumers -----------------------------------------------------------------------------------

  void take(taken_item<T>& answer, const wait_limit& limit) {
    const auto once = [&] { return is_cancelled() ? queue_result::cancelled : take_once(answer); };
    queue_result r = once();
    if (r == queue_result::not_now) [[unlikely]] {
      r = items_.wait_for(once, limit, [this]() noexcept {
        if (ring_.was_takeable()) items_.notify_one();
      });
    }
    answer.why_ = r;
  }
  void try_take(taken_item<T>& answer) {
    answer.why_ = is_cancelled() ? queue_result::cancelled : take_once(answer);
  }
  /// Takes a record, also where the queue is cancelled; answer.result() stays as it is.
  queue_result take_once(taken_item<T>& answer) {
    token t;
    bool holes = false;
    const queue_result r = ring_.take(t, holes);
    if (holes) space_.notify_all();
    if (r != queue_result::ok) return r;
    struct guard {
      staging_core* queue;
      token slot;
      ~guard() {
        entry* const done = slot.place->item();
        const std::size_t bytes = done->bytes;
        std::destroy_at(done);
        queue->ring_.release_slot(slot);
        if (bytes != 0) {
          // relaxed: as in admit()
          queue->bytes_.fetch_sub(bytes, Atomics::at(access::bytes_give, std::memory_order_relaxed));
        }
        queue->notify_space();
      }
    } free_the_slot{this, t};
    auto& content = t.place->item()->content;
    if (T* item = std::get_if<0>(&content)) {
      answer.value_.emplace(std::move(*item));
      return queue_result::ok;
    }
    if (std::exception_ptr* thrown = std::get_if<1>(&content)) {
      answer.failure_ = std::move(*thrown);
    } else {
      answer.fault_ = std::move(*std::get_if<2>(&content));
    }
    return queue_result::failed;
  }

  // --- both ----------------------------------------------------------------------------------------

  void close() noexcept {
    ring_.close();
    items_.notify_all();
    space_.notify_all();
  }
  void cancel() noexcept {
    // release: a thread that returns cancelled sees everything before.
    cancelled_.store(1, Atomics::at(access::cancel_mark, std::memory_order_release));
    items_.notify_all();
    space_.notify_all();
  }
  void resume() noexcept {
    ring_.reopen();
    // release: as above
    cancelled_.store(0, Atomics::at(access::resume_mark, std::memory_order_release));
  }
  [[nodiscard]] bool is_closed() const noexcept { return ring_.is_closed(); }
  [[nodiscard]] bool is_cancelled() const noexcept {
    return cancelled_.load(Atomics::at(access::cancel_seen, std::memory_order_acquire)) != 0;
  }

  [[nodiscard]] std::size_t capacity() const noexcept { return ring_.capacity(); }
  void limit_depth(std::size_t depth) noexcept {
    // relaxed: a number; notify_all orders it before the check of a producer that sleeps
    depth_.store(depth, Atomics::at(access::depth_limit, std::memory_order_relaxed));
    space_.notify_all();
  }
  [[nodiscard]] std::size_t depth_limit() const noexcept {
    const std::size_t depth = depth_.load(Atomics::at(access::statistic, std::memory_order_relaxed));
    return depth < capacity() ? depth : capacity();
  }

  // What statistics show.
  [[nodiscard]] std::size_t was_size() const noexcept {
    const std::size_t depth = ring_.was_size();
    return depth < capacity() ? depth : capacity();
  }
  [[nodiscard]] std::size_t was_bytes() const noexcept {
    return bytes_.load(Atomics::at(access::statistic, std::memory_order_relaxed));
  }
  [[nodiscard]] std::uint64_t claimed() const noexcept { return ring_.claimed_number(); }
  [[nodiscard]] std::uint64_t taken() const noexcept { return ring_.taken_number(); }
  [[nodiscard]] wait_counts put_waits() const noexcept { return space_.counts(); }
  [[nodiscard]] wait_counts take_waits() const noexcept { return items_.counts(); }

 private:
  static std::size_t checked(std::size_t capacity) {
    if (!ring::can_have(capacity))
      raise(errc::invalid_value, "staging_queue: capacity must be at least 1 and fit positions and memory");
    return capacity;
  }

  // Constructs the entry in the claimed slot of a position and publishes it. Where the constructor throws,
  // its bytes are given back, and the position is still held.
  template <class Which, class U>
  void make(held_place& where, Which which, U&& item, std::size_t bytes) {
    struct guard {
      staging_core* queue;
      std::size_t held;
      ~guard() {
        if (queue != nullptr) queue->give_back(held);
      }
    } unless_made{this, bytes};
    const token t = where.token_;
    ::new (static_cast<void*>(t.place->bytes)) entry(which, std::forward<U>(item), bytes);
    unless_made.queue = nullptr;
    where.core_ = nullptr;
    ring_.publish(t);
    items_.notify_one();
  }
  void pass_over(token t) noexcept {
    ring_.publish_hole(t);
    items_.notify_one();  // consumers of a closed queue may wait for this slot only
  }

  // Whether limit_depth() allows no record more. relaxed: a taker wakes producers after it has moved head_,
  // and a producer that sleeps has looked again after a fence; an old head_ only makes it wait for that.
  [[nodiscard]] bool is_deep() const noexcept {
    const std::size_t depth = depth_.load(Atomics::at(access::depth_seen, std::memory_order_relaxed));
    return depth < ring_.capacity() && ring_.was_size() >= depth;
  }
  [[nodiscard]] queue_result full() const noexcept {
    return ring_.is_closed() ? queue_result::closed : queue_result::not_now;
  }
  template <class Exempt>
  bool admit(std::size_t bytes, Exempt exempt) noexcept {
    // relaxed: a count; the records are published by their slots
    std::size_t held = bytes_.load(Atomics::at(access::bytes_seen, std::memory_order_relaxed));
    do {
      const bool fits = bytes <= budget_ && held <= budget_ - bytes;
      if (!fits && held != 0 && !exempt()) return false;
    } while (!bytes_.compare_exchange_weak(held, held + bytes,
                                           Atomics::at(access::bytes_take, std::memory_order_relaxed),
                                           std::memory_order_relaxed));
    return true;
  }
  void give_back(std::size_t bytes) noexcept {
    if (bytes == 0) return;
    // relaxed: as above
    bytes_.fetch_sub(bytes, Atomics::at(access::bytes_give, std::memory_order_relaxed));
    notify_space();
  }
  // Threads that wait for bytes are not interchangeable.
  void notify_space() noexcept { budget_ != 0 ? space_.notify_all() : space_.notify_one(); }

  template <class Look>
  queue_result wait_for_space(Look&& look, const wait_limit& limit) {
    return space_.wait_for(look, limit, [this]() noexcept {
      if (ring_.was_claimable()) notify_space();
    });
  }

  ring ring_;
  const std::size_t budget_;
  const size_function bytes_of_;
  typename Atomics::template atomic<std::uint32_t> cancelled_{0};
  typename Atomics::template atomic<std::size_t> depth_;
  alignas(64) typename Atomics::template atomic<std::size_t> bytes_{0};
  alignas(64) waiting_room<Wait, Atomics> items_;  // consumers wait here
  alignas(64) waiting_room<Wait, Atomics> space_;  // producers wait here
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
