// The optimizer concept: a functor over one row of weights. The same functor serves embedding rows and dense
// layers (a layer's row is an output neuron), scalar code, SIMD vectors and device threads.
//
//   once a batch:        rows = optimizer.prepare()            optional: powers of betas and the like
//     for each row:        step = rows.begin_row(row_state, mean of the squared gradient)
//       for each element:    w' = step(w, g, element_state&...)
//
//   a wrapper:           rows.begin_transform(sum of squares), then rows.optimizer (wrappers.hpp)
//
// A step is called on floats; the library's own steps have vector forms as well (steps.hpp). The state of a
// new row is zeros, for every optimizer. State of a whole table, such as the step number, is a field of the
// functor: the caller advances it (next_step) and saves it with the rows, and training resumes from what was
// saved bit for bit.
#pragma once

#include <concepts>
#include <string_view>
#include <type_traits>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/sizes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Whether one step with the sum of the gradients of a batch's parts is the step of the batch. True where the
/// optimizer says so: `static constexpr bool steps_on_sums = true;`. False for one that needs the gradient of
/// each sample, or gradients at several points.
template <class O>
inline constexpr bool steps_on_sums = requires { requires static_cast<bool>(O::steps_on_sums); };

/// Whose state an optimizer steps: `static constexpr std::string_view name = "adam";`, a whole literal. State
/// that was made for one name is refused for another; a wrapper has the name of the optimizer that it wraps,
/// whose state it is. Empty where the optimizer gives no name: only the size of its state tells such
/// optimizers apart.
template <class O>
inline constexpr std::string_view optimizer_name = [] {
  if constexpr (requires { std::string_view(O::name); }) {
    return std::string_view(O::name);
  } else {
    return std::string_view();
  }
}();

namespace detail {

/// The form of an optimizer for one batch: prepare(), or a copy.
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

/// begin_row() returns the step functor for the elements of a row.
template <class R>
concept RowFunctor =
    requires(const R& rows, float* row_state, float mean_square) { rows.begin_row(row_state, mean_square); };

/// A wrapper: begin_transform() returns what changes a row's gradient or weight before the wrapped optimizer.
/// needs_norm: whether begin_transform reads its argument, the sum of the squared gradient.
template <class R>
concept GradientTransform = requires(const R& rows, float squares) {
  { R::needs_norm } -> std::convertible_to<bool>;
  rows.optimizer;
  rows.begin_transform(squares);
};

/// row_state and element_state: floats of state per row and per element; needs_mean_square: whether begin_row
/// reads its second argument.
template <class O>
concept RowOptimizer = std::copyable<O> && requires {
  { O::row_state } -> std::convertible_to<int>;
  { O::element_state } -> std::convertible_to<int>;
  { O::needs_mean_square } -> std::convertible_to<bool>;
} && (RowFunctor<detail::prepared_t<O>> || GradientTransform<detail::prepared_t<O>>);

namespace detail {

template <class R>
constexpr bool reads_norm() {
  if constexpr (GradientTransform<R>) {
    return R::needs_norm || reads_norm<std::remove_cvref_t<decltype(std::declval<const R&>().optimizer)>>();
  } else {
    return false;
  }
}

}  // namespace detail

/// Whether the step of an element depends on the others of its row, so that columns can't be stepped apart.
template <RowOptimizer O>
inline constexpr bool reads_whole_row =
    static_cast<bool>(O::needs_mean_square) || detail::reads_norm<detail::prepared_t<O>>();

/// Floats of state that a row of `width` elements needs.
///
/// @post     more than memory can hold where index_t can't count them
/// @cost     O(1)
/// @threads  reentrant
/// @error    none
/// @example  f32_rows(64, {.state_floats = state_floats_of<adagrad>(64)})
template <RowOptimizer O>
constexpr index_t state_floats_of(index_t width) noexcept {
  return capped_sum(O::row_state, capped_product(O::element_state, width));
}

/// What makes a table with room for the state of an optimizer:
/// dense_table<f32_rows>(rows, width, state_of<adagrad>).
template <RowOptimizer O>
struct state_of_t {};
template <RowOptimizer O>
inline constexpr state_of_t<O> state_of{};

/// Advances an optimizer by one batch: call it after the last row of a batch, before the first of the next.
///
/// @post     the optimizer's time (step number, powers of betas) is one batch later, inside wrappers too; an
///           optimizer without time is unchanged
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
