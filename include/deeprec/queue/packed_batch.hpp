// The layout of a batch's arrays in one buffer, so that one copy moves them all.
//
//   | offsets 0 | ids 0 | weights 0 | offsets 1 | ids 1 | dense |      each begins at a multiple of 256 bytes
//
//   packed_layout layout;
//   const auto ids = layout.add<std::int64_t>(n);          a slice: its offset and size
//   layout.bytes();  ids.in(host_buffer);  ids.in(device_buffer);
//
// Pure arithmetic: cuda_staging.hpp owns the buffers and enqueues the copy.
#pragma once

#include <cstddef>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Consecutive slices.
///
/// @threads one thread at a time
class packed_layout {
 public:
  /// `size` elements at an offset of a packed buffer.
  template <class T>
  struct slice {
    std::size_t offset = 0;
    std::size_t size = 0;

    /// The elements in a buffer with this layout, on the host or the device.
    [[nodiscard]] T* in(void* buffer) const noexcept {
      return static_cast<T*>(static_cast<void*>(static_cast<std::byte*>(buffer) + offset));
    }
    [[nodiscard]] const T* in(const void* buffer) const noexcept {
      return static_cast<const T*>(static_cast<const void*>(static_cast<const std::byte*>(buffer) + offset));
    }
  };

  static constexpr std::size_t alignment = 256;

  /// Appends a slice. One that would exceed the address space is not added, and makes fits() false.
  template <class T>
  slice<T> add(std::size_t size) {
    static_assert(
        std::is_trivially_copyable_v<T> && alignof(T) <= alignment,
        "deeprec::packed_layout: elements are moved by their bytes. Fix: a trivially copyable type.");
    // A multiple of the alignment, so that sizes rounded up stay within it.
    constexpr std::size_t most = (std::numeric_limits<std::size_t>::max)() / 2 / alignment * alignment;
    const slice<T> made{bytes_, size};
    if (size > (most - bytes_) / sizeof(T)) {
      fits_ = false;
      return {};
    }
    bytes_ = (bytes_ + size * sizeof(T) + alignment - 1) / alignment * alignment;
    return made;
  }
  /// Removes all slices.
  void clear() noexcept {
    bytes_ = 0;
    fits_ = true;
  }

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] bool fits() const noexcept { return fits_; }

 private:
  std::size_t bytes_ = 0;
  bool fits_ = true;
};

}}  // namespace deeprec::DEEPREC_ABI
