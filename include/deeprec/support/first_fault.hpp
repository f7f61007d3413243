// The first fault of work that runs in pieces: the same one, whichever piece ends first.
//
//   const status s = detail::first_fault(ctx, {n, grain, ns}, [&](index_t begin, index_t end) -> status {
//     for (index_t k = begin; k < end; ++k) if (is_bad(k)) return {errc::invalid_value, {.position = k}};
//     return {};
//   });
#pragma once

#include <atomic>
#include <limits>
#include <mutex>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/support/bulk.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The minimum of the positions that several threads pass to see(): for checks on a hot path, whose fault is
/// made after them.
class first_position {
 public:
  static constexpr index_t none = (std::numeric_limits<index_t>::max)();

  /// @threads thread-safe
  void see(index_t position) noexcept {
    index_t seen = value_.load(std::memory_order_relaxed);
    while (position < seen && !value_.compare_exchange_weak(seen, position, std::memory_order_relaxed)) {
    }
  }
  /// none where there was none. @pre every see() has returned, and this thread knows
  [[nodiscard]] index_t value() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<index_t> value_{none};
};

/// The fault with the smallest order of all that were added.
class fault_report {
 public:
  /// Keeps the fault unless one of a smaller or the same order was added.
  ///
  /// @pre     !found.ok(); 0 <= order
  /// @cost    one load where a smaller order is known, else a lock
  /// @threads thread-safe
  /// @error   none
  void add(index_t order, const status& found) noexcept {
    if (!is_wanted(order)) return;
    const std::lock_guard hold(lock_);
    if (!is_wanted(order)) return;
    first_ = found;
    order_.store(order, std::memory_order_relaxed);
  }
  /// False when a fault of this order would not be kept: work for it may be left out.
  [[nodiscard]] bool is_wanted(index_t order) const noexcept {
    return order < order_.load(std::memory_order_relaxed);  // relaxed: decides only what is left out
  }
  /// Success when no fault was added. @pre every add() has returned, and this thread knows
  [[nodiscard]] const status& first() const noexcept { return first_; }

 private:
  std::atomic<index_t> order_{(std::numeric_limits<index_t>::max)()};
  std::mutex lock_;
  status first_;
};

/// Runs check(begin, end), which returns the first fault of its piece, over [0, units); returns the first
/// of all.
/// Pieces after a fault may be left out.
template <class Context, class Check>
status first_fault(const Context& ctx, const bulk_work& work, const Check& check) {
  fault_report report;
  run_bulk(ctx, work, [&](index_t begin, index_t end, int) {
    if (!report.is_wanted(begin)) return;
    if (const status s = check(begin, end); !s) report.add(begin, s);
  });
  return report.first();
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
