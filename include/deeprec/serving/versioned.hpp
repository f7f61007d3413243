// A model that is replaced while it is read: whole versions, published by one thread, read by many.
//
//   publisher  publish(model)   versions   7 <- 8 <- 9    9 is current; kept = 3: roll_back(2) returns to 7
//   reader     reading now = models.read();               its version stays whole while `now` exists
//              lookup(ctx, now->table, ...);
//
// Readers wait for nobody, and free nothing. A version that is no longer kept waits until the readings that
// began before its end are over; the publisher's next call frees it. A reading that is never dropped keeps
// memory, which statistics() shows. Not here: loading a model, and who reads it (session_group.hpp).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/memory/reclaimer.hpp>
#include <deeprec/support/atomics.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The versions of a model.
struct versioned_statistics {
  index_t current = 0;  ///< number of the version that readers get; 0: nothing was published
  index_t kept = 0;     ///< versions, with the current one, that roll_back() may return to
  index_t waiting = 0;  ///< versions that are not kept and not freed: some reading may still use them
};

/// Versions of a T, numbered from 1. A number is never used again.
///
/// @threads read and the ends of readings: thread-safe, wait-free. publish, roll_back, collect and
///          statistics: thread-safe; they take turns, and no reader waits for them
/// @error   the constructor throws deeprec::error: invalid_value for kept < 1
/// @source  read-copy-update (McKenney, Slingwine 1998), with the pins of a reclaimer
template <class T, int Places = 64, class Atomics = detail::std_atomics>
class versioned {
  using access = detail::access;
  using pins = basic_reclaimer<Places, Atomics>;

  struct version {
    T* model = nullptr;
    version* next = nullptr;  // of kept versions the older one, of waiting ones the next to be freed
    index_t number = 0;
    std::uint64_t ended = 0;  // the epoch in which it was current for the last time
  };

 public:
  /// A version, whole and unchanged for the lifetime of the reading; empty where nothing was published.
  ///
  /// @threads one thread at a time; may be passed to another thread, and several may use what it refers to
  class reading {
   public:
    reading() noexcept = default;
    reading(reading&& other) noexcept
        : pin_(std::move(other.pin_)),
          model_(std::exchange(other.model_, nullptr)),
          number_(std::exchange(other.number_, 0)) {}
    reading& operator=(reading&& other) noexcept {
      reading moved(std::move(other));
      std::swap(pin_, moved.pin_);
      std::swap(model_, moved.model_);
      std::swap(number_, moved.number_);
      return *this;
    }

    explicit operator bool() const noexcept { return model_ != nullptr; }
    /// @pre not empty
    [[nodiscard]] const T& operator*() const noexcept { return *model_; }
    /// @pre not empty
    [[nodiscard]] const T* operator->() const noexcept { return model_; }
    /// The number of the version; 0: empty.
    [[nodiscard]] index_t version() const noexcept { return number_; }

   private:
    friend versioned;
    reading(typename pins::pin&& pinned, const T* model, index_t number) noexcept
        : pin_(std::move(pinned)), model_(model), number_(number) {}

    typename pins::pin pin_;
    const T* model_ = nullptr;
    index_t number_ = 0;
  };

  /// @param kept    how many versions are kept, with the current one
  /// @param memory  for 32 bytes a version; thread-safe where several threads publish
  explicit versioned(index_t kept = 2, std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : most_kept_(checked(kept)), memory_(memory) {}
  versioned(const versioned&) = delete;
  versioned& operator=(const versioned&) = delete;
  /// @pre no reading exists, and no thread is in a call
  ~versioned() {
    DEEPREC_EXPECTS(readers_.pins() == 0);
    free_all(first_waiting_);
    free_all(newest_);
  }

  /// The current version.
  ///
  /// @post    the version is not freed while the reading exists. With more than Places readings at once,
  ///          nothing is freed while one of those beyond exists
  /// @cost    an exchange and a load; no system call, no allocation
  /// @threads thread-safe, wait-free
  /// @error   none: an empty reading where nothing was published
  [[nodiscard]] reading read() const noexcept {
    typename pins::pin pinned = readers_.enter();
    // acquire: the model and its number, as the publisher wrote them
    const auto* const now = reinterpret_cast<const version*>(
        current_.load(Atomics::at(access::model_seen, std::memory_order_acquire)));
    if (now == nullptr) return {};
    return reading(std::move(pinned), now->model, now->number);
  }

  /// Makes a model the current version; returns its number. Of more than `kept` versions the oldest is no
  /// longer kept.
  ///
  /// @cost    a fence that every thread of the process executes, and the destructors of versions that no
  ///          reading uses any more, which run on this thread, after the call has let the next one in
  /// @threads thread-safe, in turn with other publishers
  /// @error   invalid_value: null; out_of_memory. Nothing changed, and `model` still owns what it did
  result<index_t> publish(std::unique_ptr<T>&& model) {
    if (model == nullptr) {
      return status(errc::invalid_value, "versioned::publish: model must not be null");
    }
    version* const made = make_version();
    if (made == nullptr) {
      return status(errc::out_of_memory, "versioned::publish: no memory for one more version");
    }
    made->model = model.release();
    index_t number = 0;
    version* unused = nullptr;
    {
      const std::lock_guard lock(mutex_);
      number = made->number = ++published_;
      version* const before = made->next = newest_;
      const std::uint64_t ended = make_current(made);
      if (before != nullptr) before->ended = ended;
      if (++kept_ > most_kept_) drop_oldest();
      unused = take_unused();
    }
    free_all(unused);
    return number;
  }

  /// Makes the n-th version before the current one the current one; returns its number. The versions after it
  /// are no longer kept: the next publish() follows the version that is current then.
  ///
  /// @cost    as publish(); nothing is loaded or allocated
  /// @threads thread-safe, in turn with other publishers
  /// @error   invalid_value: n < 1, or beyond the oldest version that is kept. Nothing changed
  result<index_t> roll_back(index_t n = 1) {
    index_t number = 0;
    version* unused = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (n < 1)
        return status(errc::invalid_value, "versioned::roll_back: n must be at least 1", {.value = n});
      if (n >= kept_) {
        return status(errc::invalid_value,
                      "versioned::roll_back: n must be a number of kept versions before the current one",
                      {.value = n, .at_most = (std::max)(index_t{0}, kept_ - 1)});
      }
      version* one = newest_;
      version* to = one;
      for (index_t k = 0; k < n; ++k) to = to->next;
      number = to->number;
      one->ended = make_current(to);
      while (one != to) wait_for_readers(std::exchange(one, one->next));
      kept_ -= n;
      unused = take_unused();
    }
    free_all(unused);
    return number;
  }

  /// Frees the versions that are not kept and that no reading uses any more, as publish() and roll_back() do;
  /// returns how many.
  ///
  /// @cost    reads Places cache lines; the destructors of versions
  /// @threads thread-safe, in turn with other publishers
  /// @error   none
  index_t collect() noexcept {
    version* unused = nullptr;
    {
      const std::lock_guard lock(mutex_);
      unused = take_unused();
    }
    return free_all(unused);
  }

  /// How many versions there are.
  ///
  /// @cost    O(1)
  /// @threads thread-safe, in turn with publishers
  /// @error   none
  [[nodiscard]] versioned_statistics statistics() const noexcept {
    const std::lock_guard lock(mutex_);
    return {newest_ == nullptr ? 0 : newest_->number, kept_, waiting_};
  }

 private:
  using word = typename Atomics::template atomic<std::uintptr_t>;

  static index_t checked(index_t kept) {
    if (kept < 1) {
      detail::raise(errc::invalid_value,
                    "versioned: kept must be at least 1 (was " + std::to_string(kept) + ")");
    }
    return kept;
  }

  version* make_version() {
#if DEEPREC_EXCEPTIONS
    try {
      return std::pmr::polymorphic_allocator<>(memory_).template new_object<version>();
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
#else
    return std::pmr::polymorphic_allocator<>(memory_).template new_object<version>();
#endif
  }
  // Destructors of models may take long, and may call members: the mutex is not held.
  index_t free_all(version* first) noexcept {
    index_t count = 0;
    for (; first != nullptr; ++count) {
      version* const one = std::exchange(first, first->next);
      std::unique_ptr<T>(one->model).reset();
      std::pmr::polymorphic_allocator<>(memory_).delete_object(one);
    }
    return count;
  }

  // The rest under the mutex.

  // Returns the epoch in which the version before it was current.
  std::uint64_t make_current(version* to) noexcept {
    // release: for the readers of this version, be it new or one that was current before
    current_.store(reinterpret_cast<std::uintptr_t>(to),
                   Atomics::at(access::model_publish, std::memory_order_release));
    newest_ = to;
    return readers_.unlinked();
  }
  void drop_oldest() noexcept {
    version* last = newest_;
    for (index_t k = 1; k < most_kept_; ++k) last = last->next;
    wait_for_readers(std::exchange(last->next, nullptr));
    --kept_;
  }
  void wait_for_readers(version* one) noexcept {
    one->next = nullptr;
    if (last_waiting_ == nullptr) {
      first_waiting_ = one;
    } else {
      last_waiting_->next = one;
      // In the order of their ends: later than its own is right as well.
      one->ended = (std::max)(one->ended, last_waiting_->ended);
    }
    last_waiting_ = one;
    ++waiting_;
  }
  // The versions that wait, and that no reading uses.
  version* take_unused() noexcept {
    version* const first = first_waiting_;
    version* last = nullptr;
    while (first_waiting_ != nullptr && readers_.over(first_waiting_->ended)) {
      last = std::exchange(first_waiting_, first_waiting_->next);
      --waiting_;
    }
    if (first_waiting_ == nullptr) last_waiting_ = nullptr;
    if (last == nullptr) return nullptr;
    last->next = nullptr;
    return first;
  }

  mutable pins readers_;
  alignas(64) word current_{0};  // what readers follow; written by publishers only
  alignas(64) mutable std::mutex mutex_;
  version* newest_ = nullptr;  // that of current_; the older ones that are kept follow it
  version* first_waiting_ = nullptr;
  version* last_waiting_ = nullptr;
  index_t published_ = 0;
  index_t kept_ = 0;
  index_t waiting_ = 0;
  const index_t most_kept_;
  std::pmr::memory_resource* const memory_;
};

}}  // namespace deeprec::DEEPREC_ABI
