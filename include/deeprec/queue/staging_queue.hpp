// Passes batches between threads: a bounded queue that can be closed, cancelled and resumed, and never loses
// a record.
//
//   readers ── put ──> [ b7 | b8 | ! | b9 ] ── take ──> trainer       ! a fault or an exception, in order
//
//   close()    refuses puts; takes continue to the last record, then return closed
//   cancel()   wakes all waiters; every call returns cancelled, records stay until resume() or drain()
//
// A put that is refused or times out leaves the record with the caller. reserve() assigns positions: record k
// is delivered k-th, whichever thread makes it. Not here: threads, recycled buffers (staging_pool.hpp).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <memory_resource>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/queue/detail/slot_ring.hpp>
#include <deeprec/queue/wait_strategies.hpp>
#include <deeprec/queue/waiting_room.hpp>
#include <deeprec/support/atomics.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

struct staging_options {
  std::size_t capacity = 1;     ///< records, those reserved and not yet put included
  std::size_t byte_budget = 0;  ///< bytes in the queue; 0: no limit. One record may exceed it where the
                                ///< queue could not progress otherwise
  std::pmr::memory_resource* memory = std::pmr::get_default_resource();
};

/// A snapshot of a queue.
struct staging_stats {
  std::size_t depth = 0;      ///< records put or reserved, and not yet taken
  std::size_t bytes = 0;      ///< their bytes, where there is a byte budget
  std::uint64_t claimed = 0;  ///< positions assigned since construction
  std::uint64_t taken = 0;    ///< positions taken or skipped
  wait_counts put;            ///< producers that waited: the consumers are the slow side
  wait_counts take;           ///< consumers that waited: the producers are
};

/// Why a take ended: it has what it was asked for, or it met a producer's fault or exception, or there was no
/// record.
class taken_reason {
 public:
  explicit taken_reason(queue_result why) noexcept : why_(why) {}

  [[nodiscard]] queue_result result() const noexcept { return why_; }
  /// The fault that the producer enqueued; else a fault with the code to_errc(result()).
  /// @pre result() is not ok
  [[nodiscard]] deeprec::fault fault() const { return fault_ ? *fault_ : deeprec::fault(to_status(why_)); }
  /// The exception that the producer enqueued; null where there is none.
  [[nodiscard]] const std::exception_ptr& failure() const noexcept { return failure_; }

  /// Rethrows a producer's exception; throws fault() as deeprec::error where result() is anything else than
  /// ok.
  void or_throw() const {
#if DEEPREC_EXCEPTIONS
    if (failure_) std::rethrow_exception(failure_);
#endif
    if (why_ != queue_result::ok) fault().or_throw();
  }

 private:
  template <class, class, class>
  friend class staging_queue;

  queue_result why_;
  std::exception_ptr failure_;
  std::unique_ptr<const deeprec::fault> fault_;
};

/// The result of take(): a record, a producer's fault or exception, or the reason why there is none of them.
template <class T>
class [[nodiscard]] taken_item : public taken_reason {
 public:
  using taken_reason::taken_reason;

  /// True when there is a record.
  explicit operator bool() const noexcept { return value_.has_value(); }
  /// @pre there is a record
  [[nodiscard]] T& operator*() noexcept { return *value_; }
  [[nodiscard]] T* operator->() noexcept { return &*value_; }

  /// Returns the record. Rethrows a producer's exception; throws fault() as deeprec::error for every other
  /// reason.
  T or_throw() && {
    taken_reason::or_throw();
    return std::move(*value_);
  }

 private:
  template <class, class, class>
  friend class staging_queue;

  std::optional<T> value_;
};

/// The result of take_some(): how many records were taken, and why not more.
class [[nodiscard]] taken_count : public taken_reason {
 public:
  /// The records taken, also where result() is not ok.
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  template <class, class, class>
  friend class staging_queue;
  taken_count(taken_reason why, std::size_t size) : taken_reason(std::move(why)), size_(size) {}

  std::size_t size_;
};

/// @pre     capacity >= 1; no thread uses the queue, or holds a reservation, when it is destroyed; its
///          threads are of one process (event_count)
/// @cost    memory: one block from the resource, at construction; nothing afterwards
/// @threads every member is thread-safe; without a wait, put and take are lock-free
/// @error   invalid_value: a capacity of 0, or too large for the positions or for one block of memory, thrown
///          as deeprec::error; throws what the resource throws
template <class T, class Wait = adaptive_wait, class Atomics = detail::std_atomics>
class staging_queue {
  static_assert(std::is_nothrow_destructible_v<T>,
                "deeprec::staging_queue: the record's destructor may throw. Fix: make it noexcept");
  struct entry {
    std::variant<T, std::exception_ptr, std::unique_ptr<const fault>> content;
    std::size_t bytes;
    template <std::size_t Which, class U>
    entry(std::in_place_index_t<Which> which, U&& value, std::size_t size)
        : content(which, std::forward<U>(value)), bytes(size) {}
  };
  using core = detail::slot_ring<entry, Atomics, std::size_t>;
  using token = typename core::token;
  static constexpr std::in_place_index_t<0> record{};
  static constexpr std::in_place_index_t<1> exception{};
  static constexpr std::in_place_index_t<2> failure{};

 public:
  using value_type = T;
  /// The bytes of the budget that a record takes; null: sizeof(T).
  using size_function = std::size_t (*)(const T&);

  explicit staging_queue(std::size_t capacity) : staging_queue(staging_options{.capacity = capacity}) {}
  explicit staging_queue(const staging_options& options, size_function size_of = nullptr)
      : ring_(checked(options.capacity), options.memory, 0),
        budget_(options.byte_budget),
        bytes_of_(size_of),
        depth_(options.capacity) {}

  // --- producers -----------------------------------------------------------------------------------

  /// Moves the record in, waiting while the queue is full. Unless the result is ok it is untouched.
  ///
  /// An item of another type than T is converted to T in the queue's memory. A byte budget with a size
  /// function needs the T earlier: then it is made from the item, which is not moved from, measured, and
  /// moved in.
  ///
  /// @cost    about 20 ns when there is room
  /// @threads thread-safe
  /// @error   timed_out, stopped, closed, cancelled; throws what T's constructor throws: nothing was put;
  ///          throws unsupported as deeprec::error where the item must be measured but can only be moved into
  ///          a T
  template <class U>
    requires std::is_constructible_v<T, U&&>
  queue_result put(U&& item, const wait_limit& limit = {}) {
    return as_measured(std::forward<U>(item), [&](auto&& made, std::size_t bytes) {
      return put_as(record, std::forward<decltype(made)>(made), bytes, limit);
    });
  }
  /// The same without waiting; not_now when the queue is full.
  ///
  /// @threads thread-safe, lock-free
  /// @error   not_now, closed, cancelled; throws as put() does
  template <class U>
    requires std::is_constructible_v<T, U&&>
  queue_result try_put(U&& item) {
    return as_measured(std::forward<U>(item), [&](auto&& made, std::size_t bytes) {
      return put_once(record, std::forward<decltype(made)>(made), bytes);
    });
  }
  /// Enqueues a fault or a failed status. Records put before are delivered before it.
  ///
  /// @cost    as put(), and one allocation from the heap
  /// @threads thread-safe
  /// @error   timed_out, stopped, closed, cancelled; throws std::bad_alloc: nothing was put
  queue_result fail(fault why, const wait_limit& limit = {}) {
    return put_as(failure, std::make_unique<const fault>(std::move(why)), 0, limit);
  }
  /// The same, for an exception.
  ///
  /// @threads thread-safe
  /// @error   timed_out, stopped, closed, cancelled
  queue_result fail(std::exception_ptr why, const wait_limit& limit = {}) {
    return put_as(exception, std::move(why), 0, limit);
  }

  /// A reserved position, obtained before its record is made. If it is destroyed unused, consumers skip it.
  ///
  /// @threads one thread at a time
  class reservation {
   public:
    reservation() noexcept = default;
    reservation(reservation&& other) noexcept
        : queue_(std::exchange(other.queue_, nullptr)), token_(other.token_), why_(other.why_) {}
    reservation& operator=(reservation&& other) noexcept {
      if (this != &other) {
        abandon();
        queue_ = std::exchange(other.queue_, nullptr);
        token_ = other.token_;
        why_ = other.why_;
      }
      return *this;
    }
    ~reservation() { abandon(); }

    /// True while the position is held.
    explicit operator bool() const noexcept { return queue_ != nullptr; }
    /// The result of reserve(): ok, or the reason why there is no position.
    [[nodiscard]] queue_result result() const noexcept { return why_; }
    /// The number of its record, from 0 on.
    [[nodiscard]] std::uint64_t number() const noexcept { return queue_->ring_.number_of(token_); }

    /// Puts the record at this position. Waits for the byte budget only, and never when it is the next to be
    /// taken.
    ///
    /// @pre   the position is held
    /// @error timed_out, stopped, cancelled: the caller keeps position and record; throws as the queue's
    ///        put() does: the position is still held
    template <class U>
      requires std::is_constructible_v<T, U&&>
    queue_result put(U&& item, const wait_limit& limit = {}) {
      DEEPREC_EXPECTS(static_cast<bool>(*this));
      return queue_->as_measured(std::forward<U>(item), [&](auto&& made, std::size_t bytes) {
        return queue_->fill(*this, record, std::forward<decltype(made)>(made), bytes, limit);
      });
    }
    /// Puts a fault or a failed status at this position.
    ///
    /// @pre   the position is held
    /// @error timed_out, stopped, cancelled: as put(); throws std::bad_alloc: the position is still held
    queue_result fail(fault why, const wait_limit& limit = {}) {
      DEEPREC_EXPECTS(static_cast<bool>(*this));
      return queue_->fill(*this, failure, std::make_unique<const fault>(std::move(why)), 0, limit);
    }
    /// The same, for an exception.
    ///
    /// @pre   the position is held
    /// @error timed_out, stopped, cancelled: as put()
    queue_result fail(std::exception_ptr why, const wait_limit& limit = {}) {
      DEEPREC_EXPECTS(static_cast<bool>(*this));
      return queue_->fill(*this, exception, std::move(why), 0, limit);
    }
    /// Gives the position up: consumers skip it.
    void abandon() noexcept {
      if (queue_ != nullptr) std::exchange(queue_, nullptr)->pass_over(token_);
    }

   private:
    friend class staging_queue;
    reservation(staging_queue* queue, token t) noexcept : queue_(queue), token_(t), why_(queue_result::ok) {}
    explicit reservation(queue_result why) noexcept : why_(why) {}

    staging_queue* queue_ = nullptr;
    token token_{};
    queue_result why_ = queue_result::not_now;
  };

  /// Reserves the next position, waiting while the queue is full. Call it where the order is decided, for
  /// instance under the lock that the source needs anyway, and make the record afterwards, in parallel.
  /// Reserved positions count towards the capacity, which should be at least the number of threads that make
  /// records.
  ///
  /// @threads thread-safe
  /// @error   an empty reservation; result() is timed_out, stopped, closed or cancelled
  [[nodiscard]] reservation reserve(const wait_limit& limit = {}) {
    token t;
    const auto once = [&] {
      if (is_cancelled()) return queue_result::cancelled;
      return is_deep() ? full() : ring_.claim(t);
    };
    queue_result r = once();
    if (r == queue_result::not_now) r = wait_for_space(once, limit);
    return r == queue_result::ok ? reservation(this, t) : reservation(r);
  }

  // --- consumers -----------------------------------------------------------------------------------

  /// Takes the next record, waiting while there is none.
  ///
  /// @cost    about 20 ns when there is one
  /// @threads thread-safe
  /// @error   result() is failed (a producer's fault or exception, in order), closed (after the last record),
  ///          cancelled, timed_out or stopped; throws what T's move throws: that record is lost
  taken_item<T> take(const wait_limit& limit = {}) {
    taken_item<T> answer(queue_result::not_now);
    const auto once = [&] { return is_cancelled() ? queue_result::cancelled : take_once(answer); };
    queue_result r = once();
    if (r == queue_result::not_now) [[unlikely]] {
      r = items_.wait_for(once, limit, [this]() noexcept {
        if (ring_.was_takeable()) items_.notify_one();
      });
    }
    answer.why_ = r;
    return answer;
  }
  /// The same without waiting; not_now when there is none.
  taken_item<T> try_take() {
    taken_item<T> answer(queue_result::not_now);
    answer.why_ = is_cancelled() ? queue_result::cancelled : take_once(answer);
    return answer;
  }
  /// Takes up to n records to `out`, in order. Waits until there are n, or until the limit is reached: then
  /// it has what there was. A limit that has passed takes what there is now. What ends it early (a fault,
  /// the end of the queue) is reported by the same call, after the records before it.
  ///
  /// @pre     n records fit at `out`, an output iterator
  /// @cost    as n takes
  /// @threads thread-safe; of several takers each gets records in order, not neighbours
  /// @error   size() below n; result() as that of take(). Throws what T's move or the assignment to `out`
  ///          throws: that record is lost, those before it are at `out`
  /// @example batch.push_back(queue.take().or_throw());                       // waits for the first request
  ///          taken_count more = queue.take_some(std::back_inserter(batch), 31, within(2ms));
  template <class Out>
  taken_count take_some(Out out, std::size_t n, const wait_limit& limit = {}) {
    std::size_t count = 0;
    while (count < n) {
      taken_item<T> one = take(limit);
      if (!one) return {std::move(one), count};
      *out = std::move(*one);
      ++out;
      ++count;
    }
    return {taken_reason(queue_result::ok), count};
  }
  /// Empties the queue, also after cancel(): calls use(T&&) for each record, drops faults and exceptions;
  /// never waits.
  ///
  /// @threads thread-safe
  /// @error   none; throws what `use` throws, and that record is lost
  template <class Use>
  std::size_t drain(Use&& use) {
    std::size_t count = 0;
    while (true) {
      taken_item<T> one(queue_result::not_now);
      const queue_result r = take_once(one);
      if (r == queue_result::ok) {
        ++count;
        use(std::move(*one));
      } else if (r != queue_result::failed) {
        return count;
      }
    }
  }

  // --- both ----------------------------------------------------------------------------------------

  /// Refuses puts. Takes continue until everything put or reserved is taken, then return closed. Idempotent.
  ///
  /// @threads thread-safe
  /// @error   none
  void close() noexcept {
    ring_.close();
    items_.notify_all();
    space_.notify_all();
  }
  /// Wakes all waiters; every put and take returns cancelled from now on. Nothing is dropped. Idempotent.
  void cancel() noexcept {
    // release: a thread that returns cancelled sees everything before.
    cancelled_.store(1, Atomics::at(detail::access::cancel_mark, std::memory_order_release));
    items_.notify_all();
    space_.notify_all();
  }
  /// Reverses close() and cancel(); the queue continues with the records it holds.
  void resume() noexcept {
    ring_.reopen();
    // release: as above
    cancelled_.store(0, Atomics::at(detail::access::resume_mark, std::memory_order_release));
  }
  [[nodiscard]] bool is_closed() const noexcept { return ring_.is_closed(); }
  [[nodiscard]] bool is_cancelled() const noexcept {
    return cancelled_.load(Atomics::at(detail::access::cancel_seen, std::memory_order_acquire)) != 0;
  }

  [[nodiscard]] std::size_t capacity() const noexcept { return ring_.capacity(); }
  /// Puts and reservations wait while there are `depth` records; from 1 to capacity(), which it is at first.
  /// Records that are there stay. Exact for one producer at a time; p producers may exceed it by p - 1.
  ///
  /// @pre     depth >= 1
  /// @cost    a store, and wakes producers
  /// @threads thread-safe
  /// @error   none
  void limit_depth(std::size_t depth) noexcept {
    DEEPREC_EXPECTS(depth >= 1);
    // relaxed: a number; notify_all orders it before the check of a producer that sleeps
    depth_.store(depth, Atomics::at(detail::access::depth_limit, std::memory_order_relaxed));
    space_.notify_all();
  }
  [[nodiscard]] std::size_t depth_limit() const noexcept {
    const std::size_t depth = depth_.load(Atomics::at(detail::access::statistic, std::memory_order_relaxed));
    return depth < capacity() ? depth : capacity();
  }
  /// @cost    some loads; counting itself costs nothing while no thread waits
  /// @threads thread-safe
  /// @error   none
  [[nodiscard]] staging_stats stats() const noexcept {
    const std::size_t depth = ring_.was_size();
    return {depth < capacity() ? depth : capacity(),
            bytes_.load(Atomics::at(detail::access::statistic, std::memory_order_relaxed)),
            ring_.claimed_number(),
            ring_.taken_number(),
            space_.counts(),
            items_.counts()};
  }

 private:
  static std::size_t checked(std::size_t capacity) {
    if (!core::can_have(capacity))
      detail::raise(errc::invalid_value,
                    "staging_queue: capacity must be at least 1 and fit positions and memory");
    return capacity;
  }

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
        detail::raise(errc::unsupported,
                      "staging_queue: an item that is measured must be a record, or copyable into one");
      }
    }
  }

  // Constructs the entry in the claimed slot of a position and publishes it. Where the constructor throws,
  // its bytes are given back, and the position is still held.
  template <class Which, class U>
  void make(reservation& where, Which which, U&& item, std::size_t bytes) {
    struct guard {
      staging_queue* queue;
      std::size_t held;
      ~guard() {
        if (queue != nullptr) queue->give_back(held);
      }
    } unless_made{this, bytes};
    const token t = where.token_;
    ::new (static_cast<void*>(t.place->bytes)) entry(which, std::forward<U>(item), bytes);
    unless_made.queue = nullptr;
    where.queue_ = nullptr;
    ring_.publish(t);
    items_.notify_one();
  }
  void pass_over(token t) noexcept {
    ring_.publish_hole(t);
    items_.notify_one();  // consumers of a closed queue may wait for this slot only
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
    reservation place(this, t);  // a hole where the constructor throws
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
  queue_result fill(reservation& where, Which which, U&& item, std::size_t bytes, const wait_limit& limit) {
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

  // Whether limit_depth() allows no record more. relaxed: a taker wakes producers after it has moved head_,
  // and a producer that sleeps has looked again after a fence; an old head_ only makes it wait for that.
  [[nodiscard]] bool is_deep() const noexcept {
    const std::size_t depth = depth_.load(Atomics::at(detail::access::depth_seen, std::memory_order_relaxed));
    return depth < ring_.capacity() && ring_.was_size() >= depth;
  }
  [[nodiscard]] queue_result full() const noexcept {
    return ring_.is_closed() ? queue_result::closed : queue_result::not_now;
  }
  template <class Exempt>
  bool admit(std::size_t bytes, Exempt exempt) noexcept {
    // relaxed: a count; the records are published by their slots
    std::size_t held = bytes_.load(Atomics::at(detail::access::bytes_seen, std::memory_order_relaxed));
    do {
      const bool fits = bytes <= budget_ && held <= budget_ - bytes;
      if (!fits && held != 0 && !exempt()) return false;
    } while (!bytes_.compare_exchange_weak(held, held + bytes,
                                           Atomics::at(detail::access::bytes_take, std::memory_order_relaxed),
                                           std::memory_order_relaxed));
    return true;
  }
  void give_back(std::size_t bytes) noexcept {
    if (bytes == 0) return;
    // relaxed: as above
    bytes_.fetch_sub(bytes, Atomics::at(detail::access::bytes_give, std::memory_order_relaxed));
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

  queue_result take_once(taken_item<T>& answer) {
    token t;
    bool holes = false;
    const queue_result r = ring_.take(t, holes);
    if (holes) space_.notify_all();
    if (r != queue_result::ok) return r;
    struct guard {
      staging_queue* queue;
      token slot;
      ~guard() {
        entry* const done = slot.place->item();
        const std::size_t bytes = done->bytes;
        std::destroy_at(done);
        queue->ring_.release_slot(slot);
        if (bytes != 0) {
          // relaxed: as in admit()
          queue->bytes_.fetch_sub(bytes, Atomics::at(detail::access::bytes_give, std::memory_order_relaxed));
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

  core ring_;
  const std::size_t budget_;
  const size_function bytes_of_;
  typename Atomics::template atomic<std::uint32_t> cancelled_{0};
  typename Atomics::template atomic<std::size_t> depth_;
  alignas(64) typename Atomics::template atomic<std::size_t> bytes_{0};
  alignas(64) waiting_room<Wait, Atomics> items_;  // consumers wait here
  alignas(64) waiting_room<Wait, Atomics> space_;  // producers wait here
};

}}  // namespace deeprec::DEEPREC_ABI
