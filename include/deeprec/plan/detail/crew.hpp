// Who works on a run besides the thread that it belongs to, and how each learns that an op became ready: one
// word.
//
//   publisher                               helper                             owner
//   ready.add(op)                           seen = look()                      seen = look()
//   publish(): the epoch goes on            nothing is ready: leave(seen)      nothing is ready: sleep(seen)
//     the owner slept: wakes it               the epoch went on: again           the epoch went on: again
//     helpers are away: call them
//
// Whoever leaves or falls asleep does so by an exchange of the word that it saw before its last look: either
// the publisher sees that it is gone, or the exchange fails.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/support/atomics.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// @threads look, publish, count: any; leave: a helper; sleep: the owner
template <class Atomics = std_atomics>
class crew {
 public:
  using word = std::uint64_t;

  /// @param helpers  the most at once
  void restart(int helpers) noexcept {
    helpers_ = helpers;
    // relaxed: whoever calls the first helper publishes it
    word_.store(0, Atomics::at(access::looked_at, std::memory_order_relaxed));
  }

  [[nodiscard]] word look() const noexcept {
    // acquire: the ops that were added before this epoch
    return word_.load(Atomics::at(access::crew_look, std::memory_order_acquire));
  }
  /// After `ops` were added to what is ready, or the run has ended. Wakes the owner. Returns how many helpers
  /// may be called for the others: they count as present, called or not.
  int publish(int ops) noexcept {
    // relaxed: a first guess for the exchange
    word seen = word_.load(Atomics::at(access::looked_at, std::memory_order_relaxed));
    while (true) {
      const bool wakes = (seen & owner_sleeps) != 0;
      const int calls = std::clamp(helpers_ - present(seen), 0, (std::max)(ops - (wakes ? 1 : 0), 0));
      // Without the bit, and without a carry out of the epoch.
      const word to = static_cast<word>(present(seen) + calls) * one_helper | epoch(word{epoch(seen)} + 1);
      // release: what was added
      if (!word_.compare_exchange_weak(seen, to, Atomics::at(access::crew_publish, std::memory_order_release),
                                       std::memory_order_relaxed)) {
        continue;
      }
      if (wakes) Atomics::wake(word_, 1);
      return calls;
    }
  }
  /// So many helpers more are present, or fewer.
  void count(int helpers) noexcept {
    word_.fetch_add(static_cast<word>(static_cast<std::int64_t>(helpers)) * one_helper,
                    Atomics::at(access::looked_at, std::memory_order_relaxed));
  }
  /// False: something was published since `seen`, or another helper came or went.
  bool leave(word seen) noexcept {
    // relaxed: who leaves publishes nothing
    return word_.compare_exchange_weak(seen, seen - one_helper,
                                       Atomics::at(access::crew_leave, std::memory_order_relaxed),
                                       std::memory_order_relaxed);
  }
  /// Returns when something was published since `seen`; may return sooner.
  void sleep(word seen) noexcept {
    const auto order = Atomics::at(access::crew_sleep, std::memory_order_relaxed);
    if (!word_.compare_exchange_weak(seen, seen | owner_sleeps, order, std::memory_order_relaxed)) return;
    static_cast<void>(Atomics::park(word_, epoch(seen), (Atomics::time_point::max)()));
    word_.fetch_and(~owner_sleeps, Atomics::at(access::looked_at, std::memory_order_relaxed));
  }

 private:
  // | the owner sleeps 1 | helpers 31 | epoch 32 |
  static constexpr word one_helper = word{1} << 32;
  static constexpr word owner_sleeps = word{1} << 63;
  static constexpr std::uint32_t epoch(word seen) noexcept { return static_cast<std::uint32_t>(seen); }
  static constexpr int present(word seen) noexcept { return static_cast<int>((seen & ~owner_sleeps) >> 32); }

  alignas(64) typename Atomics::template atomic<word> word_{0};
  int helpers_ = 0;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
