// Bytes that are appended, as a vector without initialisation.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory_resource>
#include <utility>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// @threads exclusive
class byte_list {
 public:
  explicit byte_list(std::pmr::memory_resource* memory) noexcept : memory_(memory) {}
  byte_list(const byte_list&) = delete;
  byte_list& operator=(const byte_list&) = delete;
  ~byte_list() {
    if (first_ != nullptr) memory_->deallocate(first_, room_);
  }

  [[nodiscard]] const std::byte* data() const noexcept { return first_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  void clear() noexcept { size_ = 0; }
  /// The place of n bytes more; throws std::bad_alloc, and nothing changed.
  std::byte* append(std::size_t n) {
    if (n > room_ - size_) {
      const std::size_t room = (std::max)(size_ + n, 2 * room_);
      auto* const larger = static_cast<std::byte*>(memory_->allocate(room));
      if (size_ > 0) std::memcpy(larger, first_, size_);
      if (first_ != nullptr) memory_->deallocate(first_, room_);
      first_ = larger;
      room_ = room;
    }
    std::byte* const place = first_ + size_;
    size_ += n;
    return place;
  }
  /// @pre both have one resource
  void swap(byte_list& other) noexcept {
    std::swap(first_, other.first_);
    std::swap(size_, other.size_);
    std::swap(room_, other.room_);
  }

 private:
  std::pmr::memory_resource* memory_;
  std::byte* first_ = nullptr;
  std::size_t size_ = 0;
  std::size_t room_ = 0;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
