// What an optimizer is: a functor over one row of weights. The same functor serves embedding rows and
// dense layers (a layer's row is an output neuron), scalar code, vector registers and device threads.
//
//   once a batch:        rows = optimizer.prepare()            optional: powers of betas and the like
//     for each row:        step = rows.begin_row(row_state, mean of the squared gradient)
//       for each element:    w' = step(w, g, element_state&...)
//
//   a wrapper:           rows.begin_transform(sum of squares), and rows.optimizer is what it wraps (wrappers.hpp)
//
// A step is called on floats; the library's own steps have vector forms as well (steps.hpp). State of zeros
// is the state of a new row, for every optimizer. What belongs to the table and not to a row, such as the
// number of the step, is a field of the functor: the caller counts it (advance) and saves it with the rows,
// and training goes on from what was saved bit for bit.
#pragma once

#include <concepts>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {

/// What an optimizer makes of itself for one batch: prepare(), or a copy.
template <class O>
constexpr auto prepare(const O& optimizer) {
  if constexpr (requires { optimizer.prepare(); }) {
    return optimizer.prepare();
  } else {
    return optimizer;
  }
}
template <class O>
using prepared_t = decltype(prepare(std::declval<const O&>()));

}  // namespace detail

/// What begins a row: gives the step of its elements.
template <class R>
concept RowFunctor = requires(const R& rows, float* row_state, float mean_square) {
  rows.begin_row(row_state, mean_square);
};

/// What changes gradient or weight before the optimizer inside sees them: gives a transform for a row.
/// needs_norm says whether begin_transform reads its argument, the sum of the squared gradient.
template <class R>
concept GradientTransform = requires(const R& rows, float squares) {
  { R::needs_norm } -> std::convertible_to<bool>;
  rows.optimizer;
  rows.begin_transform(squares);
};

/// row_state and element_state say how many floats of state a row and each of its elements have;
/// needs_mean_square says whether begin_row reads its second argument.
template <class O>
concept RowOptimizer =
    std::copyable<O> && requires {
      { O::row_state } -> std::convertible_to<int>;
      { O::element_state } -> std::convertible_to<int>;
      { O::needs_mean_square } -> std::convertible_to<bool>;
    } && (RowFunctor<detail::prepared_t<O>> || GradientTransform<detail::prepared_t<O>>);

/// Counts one batch: call it after the last row of a batch, before the first of the next.
///
/// @post     what the optimizer keeps of time (step, powers of betas) has gone on by one, inside of wrappers
///           too; an optimizer that keeps none is left as it is
/// @cost     O(1)
/// @threads  one caller; no row may be stepped with this optimizer at the same time
/// @error    none
template <RowOptimizer O>
constexpr void next_step(O& optimizer) {
  if constexpr (requires { optimizer.next_step(); }) {
    optimizer.next_step();
  } else if constexpr (requires { optimizer.optimizer; }) {
    deeprec::next_step(optimizer.optimizer);
  }
}

}}  // namespace deeprec::DEEPREC_ABI
