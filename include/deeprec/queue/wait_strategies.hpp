// Wait strategies of blocked threads, and limits of their waits.
//
//   spin_wait       polls without pause                     one thread per core, latency above all
//   yield_wait      polls, and lets other threads run       more threads than cores
//   adaptive_wait   polls 5 to 50 us, by recent waits,      the default: as fast as the others while
//                   then sleeps                             busy, and no CPU time while idle
//   patient_wait    the same, up to 200 us                  stages of a pipeline: a sleep of one costs
//                                                           its neighbour the system call that ends it
//   park_wait       sleeps at once                          rare events
//
// Only rings whose strategy sleeps pay for notifying. Not here: sleeping itself (event_count.hpp).
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <stop_token>
#include <type_traits>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/queue/event_count.hpp>
#include <deeprec/support/atomics.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The result of an operation on a queue.
enum class queue_result : unsigned char {
  ok,
  not_now,    ///< try_ only: full, empty, or another thread is in the middle of an operation
  timed_out,  ///< the deadline passed; the caller keeps the item of a put
  stopped,    ///< the caller's stop token was triggered; likewise
  closed,     ///< put: the queue accepts no more; take: closed, and every item has been taken
  cancelled,  ///< cancel() was called; the queue keeps its items
  failed,     ///< take: a producer enqueued a fault or an exception instead of an item
};

/// The code of a result: would_block for not_now, producer_failed for failed; the others keep their names.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
[[nodiscard]] constexpr errc to_errc(queue_result r) noexcept {
  switch (r) {
    case queue_result::ok:
      return errc::ok;
    case queue_result::not_now:
      return errc::would_block;
    case queue_result::timed_out:
      return errc::timed_out;
    case queue_result::stopped:
      return errc::stopped;
    case queue_result::closed:
      return errc::closed;
    case queue_result::cancelled:
      return errc::cancelled;
    case queue_result::failed:
      return errc::producer_failed;
  }
  return errc::ok;
}

/// The result with this code; failed for a code that no queue has. to_queue_result(to_errc(r)) == r.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
[[nodiscard]] constexpr queue_result to_queue_result(errc code) noexcept {
  for (int r = 0; r < static_cast<int>(queue_result::failed); ++r) {
    if (to_errc(static_cast<queue_result>(r)) == code) return static_cast<queue_result>(r);
  }
  return queue_result::failed;
}

/// The result as a status with the code to_errc(r).
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
[[nodiscard]] constexpr status to_status(queue_result r) noexcept {
  if (r == queue_result::ok) return {};
  return {to_errc(r),
          r == queue_result::not_now ? "queue: full, empty, or in the middle of another call" : "queue"};
}

/// The limit of a blocking call: a deadline, a stop token, or none.
struct wait_limit {
  std::chrono::steady_clock::time_point deadline = (std::chrono::steady_clock::time_point::max)();
  std::stop_token stop{};
};

/// A deadline, `time` from now. A time that the clock can't represent is no limit; one that is not positive,
/// or NaN, has passed already.
///
/// @cost    reads the clock
/// @threads reentrant
/// @error   none
template <class Rep, class Period>
[[nodiscard]] wait_limit within(std::chrono::duration<Rep, Period> time, std::stop_token stop = {}) {
  using clock = std::chrono::steady_clock;
  using std::chrono::duration_cast;
  using real_seconds = std::chrono::duration<double>;
  const clock::time_point now = clock::now();
  if (!(time > time.zero())) return {now, std::move(stop)};
  // Compared in floating point, which does not overflow; a margin of one second covers the rounding.
  const real_seconds countable = (clock::time_point::max)() - now - std::chrono::seconds(1);
  if (real_seconds(time) >= countable) return {(clock::time_point::max)(), std::move(stop)};
  // Converted in two parts, so that no product with the ratio of the periods overflows.
  const auto whole = duration_cast<std::chrono::seconds>(time);
  return {now + duration_cast<clock::duration>(whole) + duration_cast<clock::duration>(time - whole),
          std::move(stop)};
}

/// Statistics of the waits at one side of a queue.
struct wait_counts {
  std::uint64_t waits = 0;    ///< calls that had to wait
  std::uint64_t parks = 0;    ///< sleeps in these calls
  std::uint64_t wait_ns = 0;  ///< total time of those that took more than about 2 us
  std::uint64_t spin_ns = 0;  ///< current polling time of adaptive_wait before it sleeps
  unsigned waiting = 0;       ///< threads that sleep, or are about to
};

// A strategy's busy() polls while that costs other threads nothing; its look() polls up to the strategy's
// limit.
namespace detail {

/// Polls without end: the first `Relaxed` times without yielding the core. Checks the limit every `Between`
/// polls.
template <unsigned Relaxed, unsigned Between>
struct looking_wait {
  static constexpr bool parks = false;
  static constexpr bool timed = false;
  template <class Atomics, class Look>
  static queue_result busy(Look&) {
    return queue_result::not_now;
  }
  template <class Atomics, class Look, class Expired>
  static queue_result look(Look& look, Expired& expired, std::uint64_t) {
    for (unsigned n = 1;; ++n) {
      const queue_result found = look();
      if (found != queue_result::not_now) return found;
      n < Relaxed ? Atomics::relax() : Atomics::yield();
      if (n % Between == 0) {
        if (const queue_result e = expired(); e != queue_result::not_now) return e;
      }
    }
  }
};

}  // namespace detail

struct spin_wait : detail::looking_wait<(std::numeric_limits<unsigned>::max)(), 256> {};
struct yield_wait : detail::looking_wait<16, 64> {};

struct park_wait {
  static constexpr bool parks = true;
  static constexpr bool timed = false;
  template <class Atomics, class Look>
  static queue_result busy(Look&) {
    return queue_result::not_now;
  }
  template <class Atomics, class Look, class Expired>
  static queue_result look(Look& look, Expired&, std::uint64_t) {
    return look();
  }
};

namespace detail {

/// Polls from 5 us to `Longest` ns, by recent waits, then sleeps.
template <std::uint64_t Longest>
struct learning_wait {
  static constexpr bool parks = true;
  static constexpr bool timed = true;
  static constexpr std::uint64_t shortest_ns = 5'000;
  static constexpr std::uint64_t longest_ns = Longest;
  static constexpr unsigned busy_looks = 128;  // polls before the first yield

  template <class Atomics, class Look>
  static queue_result busy(Look& look) {
    for (unsigned n = 0; n < busy_looks; ++n) {
      const queue_result found = look();
      if (found != queue_result::not_now) return found;
      Atomics::relax();
    }
    return queue_result::not_now;
  }
  template <class Atomics, class Look, class Expired>
  static queue_result look(Look& look, Expired& expired, std::uint64_t budget_ns) {
    // The thread that is waited for may need this core: yield between polls.
    const auto give_up = Atomics::now() + std::chrono::nanoseconds(budget_ns);
    do {
      for (int n = 0; n < 4; ++n) {
        const queue_result found = look();
        if (found != queue_result::not_now) return found;
        Atomics::yield();
      }
      if (const queue_result e = expired(); e != queue_result::not_now) return e;
    } while (Atomics::now() < give_up);
    return queue_result::not_now;
  }

  /// The next polling budget, a moving average: towards twice the time of a wait that ended while polling,
  /// towards longest_ns after a sleep that longer polling would have avoided, towards shortest_ns after a
  /// longer one.
  static std::uint64_t learn(std::uint64_t budget_ns, std::uint64_t waited_ns, bool parked) noexcept {
    const std::uint64_t wanted = !parked                      ? 2 * waited_ns
                                 : waited_ns < 2 * longest_ns ? longest_ns
                                                              : shortest_ns;
    const std::uint64_t bounded = std::clamp(wanted, shortest_ns, longest_ns);
    return (7 * budget_ns + bounded) / 8;
  }
};

}  // namespace detail

struct adaptive_wait : detail::learning_wait<50'000> {};
struct patient_wait : detail::learning_wait<200'000> {};

namespace detail {

// Where every notification wakes all waiters, or where only one thread waits.
struct wake_nobody {
  void operator()() const noexcept {}
};

// The waiting of the threads at one side of a queue: a strategy, an event_count, and counters.
// Threads: the most threads that may wait here at once; 0: any number.
template <class Wait, class Atomics, int Threads = 0>
class waiting_room {
 public:
  // Calls look() until it returns anything but not_now, or the limit is reached. look() must succeed when
  // called after a notify_* of the other side if an item (or a free slot) is available.
  //
  // A waiter may consume a wake-up that another one needs: it was woken for a slot after the one it took, or
  // leaves by an exception of look(), a deadline, a stop or a cancel. So on every way out wake_next() is
  // called when others wait: it must notify here if an item (or a free slot) is available.
  template <class Look, class WakeNext>
  queue_result wait_for(Look&& look, const wait_limit& limit, const WakeNext& wake_next) {
    static_assert(noexcept(wake_next()));
    const successor<WakeNext> next{*this, wake_next};
    add(waits_, 1);
    // Not timed: reading the clock would take as long as most of these waits.
    queue_result answer = Wait::template busy<Atomics>(look);
    if (answer != queue_result::not_now) return answer;
    const auto expired = [&limit] {
      if (limit.stop.stop_requested()) return queue_result::stopped;
      if (limit.deadline != forever && Atomics::now() >= limit.deadline) return queue_result::timed_out;
      return queue_result::not_now;
    };
    const auto begin = Wait::timed ? Atomics::now() : time_point{};
    bool parked = false;
    answer = Wait::template look<Atomics>(look, expired, spin_ns_.load(statistic()));
    if constexpr (Wait::parks) {
      if (answer == queue_result::not_now) {
        parked = true;
        answer = sleep_until(look, limit);
      }
    }
    if constexpr (Wait::timed) {
      const auto waited = static_cast<std::uint64_t>(
          std::chrono::duration_cast<std::chrono::nanoseconds>(Atomics::now() - begin).count());
      add(wait_ns_, waited);
      spin_ns_.store(Wait::learn(spin_ns_.load(statistic()), waited, parked), statistic());
    }
    return answer;
  }

  void notify_one() noexcept {
    if constexpr (Wait::parks) sleepers_.notify_one();
  }
  void notify_all() noexcept {
    if constexpr (Wait::parks) sleepers_.notify_all();
  }

  [[nodiscard]] wait_counts counts() const noexcept {
    return {waits_.load(statistic()), parks_.load(statistic()), wait_ns_.load(statistic()),
            spin_ns_.load(statistic()), sleepers_.was_waiting()};
  }

 private:
  using time_point = std::chrono::steady_clock::time_point;
  using counter = typename Atomics::template atomic<std::uint64_t>;
  static constexpr time_point forever = (time_point::max)();
  // relaxed: counters only
  static auto statistic() noexcept {
    return Atomics::at(detail::access::statistic, std::memory_order_relaxed);
  }
  static void add(counter& c, std::uint64_t n) noexcept {
    if constexpr (Threads == 1) {  // a fetch_add would wait for the stores of the last push or pop
      c.store(c.load(statistic()) + n, statistic());
    } else {
      c.fetch_add(n, statistic());
    }
  }

  template <class WakeNext>
  struct successor {
    const waiting_room& room;
    const WakeNext& wake_next;
    ~successor() {
      if constexpr (Wait::parks && !std::is_same_v<WakeNext, wake_nobody>) {
        if (room.sleepers_.others_wait()) wake_next();
      }
    }
  };
  struct wake_all {
    event_count<Atomics>* sleepers;
    void operator()() const noexcept { sleepers->notify_all(); }
  };

  template <class Look>
  queue_result sleep_until(Look& look, const wait_limit& limit) {
    if (!limit.stop.stop_possible()) return sleep_loop(look, limit);
    const std::stop_callback<wake_all> on_stop(limit.stop, wake_all{&sleepers_});
    return sleep_loop(look, limit);
  }
  template <class Look>
  queue_result sleep_loop(Look& look, const wait_limit& limit) {
    while (true) {
      const auto key = sleepers_.prepare();
      queue_result found = queue_result::not_now;
#if DEEPREC_EXCEPTIONS
      try {
        found = look();
      } catch (...) {  // of a move constructor
        sleepers_.cancel();
        throw;
      }
#else
      found = look();
#endif
      if (found == queue_result::not_now && limit.stop.stop_requested()) found = queue_result::stopped;
      if (found != queue_result::not_now) {
        sleepers_.cancel();
        return found;
      }
      add(parks_, 1);
      if (!sleepers_.wait(key, limit.deadline)) {
        found = look();  // accepts what arrived with the deadline
        return found == queue_result::not_now ? queue_result::timed_out : found;
      }
    }
  }

  event_count<Atomics> sleepers_;  // read by the other side at each operation; the rest is not
  alignas(64) counter waits_{0};
  counter parks_{0};
  counter wait_ns_{0};
  counter spin_ns_{10'000};
};

}  // namespace detail

}}  // namespace deeprec::DEEPREC_ABI
