// Steps of an optimizer on pieces of dense tensors, and the state of the pieces.
//
//   a piece of (R,W)      ...w | W W W W | w...     the end of a row, rows, a beginning: three matrices
#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/optim/apply_row.hpp>
#include <deeprec/optim/row_optimizer.hpp>
#include <deeprec/sharding/detail/dense_layout.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

template <class Rows>
constexpr bool reads_row_norm() {
  if constexpr (GradientTransform<Rows>) {
    return static_cast<bool>(Rows::needs_norm) ||
           reads_row_norm<prepared_t<std::remove_cvref_t<decltype(std::declval<const Rows&>().optimizer)>>>();
  } else {
    return false;
  }
}
/// Where the bits of a row's step depend on all of its elements.
template <class O>
inline constexpr dense_cuts cuts_of =
    O::row_state > 0 || static_cast<bool>(O::needs_mean_square) || reads_row_norm<prepared_t<O>>()
        ? dense_cuts::between_rows
        : dense_cuts::anywhere;

/// each(first, rows, width) for the matrices of a piece, `first` from its beginning.
template <class Each>
void for_matrices(const dense_piece& piece, index_t width, const Each& each) {
  const index_t into = piece.first % width;
  const index_t head = into == 0 ? 0 : (std::min)(width - into, piece.count);
  const index_t rows = (piece.count - head) / width, tail = piece.count - head - rows * width;
  if (head > 0) each(index_t{0}, index_t{1}, head);
  if (rows > 0) each(head, rows, width);
  if (tail > 0) each(head + rows * width, index_t{1}, tail);
}

template <class O>
index_t state_of_piece(const dense_piece& piece, index_t width) {
  index_t floats = 0;
  for_matrices(piece, width,
               [&](index_t, index_t rows, index_t w) { floats += rows * state_floats_of<O>(w); });
  return floats;
}

/// Steps the floats of a piece. @return the state behind that of the piece
template <class Context, class O>
DEEPREC_PER_UNIT float* step_piece(const Context& ctx, const O& optimizer, const dense_piece& piece,
                                   index_t width, const float* gradient, float* weights, float* state,
                                   status& outcome) {
  for_matrices(piece, width, [&](index_t first, index_t rows, index_t w) {
    const index_t floats = state_floats_of<O>(w);
    const status s =
        apply_rows(ctx, matrix_view<const float>(gradient + first, rows, w), optimizer,
                   matrix_view<float>(weights + first, rows, w), matrix_view<float>(state, rows, floats));
    if (outcome.ok()) outcome = s;
    state += rows * floats;
  });
  return state;
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
