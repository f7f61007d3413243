// Counts what is asked of a memory resource: for statistics, for budgets, for tests.
//
//   counting_resource counted(huge_page_resource::shared());
//   dense_table<f32_rows> table(rows, 64, &counted);
//   counted.statistics().bytes                                   now; and the most at any time
//
// Not here: what each call was (allocation_log.hpp), a limit (limited_resource.hpp).
#pragma once

#include <atomic>
#include <cstddef>
#include <memory_resource>
#include <new>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// What was asked of a resource: bytes as the callers said them.
struct memory_statistics {
  std::size_t bytes = 0;       ///< held now
  std::size_t most_bytes = 0;  ///< held at any time
  std::size_t largest = 0;     ///< asked for at once, granted or not
  index_t blocks = 0;          ///< held now
  index_t allocations = 0;     ///< that were granted
  index_t refusals = 0;        ///< std::bad_alloc of the resource
};

/// @cost    a few atomic additions for each call
/// @threads as the resource behind it, and statistics() beside all calls
/// @error   as the resource behind it
class counting_resource final : public std::pmr::memory_resource {
 public:
  explicit counting_resource(std::pmr::memory_resource* upstream = std::pmr::get_default_resource()) noexcept
      : upstream_(upstream) {}
  counting_resource(const counting_resource&) = delete;
  counting_resource& operator=(const counting_resource&) = delete;

  [[nodiscard]] std::pmr::memory_resource* upstream() const noexcept { return upstream_; }
  /// Each number at some moment during the call.
  [[nodiscard]] memory_statistics statistics() const noexcept {
    constexpr auto order = std::memory_order_relaxed;
    return {bytes_.load(order),  most_bytes_.load(order),  largest_.load(order),
            blocks_.load(order), allocations_.load(order), refusals_.load(order)};
  }

  /// Makes most_bytes what is held now.
  void forget_most() noexcept {
    most_bytes_.store(bytes_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  }

 private:
  static void raise_to(std::atomic<std::size_t>& most, std::size_t value) noexcept {
    std::size_t seen = most.load(std::memory_order_relaxed);
    while (seen < value && !most.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
    }
  }
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    raise_to(largest_, bytes);
    void* block = nullptr;
#if DEEPREC_EXCEPTIONS
    try {
      block = upstream_->allocate(bytes, alignment);
    } catch (const std::bad_alloc&) {
      refusals_.fetch_add(1, std::memory_order_relaxed);
      throw;
    }
#else
    block = upstream_->allocate(bytes, alignment);
#endif
    blocks_.fetch_add(1, std::memory_order_relaxed);
    allocations_.fetch_add(1, std::memory_order_relaxed);
    raise_to(most_bytes_, bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes);
    return block;
  }
  void do_deallocate(void* block, std::size_t bytes, std::size_t alignment) override {
    bytes_.fetch_sub(bytes, std::memory_order_relaxed);
    blocks_.fetch_sub(1, std::memory_order_relaxed);
    upstream_->deallocate(block, bytes, alignment);
  }
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override {
    return this == &other;
  }

  std::pmr::memory_resource* upstream_;
  std::atomic<std::size_t> bytes_{0}, most_bytes_{0}, largest_{0};
  std::atomic<index_t> blocks_{0}, allocations_{0}, refusals_{0};
};

}}  // namespace deeprec::DEEPREC_ABI
