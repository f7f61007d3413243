// The versions of a shard of a stale_window, and its lock where nothing waits for a version.
//
//   exact     applied 0 1 2 ...     lookups wait for a version, updates for the lookups that have passed
//   hogwild   inside                lookups share the shard, an update has it alone
#pragma once

#include <atomic>
#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/queue/waiting_room.hpp>
#include <deeprec/support/atomics.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

template <class Wait, class Atomics>
struct window_shard {
  using word = typename Atomics::template atomic<std::uint64_t>;
  static constexpr std::uint64_t alone = std::uint64_t{1} << 63;

  alignas(64) word applied{0};  // updates that have ended
  word begun{0};                // updates that have begun
  waiting_room<Wait, Atomics> lookups;
  alignas(64) word passed{0};  // lookups that have read. All of them are below applied + W
  word inside{0};              // hogwild: lookups that read, or `alone`
  waiting_room<Wait, Atomics> updates;

  static auto relaxed(access site) noexcept { return Atomics::at(site, std::memory_order_relaxed); }

  /// False: somebody else has begun. relaxed: the version, which was acquired, orders one access after
  /// another.
  static bool begin_once(word& mark, std::uint64_t before) noexcept {
    std::uint64_t seen = before;
    while (seen == before) {
      if (mark.compare_exchange_weak(seen, before + 1, relaxed(access::window_begin),
                                     relaxed(access::looked_at))) {
        return true;
      }
    }
    return false;
  }

  bool enter_shared() noexcept {
    std::uint64_t there = inside.load(relaxed(access::looked_at));
    while (there != alone) {
      // acquire: the lookup reads what the last update wrote
      if (inside.compare_exchange_weak(there, there + 1,
                                       Atomics::at(access::shard_shared, std::memory_order_acquire),
                                       relaxed(access::looked_at))) {
        return true;
      }
    }
    return false;
  }
  bool enter_alone() noexcept {
    std::uint64_t there = inside.load(relaxed(access::looked_at));
    while (there == 0) {
      // acquire: the lookups have read before this update writes
      if (inside.compare_exchange_weak(there, alone,
                                       Atomics::at(access::shard_taken, std::memory_order_acquire),
                                       relaxed(access::looked_at))) {
        return true;
      }
    }
    return false;
  }
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
