// Which blocks came from the second of two resources, and how many bytes these may be together.
//
//   room = take(bytes)     in the budget, and for an entry                before the block is allocated
//   enter(room, block)     the address is one of the second resource's    cannot fail
//   room = leave(block)    none where it is not                           before the block is deallocated
//   ~room                  the budget has the bytes again                 after that
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory_resource>
#include <mutex>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// @threads thread-safe
class fallback_ledger {
  using blocks = std::pmr::map<void*, std::size_t>;

 public:
  /// Room for one block.
  class room {
   public:
    room() = default;
    room(room&& other) noexcept : of_(std::exchange(other.of_, nullptr)), entry_(std::move(other.entry_)) {}
    room& operator=(room&&) = delete;
    ~room() {
      if (of_ == nullptr) return;
      const std::lock_guard lock(of_->mutex_);
      of_->bytes_ -= entry_.mapped();
    }
    explicit operator bool() const noexcept { return of_ != nullptr; }

   private:
    friend fallback_ledger;
    fallback_ledger* of_ = nullptr;
    blocks::node_type entry_;
  };

  fallback_ledger(std::size_t budget, std::pmr::memory_resource* memory) : budget_(budget), blocks_(memory) {}
  fallback_ledger(const fallback_ledger&) = delete;
  fallback_ledger& operator=(const fallback_ledger&) = delete;

  /// Nothing where the budget is too small; throws std::bad_alloc where the entry's memory is refused.
  [[nodiscard]] room take(std::size_t bytes) {
    blocks made(blocks_.get_allocator());
    made[nullptr] = bytes;
    room taken;
    const std::lock_guard lock(mutex_);
    if (bytes > budget_ - bytes_) {
      ++refused_;
      return taken;
    }
    bytes_ += bytes;
    ++taken_;
    taken.entry_ = made.extract(made.begin());
    taken.of_ = this;
    return taken;
  }
  void enter(room&& taken, void* block) noexcept {
    taken.entry_.key() = block;
    const std::lock_guard lock(mutex_);
    blocks_.insert(std::move(taken.entry_));
    taken.of_ = nullptr;
    // relaxed: whoever frees the block got it from the caller, after this.
    now_.fetch_add(1, std::memory_order_relaxed);
  }
  /// The room of a block; none where it is not one of the second resource's.
  [[nodiscard]] room leave(void* block) noexcept {
    room left;
    if (now_.load(std::memory_order_relaxed) == 0) return left;
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(block);
    if (found == blocks_.end()) return left;
    left.entry_ = blocks_.extract(found);
    left.of_ = this;
    now_.fetch_sub(1, std::memory_order_relaxed);
    return left;
  }

  [[nodiscard]] std::size_t budget() const noexcept { return budget_; }
  struct numbers {
    std::size_t bytes = 0;
    index_t blocks = 0, taken = 0, refused = 0;
  };
  [[nodiscard]] numbers now() const noexcept {
    const std::lock_guard lock(mutex_);
    return {bytes_, static_cast<index_t>(blocks_.size()), taken_, refused_};
  }

 private:
  std::size_t budget_;
  mutable std::mutex mutex_;
  blocks blocks_;  // by address
  std::size_t bytes_ = 0;
  index_t taken_ = 0, refused_ = 0;
  std::atomic<index_t> now_{0};  // entries
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
