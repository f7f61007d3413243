// A non-owning view of an array in one memory space: ids, conditions, offsets, outputs of one dimension.
//
//   std::vector<std::int64_t> ids;              array_view<const std::int64_t>(ids)             host memory
//   device_array<std::int64_t> on_device;       on_device.view()                                device_space
//
// As std::span, with the space in its type, as matrix_view has it. Not here: ownership, strides.
#pragma once

#include <span>
#include <type_traits>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/space.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

template <class T, MemorySpace Space>
class array_view;

namespace detail {
template <class>
inline constexpr bool is_array_view = false;
template <class T, class Space>
inline constexpr bool is_array_view<array_view<T, Space>> = true;
}  // namespace detail

/// Non-owning array of size() elements in the memory space Space. Trivially copyable; pass it by value.
///
/// @threads as its memory: concurrent readers are safe, a writer needs elements of its own
template <class T, MemorySpace Space = host_space>
class array_view {
 public:
  using element_type = T;
  using value_type = std::remove_cv_t<T>;
  using space = Space;

  constexpr array_view() noexcept = default;
  DEEPREC_HD constexpr array_view(T* data, index_t size) noexcept : data_(data), size_(size) {}
  /// Anything that converts to std::span<T>, as host memory.
  template <class Range>
    requires(std::is_same_v<Space, host_space> && !detail::is_array_view<std::remove_cvref_t<Range>> &&
             std::is_convertible_v<Range, std::span<T>>)
  constexpr array_view(Range&& range) noexcept {
    const std::span<T> elements(static_cast<Range&&>(range));
    data_ = elements.data();
    size_ = static_cast<index_t>(elements.size());
  }

  /// Converts to const elements, or to a space that may reach this memory.
  template <class U, MemorySpace From>
    requires(std::is_convertible_v<U (*)[], T (*)[]> && reachable_as<From, Space> &&
             !std::is_same_v<array_view<U, From>, array_view>)
  DEEPREC_HD constexpr array_view(const array_view<U, From>& other) noexcept
      : array_view(other.data(), other.size()) {}
  template <class U, MemorySpace From>
    requires(!reachable_as<From, Space>)
  array_view(const array_view<U, From>&) = delete;

  [[nodiscard]] DEEPREC_HD constexpr T* data() const noexcept { return data_; }
  /// Elements.
  [[nodiscard]] DEEPREC_HD constexpr index_t size() const noexcept { return size_; }
  [[nodiscard]] DEEPREC_HD constexpr index_t size_bytes() const noexcept {
    return capped_product(size_, index_t{sizeof(T)});
  }
  [[nodiscard]] DEEPREC_HD constexpr bool empty() const noexcept { return size_ == 0; }

  /// False for a negative size, null data with a size, and more elements than memory can hold. Reads no
  /// element.
  [[nodiscard]] constexpr bool valid() const noexcept {
    return size_ == 0 || (size_ > 0 && data_ != nullptr && fits_memory(size_, sizeof(T)));
  }

  /// Element i. Of device memory: in device code only.
  [[nodiscard]] DEEPREC_HD constexpr T& operator[](index_t i) const
    requires reachable_as<Space, host_space>
  {
    DEEPREC_EXPECTS(0 <= i && i < size_);
    return data_[i];
  }
#if defined(__CUDACC__)
  [[nodiscard]] __device__ constexpr T& operator[](index_t i) const
    requires(!reachable_as<Space, host_space>)
  {
    return data_[i];
  }
#else
  [[nodiscard]] constexpr T& operator[](index_t i) const
    requires(!reachable_as<Space, host_space>)
  {
    static_assert(
        reachable_as<Space, host_space>,
        "deeprec::array_view: an element of device memory read on the host. Fix: copy it to the host first "
        "(device_array::copy_to), or use unified memory.");
    return data_[i];
  }
#endif
  [[nodiscard]] constexpr T* begin() const noexcept
    requires reachable_as<Space, host_space>
  {
    return data_;
  }
  [[nodiscard]] constexpr T* end() const noexcept
    requires reachable_as<Space, host_space>
  {
    return data_ + size_;
  }

  /// Elements [first, first + count).
  [[nodiscard]] DEEPREC_HD constexpr array_view subview(index_t first, index_t count) const {
    DEEPREC_EXPECTS(0 <= first && 0 <= count && count <= size_ - first);
    return {data_ + first, count};
  }

 private:
  T* data_ = nullptr;
  index_t size_ = 0;
};

template <class T>
array_view(T*, index_t) -> array_view<T, host_space>;
template <class Range>
array_view(Range&&)
    -> array_view<typename decltype(std::span(std::declval<Range>()))::element_type, host_space>;

static_assert(std::is_trivially_copyable_v<array_view<float>>);

}}  // namespace deeprec::DEEPREC_ABI

/// @cond
// The elements outlive the view.
template <class T, deeprec::MemorySpace Space>
inline constexpr bool std::ranges::enable_borrowed_range<deeprec::array_view<T, Space>> = true;
/// @endcond
