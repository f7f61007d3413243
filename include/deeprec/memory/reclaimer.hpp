// When memory that readers may still use can be reused: epochs, and pins of readers.
//
//   reader   pin = enter(); reads through published pointers; ~pin
//   owner    unlinks (a store);  e = unlinked();  ...  over(e) ──> no reader can hold what was unlinked
//
//   places   [ epoch of a pin | 0 ][ ... ]   a cache line each; readers beyond the last place are counted
//   epoch    1, 2, 3 ...                     the next one begins with each unlinked()
//
// Nobody waits: a pin that is never dropped keeps memory, and statistics of its owner report it. Not here:
// the list of what was unlinked, which its owner keeps.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/support/atomics.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Epochs of one owner of memory, and the pins of its readers.
///
/// @threads enter, over, pins and the ends of pins: thread-safe, wait-free. unlinked: one caller at a time
/// @source  epoch-based reclamation (Fraser 2004), with a place for each pin and none for each thread
template <int Places = 64, class Atomics = detail::std_atomics>
class basic_reclaimer {
  using access = detail::access;
  using word = typename Atomics::template atomic<std::uint64_t>;
  struct alignas(64) place {
    word epoch{0};  // of its pin; 0: empty
  };

 public:
  /// While it exists, what its owner unlinks after enter() is not reused. It may end on another thread.
  class pin {
   public:
    pin() = default;
    pin(pin&& other) noexcept : held_(std::exchange(other.held_, nullptr)), in_crowd_(other.in_crowd_) {}
    pin& operator=(pin&& other) noexcept {
      pin moved(std::move(other));
      std::swap(held_, moved.held_);
      std::swap(in_crowd_, moved.in_crowd_);
      return *this;
    }
    ~pin() {
      if (held_ == nullptr) return;
      // release: what was read under the pin comes before the reuse that over() permits.
      if (in_crowd_) {
        held_->fetch_sub(1, Atomics::at(access::crowd_leave, std::memory_order_release));
      } else {
        held_->store(0, Atomics::at(access::pin_leave, std::memory_order_release));
      }
    }

   private:
    friend basic_reclaimer;
    pin(word& held, bool in_crowd) noexcept : held_(&held), in_crowd_(in_crowd) {}
    word* held_ = nullptr;  // a place, or the number of the crowd
    bool in_crowd_ = false;
  };

  basic_reclaimer() noexcept { Atomics::prepare(); }
  basic_reclaimer(const basic_reclaimer&) = delete;
  basic_reclaimer& operator=(const basic_reclaimer&) = delete;

  /// Pins what is linked now.
  ///
  /// @cost    an exchange; no system call, no allocation. At most Places exchanges
  /// @threads wait-free
  /// @error   none
  [[nodiscard]] pin enter() noexcept {
    // acquire: what was unlinked before this epoch began is seen as unlinked. An older epoch than the newest
    // is right as well: the pin keeps more than it has to.
    const std::uint64_t now = epoch_.load(Atomics::at(access::epoch_seen, std::memory_order_acquire));
    const std::size_t first = first_place();
    for (std::size_t k = 0; k < places_.size(); ++k) {
      word& at = places_[(first + k) % places_.size()].epoch;
      std::uint64_t empty = at.load(Atomics::at(access::looked_at, std::memory_order_relaxed));
      if (empty != 0) continue;
      // acquire: who sees that this pin has left sees that those before it in this place have; its store is
      // not part of their release sequences. The fence orders the exchange before the reads under the pin.
      if (at.compare_exchange_weak(empty, now, Atomics::at(access::pin_enter, std::memory_order_acquire),
                                   std::memory_order_relaxed)) {
        Atomics::light_fence(access::pin_fence);
        return pin(at, false);
      }
    }
    crowd_.fetch_add(1, Atomics::at(access::crowd_enter, std::memory_order_relaxed));
    Atomics::light_fence(access::crowd_fence);
    return pin(crowd_, true);
  }

  /// The epoch that is going on: what is unlinked now is over with it.
  [[nodiscard]] std::uint64_t epoch() const noexcept {
    return epoch_.load(Atomics::at(access::epoch_guess, std::memory_order_relaxed));
  }
  /// Ends the epoch, after the stores that unlink; returns it, for over().
  ///
  /// @cost    an exchange and a fence that every thread of the process executes (membarrier)
  /// @threads one caller at a time
  /// @error   none
  std::uint64_t unlinked() noexcept {
    // release: who reads the next epoch sees what was unlinked in this one.
    const std::uint64_t ended =
        epoch_.fetch_add(1, Atomics::at(access::epoch_next, std::memory_order_release));
    Atomics::heavy_fence(access::unlink_fence);
    return ended;
  }
  /// Whether no pin is as old as an epoch: what was unlinked in it may be reused.
  ///
  /// @pre     called by the owner; an epoch that has not ended is never over
  /// @cost    reads Places cache lines
  /// @threads beside enter() and the ends of pins
  /// @error   none
  [[nodiscard]] bool over(std::uint64_t ended) const noexcept {
    if (ended >= epoch()) return false;
    // acquire: reads under pins that have left come before the reuse.
    if (crowd_.load(Atomics::at(access::crowd_seen, std::memory_order_acquire)) != 0) return false;
    for (const place& one : places_) {
      const std::uint64_t of_pin = one.epoch.load(Atomics::at(access::pin_seen, std::memory_order_acquire));
      if (of_pin != 0 && of_pin <= ended) return false;
    }
    return true;
  }

  /// How many pins there are, at some moment during the call.
  [[nodiscard]] index_t pins() const noexcept {
    auto count = crowd_.load(Atomics::at(access::statistic, std::memory_order_relaxed));
    for (const place& one : places_)
      count += one.epoch.load(Atomics::at(access::statistic, std::memory_order_relaxed)) != 0 ? 1 : 0;
    return static_cast<index_t>(count);
  }

 private:
  // Threads begin at different places, so that they don't write to the same line.
  static std::size_t first_place() noexcept {
    if constexpr (std::is_same_v<Atomics, detail::std_atomics>) {
      static std::atomic<std::size_t> threads{0};
      thread_local const std::size_t mine = threads.fetch_add(1, std::memory_order_relaxed);
      return mine;
    } else {
      return 0;
    }
  }

  word epoch_{1};
  word crowd_{0};  // pins that found no place: while there is one, nothing is over
  std::array<place, static_cast<std::size_t>(Places)> places_;
};

using reclaimer = basic_reclaimer<>;

}}  // namespace deeprec::DEEPREC_ABI
