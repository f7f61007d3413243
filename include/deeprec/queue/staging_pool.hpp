// A fixed set of buffers that circulate, so that a steady pipeline allocates nothing.
//
//   pool ── acquire ──> lease ── fill, put ──> staging_queue<lease> ── take, use ──> lease ends ──┐
//    ^                                                                                            │
//    └───────────────────────────────── the buffer returns with its content ──────────────────────┘
//
// A batch keeps the memory it has grown to. Make as many buffers as the queue holds, plus one for each thread
// that fills or uses one. Not here: growing the set; an empty pool is back-pressure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/queue/detail/index_stack.hpp>
#include <deeprec/queue/wait_strategies.hpp>
#include <deeprec/queue/waiting_room.hpp>
#include <deeprec/support/atomics.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// @pre     at least one buffer; the pool outlives its leases; its threads are of one process (event_count)
/// @threads every member is thread-safe
/// @error   invalid_value: a count of 0, above 2^30, or too large for one block of memory, thrown as
///          deeprec::error; throws what make() and the allocations throw
template <class T, class Wait = adaptive_wait, class Atomics = detail::std_atomics>
class staging_pool {
 public:
  /// Exclusive use of a buffer for the lifetime of the lease; movable.
  ///
  /// @threads one thread at a time
  class lease {
   public:
    lease() noexcept = default;
    lease(lease&& other) noexcept
        : pool_(std::exchange(other.pool_, nullptr)), index_(other.index_), why_(other.why_) {}
    lease& operator=(lease&& other) noexcept {
      if (this != &other) {
        give_back();
        pool_ = std::exchange(other.pool_, nullptr);
        index_ = other.index_;
        why_ = other.why_;
      }
      return *this;
    }
    ~lease() { give_back(); }

    explicit operator bool() const noexcept { return pool_ != nullptr; }
    /// The result of acquire(): ok, or the reason why there is no buffer.
    [[nodiscard]] queue_result result() const noexcept { return why_; }
    /// @pre the lease has a buffer
    [[nodiscard]] T& operator*() const noexcept { return pool_->buffers_[index_]; }
    [[nodiscard]] T* operator->() const noexcept { return &pool_->buffers_[index_]; }
    /// Ends the lease early.
    void give_back() noexcept {
      if (pool_ != nullptr) std::exchange(pool_, nullptr)->put_back(index_);
    }

   private:
    friend class staging_pool;
    lease(staging_pool* pool, std::uint32_t index) noexcept
        : pool_(pool), index_(index), why_(queue_result::ok) {}
    explicit lease(queue_result why) noexcept : why_(why) {}

    staging_pool* pool_ = nullptr;
    std::uint32_t index_ = 0;
    queue_result why_ = queue_result::not_now;
  };

  /// `count` buffers, each made by make().
  template <class Make>
  staging_pool(std::uint32_t count, Make&& make) : free_(checked(count)) {
    buffers_.reserve(count);
    for (std::uint32_t i = 0; i < count; ++i) buffers_.push_back(make());
  }
  explicit staging_pool(std::uint32_t count) : staging_pool(count, [] { return T(); }) {}
  staging_pool(const staging_pool&) = delete;
  staging_pool& operator=(const staging_pool&) = delete;

  /// The buffer that was returned last; waits while all are leased.
  ///
  /// @cost    an atomic exchange; no allocation
  /// @threads thread-safe
  /// @error   an empty lease; result() is timed_out or stopped
  [[nodiscard]] lease acquire(const wait_limit& limit = {}) {
    std::uint32_t index = 0;
    const auto once = [&] { return free_.pop(index) ? queue_result::ok : queue_result::not_now; };
    queue_result r = once();
    if (r == queue_result::not_now) {
      r = returns_.wait_for(once, limit, [this]() noexcept {
        if (free_.was_any()) returns_.notify_one();
      });
    }
    return r == queue_result::ok ? lease(this, index) : lease(r);
  }
  /// The same without waiting.
  ///
  /// @threads thread-safe, lock-free
  /// @error   an empty lease: all buffers are leased
  [[nodiscard]] lease try_acquire() noexcept {
    std::uint32_t index = 0;
    return free_.pop(index) ? lease(this, index) : lease(queue_result::not_now);
  }

  [[nodiscard]] std::size_t size() const noexcept { return buffers_.size(); }
  [[nodiscard]] wait_counts acquire_waits() const noexcept { return returns_.counts(); }

 private:
  static std::uint32_t checked(std::uint32_t count) {
    constexpr auto most_bytes = static_cast<std::size_t>((std::numeric_limits<std::ptrdiff_t>::max)());
    if (count < 1 || count > (1u << 30) || count > most_bytes / sizeof(T)) {
      detail::raise(errc::invalid_value, "staging_pool: count must be 1 to 2^30 and fit memory");
    }
    return count;
  }
  void put_back(std::uint32_t index) noexcept {
    free_.push(index);
    returns_.notify_one();  // waiters are interchangeable
  }

  std::vector<T> buffers_;
  detail::index_stack<Atomics> free_;
  alignas(64) waiting_room<Wait, Atomics> returns_;
};

}}  // namespace deeprec::DEEPREC_ABI
