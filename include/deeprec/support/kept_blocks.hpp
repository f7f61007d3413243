// Blocks of any size, kept where they are freed: for steps that ask for nearly the same ones each time.
//
//   1 .. 64 bytes | 80 | 96 | 112 | 128 | 160 | 192 ...     lists of free blocks, four for a power of two
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <memory_resource>
#include <new>

#include <deeprec/core/config.hpp>
#include <deeprec/support/address_poison.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// A block takes up to a quarter more than was asked for, or 64 bytes. What is aligned to more than 64 bytes
/// goes to the resource behind it, which has all blocks back at the end.
///
/// @pre     all blocks are freed before it ends
/// @cost    a block that was freed before: some nanoseconds
/// @threads one at a time
/// @error   throws what the resource throws
class kept_blocks final : public std::pmr::memory_resource {
 public:
  explicit kept_blocks(std::pmr::memory_resource* upstream) noexcept : upstream_(upstream) {}
  kept_blocks(const kept_blocks&) = delete;
  kept_blocks& operator=(const kept_blocks&) = delete;
  ~kept_blocks() override {
    for (std::size_t k = 0; k < lists; ++k) {
      while (void* const block = take(k)) upstream_->deallocate(block, size_of(k), granule);
    }
  }

 private:
  static constexpr std::size_t granule = 64, most_bytes = std::size_t{1} << 62, lists = 4 * 56 + 1;
  struct free_block {
    free_block* next;
  };

  static std::size_t list_of(std::size_t bytes) noexcept {
    if (bytes <= granule) return 0;
    const auto octave = static_cast<std::size_t>(std::bit_width(bytes - 1));  // 7 from 65 bytes on
    return (octave - 7) * 4 + (((bytes - 1) >> (octave - 3)) & 3) + 1;
  }
  static std::size_t size_of(std::size_t list) noexcept {
    if (list == 0) return granule;
    return (4 + (list - 1) % 4 + 1) << ((list - 1) / 4 + 4);
  }
  static bool keeps(std::size_t bytes, std::size_t alignment) noexcept {
    return alignment <= granule && bytes <= most_bytes;
  }
  void* take(std::size_t list) noexcept {
    free_block* const first = free_[list];
    if (first == nullptr) return nullptr;
    unpoison_addresses(first, size_of(list));
    free_[list] = first->next;
    return first;
  }

  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (!keeps(bytes, alignment)) return upstream_->allocate(bytes, alignment);
    const std::size_t list = list_of(bytes);
    void* const block = take(list);
    return block != nullptr ? block : upstream_->allocate(size_of(list), granule);
  }
  void do_deallocate(void* block, std::size_t bytes, std::size_t alignment) override {
    if (!keeps(bytes, alignment)) return upstream_->deallocate(block, bytes, alignment);
    const std::size_t list = list_of(bytes);
    free_[list] = ::new (block) free_block{free_[list]};
    poison_addresses(block, size_of(list));
  }
  [[nodiscard]] bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }

  std::pmr::memory_resource* upstream_;
  std::array<free_block*, lists> free_{};
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
