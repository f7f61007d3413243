// A row of a cut is copied once, by one thread, before anything changes it.
//
//   whoever changes rows      claim ─> copy ─> settle ─> change
//                               └ another thread has the claim: wait until it settles
//   the thread that saves     claim ─> copy ─> settle
//
// The protocol for the flags of one row, for any atomics policy; what is copied where: row_changes.hpp.
#pragma once

#include <atomic>
#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/support/atomics.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Which rows belong to a cut and are not copied yet, by their flags, and what settling one makes of them.
struct cut_flags {
  std::uint32_t mask = 0;
  std::uint32_t wanted = 1;  // of these bits: no row, by default
  std::uint32_t cleared = 0;
  std::uint32_t set = 0;

  [[nodiscard]] constexpr bool has(std::uint32_t flags) const noexcept { return (flags & mask) == wanted; }
  [[nodiscard]] constexpr std::uint32_t settled(std::uint32_t flags) const noexcept {
    return (flags & ~cleared) | set;
  }
};

template <class Atomics, std::uint32_t Copying>
struct row_claim {
  using word = typename Atomics::template atomic<std::uint32_t>;

  /// Whether the cut has the row and it is not copied, or is just being copied: it must not change.
  static bool is_due(const word& row, const cut_flags& cut) noexcept {
    const std::uint32_t seen = look(row);
    return cut.has(seen) || (seen & Copying) != 0;
  }
  /// Whether the caller has to copy the row, and then to settle it.
  static bool take(word& row, const cut_flags& cut) noexcept {
    std::uint32_t seen = row.load(Atomics::at(access::looked_at, std::memory_order_relaxed));
    while (cut.has(seen) && (seen & Copying) == 0) {
      // What was written to the row comes before the cut, which the caller knows of.
      if (row.compare_exchange_weak(seen, seen | Copying,
                                    Atomics::at(access::row_claim, std::memory_order_relaxed),
                                    std::memory_order_relaxed)) {
        return true;
      }
    }
    return false;
  }
  static void settle(word& row, const cut_flags& cut) noexcept {
    std::uint32_t seen = row.load(Atomics::at(access::looked_at, std::memory_order_relaxed));
    // release: the copy was made before whoever waits changes the row. An exchange: others add to the
    // frequency, and sweeps mark rows, at the same time.
    while (!row.compare_exchange_weak(seen, cut.settled(seen),
                                      Atomics::at(access::row_settle, std::memory_order_release),
                                      std::memory_order_relaxed)) {
    }
  }
  /// Waits while another thread copies the row.
  static void wait(const word& row) noexcept {
    for (int tries = 0; (look(row) & Copying) != 0; ++tries) {
      tries < 64 ? Atomics::relax() : Atomics::yield();
    }
  }

 private:
  // acquire: if the row is settled, its copy comes before.
  static std::uint32_t look(const word& row) noexcept {
    return row.load(Atomics::at(access::row_settled, std::memory_order_acquire));
  }
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
