// What a take of a staging_queue returns: a record, or the reason why there is none.
//
//   if (auto item = queue.take()) use(*item);
//   batch b = queue.take().or_throw();                a producer's exception is rethrown here
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/queue/waiting_room.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {
template <class T, class Wait, class Atomics>
class staging_core;
}  // namespace detail

template <class T, class Wait, class Atomics>
class staging_queue;

/// Why a take ended: it has what it was asked for, or it met a producer's fault or exception, or there was no
/// record.
class taken_reason {
 public:
  explicit taken_reason(queue_result why) noexcept : why_(why) {}

  [[nodiscard]] queue_result result() const noexcept { return why_; }
  /// The fault that the producer enqueued; else a fault with the code to_errc(result()).
  /// @pre result() is not ok
  [[nodiscard]] deeprec::fault fault() const { return fault_ ? *fault_ : deeprec::fault(to_status(why_)); }
  /// The exception that the producer enqueued; null where there is none.
  [[nodiscard]] const std::exception_ptr& failure() const noexcept { return failure_; }

  /// Rethrows a producer's exception; throws fault() as deeprec::error where result() is anything else than
  /// ok.
  void or_throw() const {
#if DEEPREC_EXCEPTIONS
    if (failure_) std::rethrow_exception(failure_);
#endif
    if (why_ != queue_result::ok) fault().or_throw();
  }

 private:
  template <class, class, class>
  friend class detail::staging_core;

  queue_result why_;
  std::exception_ptr failure_;
  std::unique_ptr<const deeprec::fault> fault_;
};

/// The result of take(): a record, a producer's fault or exception, or the reason why there is none of them.
template <class T>
class [[nodiscard]] taken_item : public taken_reason {
 public:
  using taken_reason::taken_reason;

  /// True when there is a record.
  explicit operator bool() const noexcept { return value_.has_value(); }
  /// @pre there is a record
  [[nodiscard]] T& operator*() noexcept { return *value_; }
  [[nodiscard]] T* operator->() noexcept { return &*value_; }

  /// Returns the record. Rethrows a producer's exception; throws fault() as deeprec::error for every other
  /// reason.
  T or_throw() && {
    taken_reason::or_throw();
    return std::move(*value_);
  }

 private:
  template <class, class, class>
  friend class detail::staging_core;

  std::optional<T> value_;
};

/// The result of take_some(): how many records were taken, and why not more.
class [[nodiscard]] taken_count : public taken_reason {
 public:
  /// The records taken, also where result() is not ok.
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  template <class, class, class>
  friend class staging_queue;
  taken_count(taken_reason why, std::size_t size) : taken_reason(std::move(why)), size_(size) {}

  std::size_t size_;
};

}}  // namespace deeprec::DEEPREC_ABI
