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

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <memory_resource>
#include <type_traits>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/queue/detail/staging_core.hpp>
#include <deeprec/queue/taken_item.hpp>
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
  using core = detail::staging_core<T, Wait, Atomics>;

 public:
  using value_type = T;
  /// The bytes of the budget that a record takes; null: sizeof(T).
  using size_function = typename core::size_function;

  explicit staging_queue(std::size_t capacity) : staging_queue(staging_options{.capacity = capacity}) {}
  explicit staging_queue(const staging_options& options, size_function size_of = nullptr)
      : core_(options.capacity, options.byte_budget, options.memory, size_of) {}

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
    return core_.as_measured(std::forward<U>(item), [&](auto&& made, std::size_t bytes) {
      return core_.put_as(core::record, std::forward<decltype(made)>(made), bytes, limit);
    });
  }
  /// The same without waiting; not_now when the queue is full.
  ///
  /// @threads thread-safe, lock-free
  /// @error   not_now, closed, cancelled; throws as put() does
  template <class U>
    requires std::is_constructible_v<T, U&&>
  queue_result try_put(U&& item) {
    return core_.as_measured(std::forward<U>(item), [&](auto&& made, std::size_t bytes) {
      return core_.put_once(core::record, std::forward<decltype(made)>(made), bytes);
    });
  }
  /// Enqueues a fault or a failed status. Records put before are delivered before it.
  ///
  /// @cost    as put(), and one allocation from the heap
  /// @threads thread-safe
  /// @error   timed_out, stopped, closed, cancelled; throws std::bad_alloc: nothing was put
  queue_result fail(fault why, const wait_limit& limit = {}) {
    return core_.put_as(core::failure, std::make_unique<const fault>(std::move(why)), 0, limit);
  }
  /// The same, for an exception.
  ///
  /// @threads thread-safe
  /// @error   timed_out, stopped, closed, cancelled
  queue_result fail(std::exception_ptr why, const wait_limit& limit = {}) {
    return core_.put_as(core::exception, std::move(why), 0, limit);
  }

  /// A reserved position, obtained before its record is made. If it is destroyed unused, consumers skip it.
  ///
  /// @threads one thread at a time
  class reservation {
   public:
    reservation() noexcept = default;

    /// True while the position is held.
    explicit operator bool() const noexcept { return place_.core() != nullptr; }
    /// The result of reserve(): ok, or the reason why there is no position.
    [[nodiscard]] queue_result result() const noexcept { return why_; }
    /// The number of its record, from 0 on.
    [[nodiscard]] std::uint64_t number() const noexcept { return place_.number(); }

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
      return place_.core()->as_measured(std::forward<U>(item), [&](auto&& made, std::size_t bytes) {
        return place_.core()->fill(place_, core::record, std::forward<decltype(made)>(made), bytes, limit);
      });
    }
    /// Puts a fault or a failed status at this position.
    ///
    /// @pre   the position is held
    /// @error timed_out, stopped, cancelled: as put(); throws std::bad_alloc: the position is still held
    queue_result fail(fault why, const wait_limit& limit = {}) {
      DEEPREC_EXPECTS(static_cast<bool>(*this));
      return place_.core()->fill(place_, core::failure, std::make_unique<const fault>(std::move(why)), 0,
                                 limit);
    }
    /// The same, for an exception.
    ///
    /// @pre   the position is held
    /// @error timed_out, stopped, cancelled: as put()
    queue_result fail(std::exception_ptr why, const wait_limit& limit = {}) {
      DEEPREC_EXPECTS(static_cast<bool>(*this));
      return place_.core()->fill(place_, core::exception, std::move(why), 0, limit);
    }
    /// Gives the position up: consumers skip it.
    void abandon() noexcept { place_.abandon(); }

   private:
    friend class staging_queue;

    typename core::held_place place_;
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
    reservation made;
    made.why_ = core_.claim(made.place_, limit);
    return made;
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
    core_.take(answer, limit);
    return answer;
  }
  /// The same without waiting; not_now when there is none.
  taken_item<T> try_take() {
    taken_item<T> answer(queue_result::not_now);
    core_.try_take(answer);
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
      const queue_result r = core_.take_once(one);
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
  void close() noexcept { core_.close(); }
  /// Wakes all waiters; every put and take returns cancelled from now on. Nothing is dropped. Idempotent.
  void cancel() noexcept { core_.cancel(); }
  /// Reverses close() and cancel(); the queue continues with the records it holds.
  void resume() noexcept { core_.resume(); }
  [[nodiscard]] bool is_closed() const noexcept { return core_.is_closed(); }
  [[nodiscard]] bool is_cancelled() const noexcept { return core_.is_cancelled(); }

  [[nodiscard]] std::size_t capacity() const noexcept { return core_.capacity(); }
  /// Puts and reservations wait while there are `depth` records; from 1 to capacity(), which it is at first.
  /// Records that are there stay. Exact for one producer at a time; p producers may exceed it by p - 1.
  ///
  /// @pre     depth >= 1
  /// @cost    a store, and wakes producers
  /// @threads thread-safe
  /// @error   none
  void limit_depth(std::size_t depth) noexcept {
    DEEPREC_EXPECTS(depth >= 1);
    core_.limit_depth(depth);
  }
  [[nodiscard]] std::size_t depth_limit() const noexcept { return core_.depth_limit(); }
  /// @cost    some loads; counting itself costs nothing while no thread waits
  /// @threads thread-safe
  /// @error   none
  [[nodiscard]] staging_stats stats() const noexcept {
    return {core_.was_size(), core_.was_bytes(), core_.claimed(),
            core_.taken(),    core_.put_waits(), core_.take_waits()};
  }

 private:
  core core_;
};

}}  // namespace deeprec::DEEPREC_ABI
