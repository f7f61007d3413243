// The ops of a run in the order in which they became ready. Any thread adds one, and any takes the next.
//
//   places   | 4 | 1 | 2 | - | - |      a place is written once in a run and taken once
//                  head    tail          -: not ready yet
#pragma once

#include <atomic>
#include <cstdint>
#include <new>
#include <span>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// @threads add() and claim(): any
class ready_ops {
 public:
  using number = std::atomic<std::int32_t>;
  static constexpr std::int32_t none = -1;

  /// @param places  raw memory, one for each op
  explicit ready_ops(std::span<number> places) noexcept : places_(places) {
    for (number& n : places_) ::new (&n) number(none);
  }

  /// No op is ready. By one thread, before the others begin.
  void restart() noexcept {
    for (number& n : places_) n.store(none, std::memory_order_relaxed);
    head_.store(0, std::memory_order_relaxed);
    tail_.store(0, std::memory_order_relaxed);
  }
  /// @param order  release, unless nobody claims yet
  void add(std::int32_t op, std::memory_order order) noexcept {
    const std::int32_t at = tail_.fetch_add(1, std::memory_order_relaxed);
    places_[static_cast<std::size_t>(at)].store(op, order);
  }
  /// The next ready op; none where there is none now.
  std::int32_t claim() noexcept {
    const auto n = static_cast<std::int32_t>(places_.size());
    std::int32_t at = head_.load(std::memory_order_relaxed);
    while (at < n) {
      const std::int32_t op = places_[static_cast<std::size_t>(at)].load(std::memory_order_acquire);  // add()
      if (op == none) return none;
      // relaxed: the op's number was acquired, and each place is taken once
      if (head_.compare_exchange_weak(at, at + 1, std::memory_order_relaxed)) return op;
    }
    return none;
  }

 private:
  std::span<number> places_;
  alignas(64) number head_{0};
  alignas(64) number tail_{0};
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
