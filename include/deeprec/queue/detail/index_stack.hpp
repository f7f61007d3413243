// A lock-free stack of the indices 0 .. n-1: the free elements of a fixed set. Last in, first out, since the
// element used last is probably still in a cache.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <deeprec/core/config.hpp>
#include <deeprec/support/atomics.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

template <class Atomics>
class index_stack {
  static constexpr std::uint32_t none = 0xffff'ffffu;

 public:
  // Initially holds all indices, 0 on top.
  explicit index_stack(std::uint32_t n)
      : below_(std::make_unique<typename Atomics::template atomic<std::uint32_t>[]>(n)),
        top_(n > 0 ? 0u : none) {
    for (std::uint32_t i = 0; i < n; ++i) {
      below_[i].store(i + 1 < n ? i + 1 : none,
                      Atomics::at(detail::access::statistic, std::memory_order_relaxed));
    }
  }

  bool pop(std::uint32_t& index) noexcept {
    // acquire, with push(): the link below the top, and the last user's writes to the element of this index.
    std::uint64_t seen = top_.load(Atomics::at(detail::access::stack_seen, std::memory_order_acquire));
    while (true) {
      index = static_cast<std::uint32_t>(seen);
      if (index == none) return false;
      // relaxed: ordered by the acquire above; if it is stale, the tag has changed and the exchange fails.
      const std::uint32_t next =
          below_[index].load(Atomics::at(detail::access::stack_next, std::memory_order_relaxed));
      // acquire, on failure: as the load above. On success it reads the store that `seen` came from.
      if (top_.compare_exchange_weak(
              seen, tagged(seen, next),
              Atomics::at(detail::access::stack_seen_again, std::memory_order_acquire))) {
        return true;
      }
    }
  }

  void push(std::uint32_t index) noexcept {
    // relaxed: only the index is used, and the exchange confirms it
    std::uint64_t seen = top_.load(Atomics::at(detail::access::stack_guess, std::memory_order_relaxed));
    do {
      below_[index].store(static_cast<std::uint32_t>(seen),
                          Atomics::at(detail::access::stack_next, std::memory_order_relaxed));
      // release, with pop(): the store above, and the caller's writes to the element of this index.
    } while (!top_.compare_exchange_weak(seen, tagged(seen, index),
                                         Atomics::at(detail::access::stack_push, std::memory_order_release),
                                         std::memory_order_relaxed));
  }

  // A snapshot, possibly stale on return.
  [[nodiscard]] bool was_any() const noexcept {
    // relaxed: a thread that is woken calls pop().
    return static_cast<std::uint32_t>(
               top_.load(Atomics::at(detail::access::stack_guess, std::memory_order_relaxed))) != none;
  }

 private:
  // | tag 32 | index 32 |: the tag changes with every exchange, so an index that is on top again is not
  // mistaken for the top seen earlier (ABA).
  static constexpr std::uint64_t tagged(std::uint64_t seen, std::uint32_t index) noexcept {
    return ((seen >> 32) + 1) << 32 | index;
  }

  std::unique_ptr<typename Atomics::template atomic<std::uint32_t>[]> below_;
  alignas(64) typename Atomics::template atomic<std::uint64_t> top_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
