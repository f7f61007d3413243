// What the kernels of Dice work on, and how sums over a batch are cut.
#pragma once

#include <algorithm>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/dense/detail/float_rows.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Parameters of consecutive columns.
struct dice_columns {
  const float* mean;
  const float* variance;
  const float* alpha;
  float epsilon;

  [[nodiscard]] dice_columns from(index_t j) const noexcept {
    return {mean + j, variance + j, alpha + j, epsilon};
  }
};

// Sums over a batch: of pieces of the rows, whose bounds depend on the number of rows only, added in order.
// Their results for a panel of columns are on the stack.
inline constexpr index_t dice_pieces = 32, dice_panel = 128, dice_part = 64;
constexpr index_t dice_piece(index_t rows) noexcept {
  const index_t each = rows / dice_pieces + (rows % dice_pieces != 0 ? 1 : 0);
  return (std::max)((each + dice_part - 1) / dice_part * dice_part, dice_part);
}

template <int Sums>
struct dice_partials {
  alignas(64) float of[Sums][dice_pieces][dice_panel];
};

// Sums of distances are of this part of each, so that those of the largest floats have room; a power of two.
inline constexpr float dice_shrink = 0x1p-24F;

/// Sum s of column j over the pieces.
template <int Sums>
DEEPREC_PER_UNIT double dice_total(const dice_partials<Sums>& partial, int s, index_t j,
                                   index_t pieces) noexcept {
  double sum = 0;
  for (index_t piece = 0; piece < pieces; ++piece) sum += static_cast<double>(partial.of[s][piece][j]);
  return sum;
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
