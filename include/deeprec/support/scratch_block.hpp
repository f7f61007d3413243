// One block of a memory resource, handed out from front to back: a verb allocates all of its scratch at once,
// before it writes anything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Refuses a request for memory that can't be met: throws, or prints and aborts without exceptions.
[[noreturn]] inline void refuse_memory() {
#if DEEPREC_EXCEPTIONS
  throw std::bad_alloc();
#else
  raise(errc::out_of_memory, "scratch must fit in memory");
#endif
}

class scratch_block {
 public:
  static constexpr index_t alignment = 64;

  /// Bytes that n elements take of a block.
  template <class T>
  static constexpr index_t bytes_of(index_t n) noexcept {
    static_assert(alignof(T) <= std::size_t{alignment} && std::is_trivially_destructible_v<T>);
    return capped_round_up(capped_product(n, index_t{sizeof(T)}), alignment);
  }

  scratch_block(std::pmr::memory_resource* memory, index_t bytes) : memory_(memory), bytes_(bytes) {
    if (bytes >= most_size) refuse_memory();
    if (bytes == 0) return;
    block_ = memory->allocate(block_bytes(), block_alignment);
    const auto address = reinterpret_cast<std::uintptr_t>(block_);
    first_ = static_cast<std::byte*>(block_) + (std::uintptr_t{0} - address) % std::uintptr_t{alignment};
  }
  /// In memory that the caller owns.
  scratch_block(std::byte* place, index_t bytes) noexcept : first_(place), bytes_(bytes) {}
  scratch_block(scratch_block&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)),
        block_(other.block_),
        first_(other.first_),
        bytes_(other.bytes_),
        taken_(other.taken_) {}
  scratch_block& operator=(scratch_block&&) = delete;
  ~scratch_block() {
    if (memory_ != nullptr && block_ != nullptr) memory_->deallocate(block_, block_bytes(), block_alignment);
  }

  [[nodiscard]] std::byte* data() const noexcept { return first_; }
  /// Bytes that were not taken.
  [[nodiscard]] index_t left() const noexcept { return bytes_ - taken_; }

  /// The next n elements, not initialised.
  ///
  /// @pre bytes_of(n) are left
  template <class T>
  std::span<T> take(index_t n) {
    DEEPREC_EXPECTS(bytes_of<T>(n) <= bytes_ - taken_);
    auto* const place = static_cast<T*>(static_cast<void*>(first_ + taken_));
    taken_ += bytes_of<T>(n);
    return {place, static_cast<std::size_t>(n)};
  }

 private:
  // Aligned here, in a block of the usual alignment: glibc before 2.38 does not use a block of a larger one
  // again where a small one was allocated since (its bug 14581).
  static constexpr std::size_t block_alignment = alignof(std::max_align_t);
  [[nodiscard]] std::size_t block_bytes() const noexcept {
    return static_cast<std::size_t>(bytes_) + std::size_t{alignment} - block_alignment;
  }

  std::pmr::memory_resource* memory_ = nullptr;
  void* block_ = nullptr;
  std::byte* first_ = nullptr;
  index_t bytes_;
  index_t taken_ = 0;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
