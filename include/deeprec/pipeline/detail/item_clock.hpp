// The time of each part of an item, of one item in 64 where items are short: each timed item stands for those
// since the one before.
//
//   begin ── lap(input) ── lap(f) ── lap(g) ── lap(output) ── end
#pragma once

#include <chrono>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

template <class Atomics>
class item_clock {
 public:
  using time_point = typename Atomics::time_point;

  static double ns_between(time_point from, time_point to) noexcept {
    return std::chrono::duration<double, std::nano>(to - from).count();
  }
  static double ns_since(time_point from) noexcept { return ns_between(from, Atomics::now()); }

  /// Whether the next item is timed: then begin() ... end(), else pass().
  [[nodiscard]] bool is_due() const noexcept { return until_timed_ == 0; }
  void pass() noexcept { --until_timed_, ++weight_; }
  time_point begin() noexcept { return last_ = Atomics::now(); }
  /// Adds the time since begin() or the last lap, times the items that this one stands for.
  void lap(double& sum) noexcept {
    const time_point now = Atomics::now();
    sum += weight_ * ns_between(last_, now);
    last_ = now;
  }
  void end(time_point begun) noexcept {
    until_timed_ = ns_between(begun, last_) >= long_item_ns ? 0 : timed_every - 1;
    weight_ = 1;
  }

 private:
  static constexpr unsigned timed_every = 64;
  static constexpr double long_item_ns = 10'000;

  time_point last_{};
  unsigned until_timed_ = 0;
  unsigned weight_ = 1;  // items that the next timed one stands for
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
