// The waiting of the threads at one side of a queue: a wait strategy, an event_count, and counters.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <stop_token>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/queue/event_count.hpp>
#include <deeprec/queue/queue_result.hpp>
#include <deeprec/support/atomics.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {
// Where every notification wakes all waiters, or where only one thread waits.
struct wake_nobody {
  void operator()() const noexcept {}
};
}  // namespace detail

/// The waiting of the threads at one side of a queue: a wait strategy, an event_count, and counters. At most
/// Threads threads wait here at once; 0: any number.
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
      if constexpr (Wait::parks && !std::is_same_v<WakeNext, detail::wake_nobody>) {
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

}}  // namespace deeprec::DEEPREC_ABI
