// What an optimizer is: a functor over one row of weights. The same functor serves embedding rows and
// dense layers (a layer's row is an output neuron), scalar code, vector registers and device threads.
//
//   for each row:      step = optimizer.begin_row(row_state, mean of the squared gradient)
//     for each element:  w' = step(w, g, element_state&...)
//
// A step is called on floats; the library's own steps have vector forms as well (steps.hpp).
#pragma once

#include <concepts>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec::inline DEEPREC_ABI {

/// row_state and element_state say how many floats of state a row and each of its elements have;
/// needs_mean_square says whether begin_row reads its second argument.
template <class O>
concept RowOptimizer =
    std::copyable<O> && requires(const O& optimizer, float* row_state, float mean_square) {
      { O::row_state } -> std::convertible_to<int>;
      { O::element_state } -> std::convertible_to<int>;
      { O::needs_mean_square } -> std::convertible_to<bool>;
      optimizer.begin_row(row_state, mean_square);
    };

namespace detail {

/// A step over the elements of a row, one by one.
template <int States, class Step, class W>
void step_elements(const Step& step, W* weights, const float* gradient,
                   [[maybe_unused]] float* state, index_t width) {
  static_assert(States <= 2, "deeprec::apply_row: an optimizer keeps at most two floats per element. "
                             "Fix: element_state <= 2.");
  for (index_t j = 0; j < width; ++j) {
    const auto weight = static_cast<float>(weights[j]);
    if constexpr (States == 0) {
      weights[j] = static_cast<W>(step(weight, gradient[j]));
    } else if constexpr (States == 1) {
      weights[j] = static_cast<W>(step(weight, gradient[j], state[j]));
    } else {
      weights[j] = static_cast<W>(step(weight, gradient[j], state[j], state[width + j]));
    }
  }
}

}  // namespace detail

/// Applies an optimizer to one row in plain scalar code: the reference for every faster path.
///
/// @shape    weights, gradient (D) · state (row_state + element_state * D), row part first,
///           then D floats for each element state
/// @dtype    W: a storage type; gradient and state float
/// @pre      state was zeroed when the row was made
/// @numerics float arithmetic, elements in order; a 16-bit weight is rounded to nearest even once
/// @cost     O(D), no allocation
/// @threads  one thread per row
/// @error    none
template <RowOptimizer O, Storage W>
void apply_row(const O& optimizer, W* weights, const float* gradient, float* state, index_t width) {
  float mean_square = 0;
  if constexpr (O::needs_mean_square) {
    for (index_t j = 0; j < width; ++j) mean_square += gradient[j] * gradient[j];
    mean_square /= static_cast<float>(width > 0 ? width : 1);
  }
  const auto step = optimizer.begin_row(state, mean_square);
  detail::step_elements<O::element_state>(step, weights, gradient, state + O::row_state, width);
}

}  // namespace deeprec::inline DEEPREC_ABI
