// Rows of a matrix as kernels take them.
#pragma once

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Rows of floats, `stride` floats apart.
template <class T>
struct float_rows {
  T* first;
  index_t stride;

  [[nodiscard]] DEEPREC_INLINE T* row(index_t i) const noexcept { return first + i * stride; }
};

/// The rows of a matrix from row `first` on.
template <class T, class Space>
float_rows<T> rows_from(matrix_view<T, Space> m, index_t first) noexcept {
  return {m.row(first), m.stride(0)};
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
