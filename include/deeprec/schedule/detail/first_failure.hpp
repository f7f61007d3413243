// What the parts of a run on several threads have in common: the first failure of any of them, which is kept,
// and the mark that the others end by. Not here: who waits, and is told.
#pragma once

#include <atomic>
#include <exception>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Calls body(), or caught(std::exception_ptr) where it throws.
template <class Body, class Caught>
auto caught_by(const Caught& caught, const Body& body) -> decltype(body()) {
#if DEEPREC_EXCEPTIONS
  try {
    return body();
  } catch (...) {
    return caught(std::current_exception());
  }
#else
  return body();
#endif
}

/// @threads keep() and the marks: any; the others while no part works
class first_failure {
 public:
  void restart() noexcept {
    cancelled_.store(0, std::memory_order_relaxed);
    failed_.store(0, std::memory_order_relaxed);
    outcome_ = {};
    thrown_ = nullptr;
  }

  // relaxed: those who wait look again after the notification, which has a fence
  [[nodiscard]] bool was_cancelled() const noexcept {
    return cancelled_.load(std::memory_order_relaxed) != 0;
  }
  void cancel() noexcept { cancelled_.store(1, std::memory_order_relaxed); }

  /// True for the first: then the caller alone may write where it failed.
  [[nodiscard]] bool keep(const status& why) noexcept {
    const bool first = failed_.exchange(1, std::memory_order_relaxed) == 0;
    if (first) outcome_ = why;
    return first;
  }
  [[nodiscard]] bool keep(std::exception_ptr thrown) noexcept {
    const bool first = failed_.exchange(1, std::memory_order_relaxed) == 0;
    if (first) thrown_ = std::move(thrown);
    return first;
  }

  [[nodiscard]] bool any() const noexcept { return failed_.load(std::memory_order_relaxed) != 0; }
  /// Its status; rethrows an exception, which is forgotten.
  status outcome() {
#if DEEPREC_EXCEPTIONS
    if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
#endif
    return outcome_;
  }

 private:
  std::atomic<int> cancelled_{0};
  std::atomic<int> failed_{0};
  status outcome_;
  std::exception_ptr thrown_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
