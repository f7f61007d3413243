// How wait strategies poll: without end, or for a time that they learn.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/queue/queue_result.hpp>
#include <deeprec/support/atomics.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

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

}}}  // namespace deeprec::DEEPREC_ABI::detail
