// A non-owning view of a row-major matrix.
//
//   data_handle() ─> [ x00 x01 x02 ] pad        extent(0) rows, extent(1) columns,
//                    [ x10 x11 x12 ] pad        stride(0) elements from a row to the next
//
// Maps to Eigen::Map<Matrix<T, -1, -1, RowMajor>, 0, OuterStride<>> and to a DLPack tensor without a
// copy. Names as in std::mdspan. Not here: ownership, column-major, more than two dimensions.
#pragma once

#include <cstddef>
#include <limits>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Non-owning row-major matrix in the memory space Space.
/// Trivially copyable; pass it by value.
///
/// @threads as its memory: concurrent readers are safe, a writer needs rows of its own
template <class T, MemorySpace Space = host_space>
class matrix_view {
 public:
  using element_type = T;
  using value_type = std::remove_cv_t<T>;
  using space = Space;

  constexpr matrix_view() noexcept = default;
  DEEPREC_HD constexpr matrix_view(T* data, index_t rows, index_t columns) noexcept
      : matrix_view(data, rows, columns, columns) {}
  /// @param row_stride elements from one row to the next; at least the number of columns
  DEEPREC_HD constexpr matrix_view(T* data, index_t rows, index_t columns, index_t row_stride) noexcept
      : data_(data), rows_(rows), columns_(columns), stride_(row_stride) {}

  /// Converts to const elements, or to a space that may reach this memory.
  template <class U, MemorySpace From>
    requires std::is_convertible_v<U (*)[], T (*)[]> && reachable_as<From, Space>
  DEEPREC_HD constexpr matrix_view(const matrix_view<U, From>& other)
      : matrix_view(other.data_handle(), other.extent(0), other.extent(1), other.stride(0)) {}
  template <class U, MemorySpace From>
    requires(!reachable_as<From, Space>)
  matrix_view(const matrix_view<U, From>&) = delete;

  [[nodiscard]] DEEPREC_HD constexpr T* data_handle() const noexcept { return data_; }
  [[nodiscard]] DEEPREC_HD constexpr index_t extent(int rank) const noexcept {
    return rank == 0 ? rows_ : columns_;
  }
  [[nodiscard]] DEEPREC_HD constexpr index_t stride(int rank) const noexcept {
    return rank == 0 ? stride_ : 1;
  }
  [[nodiscard]] DEEPREC_HD constexpr bool empty() const noexcept { return rows_ == 0 || columns_ == 0; }

  /// Reports negative sizes, null data, and more elements than memory can hold. Reads no element.
  /// @param when_null the detail of the status where data is null: a string literal that names the operand
  ///
  /// @cost    O(1)
  /// @threads reentrant
  /// @error   shape_mismatch
  [[nodiscard]] constexpr status validate(
      const char* when_null = "matrix_view: data must not be null") const noexcept {
    if (valid()) return {};
    if (rows_ < 0 || columns_ < 0) {
      return {errc::shape_mismatch, "matrix_view: extents must not be negative"};
    }
    if (data_ == nullptr) return {errc::shape_mismatch, when_null};
    return {errc::shape_mismatch, "matrix_view: elements must fit in memory"};
  }
  /// True when validate() is ok.
  [[nodiscard]] constexpr bool valid() const noexcept {
    if (rows_ < 0 || columns_ < 0) return false;
    if (empty()) return true;
    if (data_ == nullptr) return false;
    const index_t behind = detail::capped_product(rows_ - 1, stride_);
    return detail::fits_memory(detail::capped_sum(behind < 0 ? -behind : behind, columns_), sizeof(T));
  }

  /// Pointer to the first element of row i.
  [[nodiscard]] DEEPREC_HD constexpr T* row(index_t i) const noexcept { return data_ + i * stride_; }

  /// Element (i, j). Of device memory: in device code only.
  [[nodiscard]] DEEPREC_HD constexpr T& operator()(index_t i, index_t j) const
    requires reachable_as<Space, host_space>
  {
    DEEPREC_EXPECTS(0 <= i && i < rows_ && 0 <= j && j < columns_);
    return data_[i * stride_ + j];
  }
#if defined(__CUDACC__)
  [[nodiscard]] __device__ constexpr T& operator()(index_t i, index_t j) const
    requires(!reachable_as<Space, host_space>)
  {
    return data_[i * stride_ + j];
  }
#else
  [[nodiscard]] constexpr T& operator()(index_t i, index_t) const
    requires(!reachable_as<Space, host_space>)
  {
    static_assert(
        reachable_as<Space, host_space>,
        "deeprec::matrix_view: an element of device memory read on the host. Fix: copy it to the host "
        "first (device_array::copy_to), or use unified memory.");
    return data_[i];
  }
#endif

  /// Rows [first, first + count).
  [[nodiscard]] DEEPREC_HD constexpr matrix_view rows(index_t first, index_t count) const {
    DEEPREC_EXPECTS(0 <= first && 0 <= count && count <= rows_ - first);
    return {row(first), count, columns_, stride_};
  }
  /// Columns [first, first + count) of every row; the stride stays.
  [[nodiscard]] DEEPREC_HD constexpr matrix_view columns(index_t first, index_t count) const {
    DEEPREC_EXPECTS(0 <= first && 0 <= count && count <= columns_ - first);
    return {data_ + first, rows_, count, stride_};
  }

 private:
  T* data_ = nullptr;
  index_t rows_ = 0, columns_ = 0;
  index_t stride_ = 0;
};

static_assert(std::is_trivially_copyable_v<matrix_view<float>>);

/// A parameter of a verb that deduces Space from another one: whatever converts to the view may be passed,
/// such as a matrix_view<float> where T is const float.
template <class T, MemorySpace Space>
using matrix_arg = std::type_identity_t<matrix_view<T, Space>>;

namespace detail {

template <class>
inline constexpr bool is_matrix_view = false;
template <class T, class Space>
inline constexpr bool is_matrix_view<matrix_view<T, Space>> = true;

/// True when the rows, with their stride, have no more bytes than an index can count.
constexpr bool countable(index_t rows, index_t columns, index_t stride) noexcept {
  constexpr index_t most = (std::numeric_limits<index_t>::max)() / 8;
  if (rows <= 0 || columns <= 0) return true;
  return columns <= most && (rows == 1 || stride <= 0 || rows - 1 <= (most - columns) / stride);
}
template <class View>
constexpr bool countable(const View& v) noexcept {
  return countable(v.extent(0), v.extent(1), v.stride(0));
}

/// True when memory, sizes and row stride are consistent.
template <class View>
constexpr bool well_formed(const View& v) noexcept {
  const void* data;
  if constexpr (requires { v.data_handle(); }) {
    data = v.data_handle();
  } else {
    data = v.data();
  }
  return v.extent(0) >= 0 && v.extent(1) >= 0 && countable(v) &&
         (v.empty() || (data != nullptr && (v.extent(0) == 1 || v.stride(0) >= v.extent(1))));
}

template <class View>
constexpr bool has_shape(const View& v, index_t rows, index_t columns) noexcept {
  return v.extent(0) == rows && v.extent(1) == columns;
}

}  // namespace detail

}}  // namespace deeprec::DEEPREC_ABI
