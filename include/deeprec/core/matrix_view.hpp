// A non-owning view of a row-major matrix.
//
//   data_handle() ─> [ x00 x01 x02 ] pad        extent(0) rows, extent(1) columns,
//                    [ x10 x11 x12 ] pad        stride(0) elements from a row to the next
//
// Maps to Eigen::Map<Matrix<T, -1, -1, RowMajor>, 0, OuterStride<>> and to a DLPack tensor without a
// copy. Names as in std::mdspan. Not here: ownership, column-major, more than two dimensions.
#pragma once

#include <cstddef>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Whether rows may share memory. Those of a gradient, and of what ops/ and quantize only read, may: a stride
/// of 0 repeats one row.
enum class row_overlap : unsigned char { refused, permitted };

namespace detail {

/// What keeps rows from being a matrix.
enum class matrix_fault : unsigned char { none, negative_extent, null_data, short_stride, too_large };

/// The one rule of what a matrix is. Without elements, data and stride mean nothing; of one row, the stride.
constexpr matrix_fault matrix_fault_of(const void* data, index_t rows, index_t columns, index_t stride,
                                       std::size_t element_bytes,
                                       row_overlap overlap = row_overlap::refused) noexcept {
  if (rows < 0 || columns < 0) return matrix_fault::negative_extent;
  if (rows == 0 || columns == 0) return matrix_fault::none;
  if (data == nullptr) return matrix_fault::null_data;
  const index_t least = overlap == row_overlap::permitted ? 0 : columns;
  if (rows > 1 && stride < least) return matrix_fault::short_stride;
  // Costs are estimated in elements of 8 bytes. Rows that overlap count in full: outputs have their shape.
  const index_t step = rows > 1 && stride > columns ? stride : columns;
  const index_t elements = capped_sum(capped_product(rows - 1, step), columns);
  return fits_memory(elements, element_bytes < 8 ? 8 : element_bytes) ? matrix_fault::none
                                                                      : matrix_fault::too_large;
}

}  // namespace detail

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

  /// Reports negative sizes, null data, rows that overlap, and more elements than memory can hold. Reads no
  /// element.
  /// @param when_null the detail of the status where data is null: a string literal that names the operand
  /// @param overlap refused, unless the operand is only read and may repeat rows
  ///
  /// @cost    O(1)
  /// @threads reentrant
  /// @error   shape_mismatch
  [[nodiscard]] constexpr status validate(const char* when_null = "matrix_view: data must not be null",
                                          row_overlap overlap = row_overlap::refused) const noexcept {
    switch (detail::matrix_fault_of(data_, rows_, columns_, stride_, sizeof(T), overlap)) {
      case detail::matrix_fault::none:
        return {};
      case detail::matrix_fault::negative_extent:
        return {errc::shape_mismatch, "matrix_view: extents must not be negative"};
      case detail::matrix_fault::null_data:
        return {errc::shape_mismatch, when_null};
      case detail::matrix_fault::short_stride:
        return {errc::shape_mismatch, overlap == row_overlap::permitted
                                          ? "matrix_view: the row stride must not be negative"
                                          : "matrix_view: the row stride must be at least the columns"};
      case detail::matrix_fault::too_large:
        break;
    }
    return {errc::shape_mismatch, "matrix_view: elements must fit in memory"};
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

/// The same, for a matrix_view, a gemm_view or a bit_matrix_view.
template <class View>
constexpr matrix_fault matrix_fault_of(const View& v) noexcept {
  if constexpr (requires { sizeof(*v.data_handle()); }) {
    return matrix_fault_of(v.data_handle(), v.extent(0), v.extent(1), v.stride(0), sizeof(*v.data_handle()));
  } else {
    return matrix_fault_of(v.data(), v.extent(0), v.extent(1), v.stride(0), 1);
  }
}
template <class View>
constexpr bool well_formed(const View& v) noexcept {
  return matrix_fault_of(v) == matrix_fault::none;
}

template <class View>
constexpr bool has_shape(const View& v, index_t rows, index_t columns) noexcept {
  return v.extent(0) == rows && v.extent(1) == columns;
}

}  // namespace detail

}}  // namespace deeprec::DEEPREC_ABI
