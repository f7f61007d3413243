// The functions of element-wise ops: one list, of the ops one by one (element_ops.hpp) and of an expression
// that stands in the place of several (expression_op.hpp).
#pragma once

#include <cstddef>
#include <cstdint>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// A function of elements: of two of them; of one and a number; of one.
enum class element_function : std::uint8_t {
  add,
  subtract,
  multiply,
  divide,
  scale,          ///< x by
  shift,          ///< x + by
  subtract_from,  ///< by - x
  copy,
  relu,
  sigmoid,
  gelu_tanh,
  tanh,
  exp,
  sqrt,
  abs,
  square,
};

/// Its name.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
[[nodiscard]] constexpr const char* to_string(element_function f) noexcept {
  constexpr const char* names[] = {"add",           "subtract", "multiply", "divide",  "scale",     "shift",
                                   "subtract_from", "copy",     "relu",     "sigmoid", "gelu_tanh", "tanh",
                                   "exp",           "sqrt",     "abs",      "square"};
  return names[static_cast<std::size_t>(f)];
}
/// Whether it takes two elements.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
[[nodiscard]] constexpr bool is_binary(element_function f) noexcept { return f <= element_function::divide; }
/// Whether it takes a number beside the element.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
[[nodiscard]] constexpr bool takes_number(element_function f) noexcept {
  return !is_binary(f) && f <= element_function::subtract_from;
}
/// Whether it is one of activate_op's.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
[[nodiscard]] constexpr bool is_activation(element_function f) noexcept {
  return f >= element_function::copy && f <= element_function::gelu_tanh;
}

}}  // namespace deeprec::DEEPREC_ABI
