// Sleeping until a condition may have changed; notifying without waiters writes nothing.
//
//   waiter                                   notifier
//   key = prepare()    registers               publish, then notify_one()
//   check again        true: cancel()          fence, read one word that rarely changes
//   wait(key)          sleeps                  and, only if a thread waits, wakes one
//
// One event_count for each direction of a queue: a shared one loses wake-ups. Not here: the condition that is
// waited for, and polling before the sleep (wait_strategies.hpp).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/support/atomics.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// @pre     its threads are of one process: in memory that processes share nobody wakes another process
/// @threads every member is thread-safe
template <class Atomics = detail::std_atomics>
class event_count {
 public:
  using time_point = std::chrono::steady_clock::time_point;
  /// Returned by prepare() for wait(): the epoch in which the caller registered.
  enum class key : std::uint32_t {};

  event_count() noexcept { Atomics::prepare(); }
  event_count(const event_count&) = delete;
  event_count& operator=(const event_count&) = delete;

  /// Registers the caller as a waiter. Check the condition again, then call wait() or cancel().
  ///
  /// @post    a notify_* after a change that the second check missed ends wait(key)
  /// @cost    an atomic addition, and a membarrier (some us)
  /// @threads thread-safe
  /// @error   none
  [[nodiscard]] key prepare() noexcept {
    // relaxed: ordered by the fence after it, also with what the notifier that raised the epoch had
    // published.
    const std::uint64_t before =
        state_.fetch_add(one_waiter, Atomics::at(detail::access::waiter_count, std::memory_order_relaxed));
    // Store, fence, load here; store, fence, load in notify_*: one of the two sees the other's store.
    Atomics::heavy_fence(detail::access::wait_fence);
    return static_cast<key>(static_cast<std::uint32_t>(before));
  }

  /// Instead of wait(), when the second check succeeded.
  ///
  /// @cost    an atomic exchange
  /// @threads thread-safe
  /// @error   none
  void cancel() noexcept { leave(); }

  /// Sleeps until a notify_* that came after prepare(); may return spuriously.
  ///
  /// @pre     key comes from the caller's last prepare(), which was not cancelled
  /// @cost    two system calls, and the time to wake up (1 to 40 us)
  /// @threads thread-safe
  /// @error   false: the deadline has passed
  bool wait(key seen, time_point deadline = (time_point::max)()) noexcept {
    const bool in_time = Atomics::park(state_, static_cast<std::uint32_t>(seen), deadline);
    leave();
    return in_time;
  }

  /// Ends the wait of one waiter, if there is one.
  ///
  /// @cost    without waiters: one load of a line that stays shared (and a fence without membarrier).
  ///          Else a system call, unless every waiter is already signalled
  /// @threads thread-safe
  /// @error   none
  void notify_one() noexcept {
    Atomics::light_fence(detail::access::notify_one_fence);
    // relaxed: the fence before it, and the compare-exchange below, do the work
    std::uint64_t seen = state_.load(Atomics::at(detail::access::waiters_seen, std::memory_order_relaxed));
    if (waiters(seen) == 0) [[likely]]
      return;
    raise(seen, 1);
  }

  /// Ends the wait of all waiters.
  void notify_all() noexcept {
    Atomics::light_fence(detail::access::notify_all_fence);
    std::uint64_t seen = state_.load(Atomics::at(detail::access::waiters_seen, std::memory_order_relaxed));
    if (waiters(seen) == 0) [[likely]]
      return;
    raise(seen, -1);
  }

  /// True when other threads may wait; called by a waiter that has left.
  [[nodiscard]] bool others_wait() const noexcept {
    return waiters(state_.load(Atomics::at(detail::access::looked_at, std::memory_order_relaxed))) != 0;
  }

  /// The number of threads between prepare() and the end of wait() or cancel().
  [[nodiscard]] unsigned was_waiting() const noexcept {
    return waiters(state_.load(Atomics::at(detail::access::statistic, std::memory_order_relaxed)));
  }

 private:
  // | signalled 16 | waiters 16 | epoch 32 |
  // `signalled` counts waiters that need no further wake-up: each notify_one that wakes adds one, each waiter
  // that leaves subtracts one. It never exceeds the number of waiters that are awake with a stale key or
  // about to be woken; so signalled == waiters means that all of them will check again without a system call.
  static constexpr std::uint64_t one_waiter = std::uint64_t{1} << 32;
  static constexpr std::uint64_t one_signal = std::uint64_t{1} << 48;

  static constexpr unsigned waiters(std::uint64_t state) noexcept {
    return static_cast<unsigned>(state >> 32) & 0xffffu;
  }
  static constexpr unsigned signalled(std::uint64_t state) noexcept {
    return static_cast<unsigned>(state >> 48);
  }

  void raise(std::uint64_t seen, int count) noexcept {
    std::uint64_t raised = 0;
    do {
      if (waiters(seen) == 0) return;
      if (count > 0 && signalled(seen) >= waiters(seen)) return;
      const std::uint64_t signals =
          count > 0 ? signalled(seen) + std::uint64_t{1} : std::uint64_t{waiters(seen)};
      const auto epoch = static_cast<std::uint32_t>(seen) + 1u;  // wraps without a carry into the waiters
      raised = signals << 48 | std::uint64_t{waiters(seen)} << 32 | epoch;
      // release, with leave(): everything published before. A light fence orders nothing by itself.
    } while (!state_.compare_exchange_weak(
        seen, raised, Atomics::at(detail::access::epoch_raise, std::memory_order_release),
        std::memory_order_relaxed));
    Atomics::wake(state_, count);
  }

  void leave() noexcept {
    // relaxed: a first guess for the exchange
    std::uint64_t seen = state_.load(Atomics::at(detail::access::statistic, std::memory_order_relaxed));
    std::uint64_t left = 0;
    do {
      left = seen - one_waiter - (signalled(seen) > 0 ? one_signal : 0);
      // acquire: a woken thread sees what the notifier had published, also at its last check.
    } while (!state_.compare_exchange_weak(
        seen, left, Atomics::at(detail::access::waiter_leave, std::memory_order_acquire),
        std::memory_order_relaxed));
  }

  typename Atomics::template atomic<std::uint64_t> state_{0};
};

}}  // namespace deeprec::DEEPREC_ABI
