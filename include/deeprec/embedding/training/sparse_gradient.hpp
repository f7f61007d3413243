// The gradient of the rows of a table that a batch used, and sums of such gradients.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory_resource>
#include <tuple>
#include <vector>

#include <deeprec/core/batch_traits.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The gradient of the rows of a table that a batch used. Keeps its memory when it is filled again.
///
/// @space   host; memory comes from the resource given to the constructor
/// @threads concurrent readers are safe; a writer needs exclusive access
struct sparse_gradient {
  explicit sparse_gradient(std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : rows(memory), values(memory) {}

  std::pmr::vector<index_t> rows;  ///< (U), ascending
  std::pmr::vector<float> values;  ///< (U,D)

  /// (U,D)
  [[nodiscard]] matrix_view<const float> view(index_t width) const noexcept {
    return {values.data(), static_cast<index_t>(rows.size()), width};
  }
};

/// Sums of sparse gradients: a row that several of them have is there once.
template <>
struct batch_traits<sparse_gradient> {
  static void clear(sparse_gradient& sum) noexcept {
    sum.rows.clear();
    sum.values.clear();
  }
  /// sum += weight * part, for rows of the same width; allocates where the sum has more rows than ever.
  static void accumulate(sparse_gradient& sum, const sparse_gradient& part, float weight) {
    if (part.rows.empty()) return;
    const std::size_t width = part.values.size() / part.rows.size();
    std::size_t before = sum.rows.size(), added = part.rows.size(), all = 0;
    for (std::size_t i = 0, j = 0; i < before || j < added; ++all) {
      const bool from_sum = i < before && (j == added || sum.rows[i] <= part.rows[j]);
      const bool from_part = j < added && (i == before || part.rows[j] <= sum.rows[i]);
      i += from_sum ? 1 : 0;
      j += from_part ? 1 : 0;
    }
    sum.rows.resize(all);
    sum.values.resize(all * width);
    // From the last row on, so that no row is overwritten before it has moved.
    while (all > 0) {
      --all;
      const bool from_sum = before > 0 && (added == 0 || sum.rows[before - 1] >= part.rows[added - 1]);
      const bool from_part = added > 0 && (before == 0 || part.rows[added - 1] >= sum.rows[before - 1]);
      const index_t row = from_sum ? sum.rows[before - 1] : part.rows[added - 1];
      float* const to = sum.values.data() + all * width;
      const auto columns = static_cast<index_t>(width);
      if (from_sum && before - 1 != all) {
        std::copy_n(sum.values.data() + (before - 1) * width, width, to);
      }
      if (from_part) {
        const float* const values = part.values.data() + (added - 1) * width;
        if (from_sum) {
          detail::add_weighted(to, values, weight, columns);
        } else {
          detail::scale_into(to, values, weight, columns);
        }
      }
      sum.rows[all] = row;
      before -= from_sum ? 1 : 0;
      added -= from_part ? 1 : 0;
    }
  }
};

namespace detail {
inline auto arrays_of(const sparse_gradient& gradient) noexcept {
  return std::tie(gradient.rows, gradient.values);
}
}  // namespace detail

}}  // namespace deeprec::DEEPREC_ABI
