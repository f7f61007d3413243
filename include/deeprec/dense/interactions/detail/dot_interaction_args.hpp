// What the kernels of the dot interaction work on.
#pragma once

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The vectors of one sample: number 0 is the dense one, the others lie side by side.
struct interacting_vectors {
  const float* dense;
  const float* pooled;
  index_t count;  // the dense one included
  index_t width;

  [[nodiscard]] DEEPREC_INLINE const float* vector(index_t i) const noexcept {
    return i == 0 ? dense : pooled + (i - 1) * width;
  }
};

/// Where their gradients are written.
struct interacting_gradients {
  float* dense;
  float* pooled;

  [[nodiscard]] DEEPREC_INLINE float* vector(index_t i, index_t width) const noexcept {
    return i == 0 ? dense : pooled + (i - 1) * width;
  }
};

/// Fetches the first n floats of a row that is worked on soon into the second-level cache.
DEEPREC_INLINE void fetch_row(const float* row, index_t n) noexcept {
  constexpr index_t line = 64 / index_t{sizeof(float)};
  for (index_t j = 0; j < n; j += line) __builtin_prefetch(row + j, 0, 2);
}
/// The same for a row that is written.
DEEPREC_INLINE void fetch_row(float* row, index_t n) noexcept {
  constexpr index_t line = 64 / index_t{sizeof(float)};
  for (index_t j = 0; j < n; j += line) __builtin_prefetch(row + j, 1, 2);
}

/// Products that one pass adds: columns of a vector, or vectors.
inline constexpr index_t interaction_depth = 128;

/// Where row i of the strictly lower triangle begins.
constexpr index_t triangle_row(index_t i) noexcept { return i * (i - 1) / 2; }

/// What the kernels keep in the first-level cache. Its values are finite from the beginning: lanes and rows
/// that are not stored are computed as well.
struct interaction_scratch {
  static constexpr index_t most_columns = 32, most_rows = 12;  // of a block, in the widest region

  alignas(64) float transposed[interaction_depth * most_columns] = {};
  alignas(64) float factors[most_rows * interaction_depth] = {};
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
