// Blocks of the key index: powers of two, aligned to their size, cut from chunks of a memory resource; and
// those that readers may still read.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <mutex>
#include <new>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/memory/reclaimer.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// @threads each call excludes the others; the resource is called by one thread at a time, on any
class key_memory {
 public:
  static constexpr std::size_t least_block = 256;
  static constexpr std::size_t most_retires = 128;  // two in each shard, which may grow at the same time

  key_memory(std::pmr::memory_resource* memory, reclaimer& readers) noexcept
      : memory_(memory), readers_(&readers), chunks_(memory), retired_(memory) {}
  key_memory(const key_memory&) = delete;
  key_memory& operator=(const key_memory&) = delete;
  ~key_memory() {
    for (const block& one : chunks_) memory_->deallocate(one.data, one.bytes, one.alignment());
  }

  /// The size of a block that holds so many bytes.
  static constexpr std::size_t block_for(std::size_t bytes) noexcept {
    return std::bit_ceil((std::max)(bytes, least_block));
  }
  /// A block of zeros; null where the resource refuses. `bytes` is block_for() of something, 2 MB at most.
  /// Then there is room to retire most_retires blocks.
  [[nodiscard]] void* take(std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    if (!room_to_retire()) return nullptr;
    std::byte* found = pop(bytes);
    if (found == nullptr && room_in_chunk(bytes)) found = cut(bytes);
    if (found != nullptr) std::memset(found, 0, bytes);
    return found;
  }
  /// Takes back a block that no reader knows.
  void give(void* data, std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    push(static_cast<std::byte*>(data), bytes);
  }
  /// Takes back a block when the epoch that goes on is over.
  void retire(void* data, std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    retired_.push_back({static_cast<std::byte*>(data), bytes, readers_->epoch()});
  }
  /// Whether something was retired in the epoch that goes on.
  [[nodiscard]] bool has_retired() const noexcept {
    const std::lock_guard lock(mutex_);
    return !retired_.empty() && retired_.back().epoch == readers_->epoch();
  }
  /// Takes back what is over.
  void reclaim() noexcept {
    const std::lock_guard lock(mutex_);
    if (retired_.empty()) return;
    std::size_t left = 0;
    bool is_over = true;  // epochs ascend
    for (const block& one : retired_) {
      is_over = is_over && readers_->over(one.epoch);
      if (is_over) {
        push(one.data, one.bytes);
      } else {
        retired_[left++] = one;
      }
    }
    retired_.resize(left);
  }

  /// What the resource holds for it.
  [[nodiscard]] index_t bytes() const noexcept {
    const std::lock_guard lock(mutex_);
    std::size_t all = (chunks_.capacity() + retired_.capacity()) * sizeof(block);
    for (const block& one : chunks_) all += one.bytes;
    return static_cast<index_t>(all);
  }

 private:
  struct block {
    std::byte* data;
    std::size_t bytes;
    std::uint64_t epoch;
    [[nodiscard]] std::size_t alignment() const noexcept { return (std::min)(bytes, most_alignment); }
  };
  static constexpr std::size_t most_alignment = std::size_t{2} << 20;
  static constexpr std::size_t classes = 40;

  static std::size_t class_of(std::size_t bytes) noexcept {
    return static_cast<std::size_t>(std::countr_zero(bytes));
  }
  // Free blocks are linked through their first bytes.
  void push(std::byte* data, std::size_t bytes) noexcept {
    std::byte*& first = free_[class_of(bytes)];
    std::memcpy(data, &first, sizeof(first));
    first = data;
  }
  // Halves a larger block where none has this size.
  std::byte* pop(std::size_t bytes) noexcept {
    std::size_t from = class_of(bytes);
    while (from < classes && free_[from] == nullptr) ++from;
    if (from == classes) return nullptr;
    std::byte* const found = free_[from];
    std::memcpy(&free_[from], found, sizeof(free_[from]));
    for (std::size_t size = std::size_t{1} << from; size > bytes; size /= 2) push(found + size / 2, size / 2);
    return found;
  }
  // Frees the next piece of the chunk, the largest that is aligned to its size.
  void free_piece() noexcept {
    const auto aligned = std::size_t{1} << std::countr_zero(reinterpret_cast<std::uintptr_t>(at_));
    const std::size_t piece = (std::min)(aligned, std::bit_floor(left_));
    push(at_, piece);
    at_ += piece;
    left_ -= piece;
  }
  std::byte* cut(std::size_t bytes) noexcept {
    while (reinterpret_cast<std::uintptr_t>(at_) % bytes != 0) free_piece();
    std::byte* const found = at_;
    at_ += bytes;
    left_ -= bytes;
    return found;
  }
  bool room_to_retire() noexcept {
    if (retired_.capacity() >= retired_.size() + most_retires) return true;
    return allocates([&] { retired_.reserve(2 * retired_.size() + most_retires); });
  }
  // Makes sure that the chunk has a block of so many bytes; false where the resource refuses.
  bool room_in_chunk(std::size_t bytes) noexcept {
    const auto at = reinterpret_cast<std::uintptr_t>(at_);
    if (left_ > 0 && (at + bytes - 1) / bytes * bytes + bytes <= at + left_) return true;
    block made{nullptr, (std::max)(next_chunk(), bytes), 0};
    const bool done = allocates([&] {
      if (chunks_.size() == chunks_.capacity()) chunks_.reserve(2 * chunks_.size() + 8);
      made.data = static_cast<std::byte*>(memory_->allocate(made.bytes, made.alignment()));
    });
    if (!done) return false;
    chunks_.push_back(made);
    while (left_ > 0) free_piece();
    at_ = made.data;
    left_ = made.bytes;
    total_ += made.bytes;
    return true;
  }
  // Whether f, which allocates, did.
  template <class F>
  static bool allocates(const F& f) noexcept {
#if DEEPREC_EXCEPTIONS
    try {
      f();
    } catch (const std::bad_alloc&) {
      return false;
    }
#else
    f();
#endif
    return true;
  }
  // An eighth of what there is while the index is small, 2 MB to 8 MB (whole huge pages) later.
  [[nodiscard]] std::size_t next_chunk() const noexcept {
    constexpr std::size_t kilobyte = 1024, huge = 2048 * kilobyte;
    const std::size_t eighth = std::bit_floor(total_ / 8);
    if (eighth < 1024 * kilobyte) return (std::max)(eighth, 64 * kilobyte);
    return std::clamp(std::bit_floor(total_ / 32), huge, 4 * huge);
  }

  std::pmr::memory_resource* memory_;
  reclaimer* readers_;
  mutable std::mutex mutex_;
  std::pmr::vector<block> chunks_;
  std::pmr::vector<block> retired_;
  std::array<std::byte*, classes> free_{};
  std::byte* at_ = nullptr;
  std::size_t left_ = 0;
  std::size_t total_ = 0;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
