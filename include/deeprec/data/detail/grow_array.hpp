// A plain array that grows and never shrinks: the storage of batches and text buffers.
//
//   base ──skew──> data() [ capacity() elements, not initialised ]
//
// The skew, a few cache lines, keeps the arrays of neighbouring features out of each other's cache
// sets: a parser writes to one element of each of them in turn. Growing reports failure; it never
// throws.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory_resource>
#include <new>
#include <type_traits>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

inline constexpr std::size_t cache_line_bytes = 64;

/// Memory of the resource, or null where it throws.
inline void* try_allocate(std::pmr::memory_resource* memory, std::size_t bytes) noexcept {
#if DEEPREC_EXCEPTIONS
  try {
    return memory->allocate(bytes, cache_line_bytes);
  } catch (...) {
    return nullptr;
  }
#else
  return memory->allocate(bytes, cache_line_bytes);
#endif
}

template <class T>
class grow_array {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  explicit grow_array(std::pmr::memory_resource* memory = std::pmr::get_default_resource(),
                      index_t skew_lines = 0) noexcept
      : memory_(memory), skew_(static_cast<std::size_t>(skew_lines) * cache_line_bytes) {}
  grow_array(grow_array&& other) noexcept
      : memory_(other.memory_),
        base_(std::exchange(other.base_, nullptr)),
        capacity_(std::exchange(other.capacity_, 0)),
        skew_(other.skew_) {}
  grow_array& operator=(grow_array&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(base_, other.base_);
    std::swap(capacity_, other.capacity_);
    std::swap(skew_, other.skew_);
    return *this;
  }
  ~grow_array() { release(); }

  [[nodiscard]] T* data() const noexcept {
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + skew_);
  }
  [[nodiscard]] index_t capacity() const noexcept { return capacity_; }

  /// Makes room for `count` elements, of which the first `kept` keep their values; false, and nothing
  /// changes, when there is no memory.
  [[nodiscard]] bool reserve(index_t count, index_t kept) noexcept {
    if (count <= capacity_) [[likely]]
      return true;
    constexpr index_t most =
        (std::numeric_limits<index_t>::max)() / static_cast<index_t>(2 * sizeof(T)) - 4096;
    if (count > most) return false;
    const index_t wanted = (std::max)(count, (std::min)(most, capacity_ + capacity_ / 2));
    auto* fresh = static_cast<std::byte*>(try_allocate(memory_, bytes_of(wanted)));
    if (fresh == nullptr) return false;
    if (kept > 0) std::memcpy(fresh + skew_, base_ + skew_, static_cast<std::size_t>(kept) * sizeof(T));
    release();
    base_ = fresh;
    capacity_ = wanted;
    return true;
  }

 private:
  [[nodiscard]] std::size_t bytes_of(index_t count) const noexcept {
    return static_cast<std::size_t>(count) * sizeof(T) + skew_;
  }
  void release() noexcept {
    if (base_ != nullptr) memory_->deallocate(base_, bytes_of(capacity_), cache_line_bytes);
  }

  std::pmr::memory_resource* memory_;
  std::byte* base_ = nullptr;
  index_t capacity_ = 0;
  std::size_t skew_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
