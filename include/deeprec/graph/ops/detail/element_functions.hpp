// How the functions of elements are evaluated: by ops one by one, and by an expression of them.
#pragma once

#include <cstddef>
#include <type_traits>

#include <deeprec/core/array_view.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/graph/ops/element_function.hpp>
#include <deeprec/ops/expression.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

template <element_function F>
using element_constant = std::integral_constant<element_function, F>;
struct no_operand {};

constexpr const char* row_kind(element_function f) noexcept {
  constexpr const char* names[] = {"add_row", "subtract_row", "multiply_row", "divide_row"};
  return names[static_cast<std::size_t>(f)];
}

constexpr const char* pair_shapes(element_function f) noexcept {
  constexpr const char* texts[] = {
      "add: both matrices must have one shape", "subtract: both matrices must have one shape",
      "multiply: both matrices must have one shape", "divide: both matrices must have one shape"};
  return texts[static_cast<std::size_t>(f)];
}
constexpr const char* row_shapes(element_function f) noexcept {
  constexpr const char* texts[] = {"add_row: the row must be (1,D), with the columns of x",
                                   "subtract_row: the row must be (1,D), with the columns of x",
                                   "multiply_row: the row must be (1,D), with the columns of x",
                                   "divide_row: the row must be (1,D), with the columns of x"};
  return texts[static_cast<std::size_t>(f)];
}

/// out = F(a, b), or F(a, by) where b is no_operand; b: a matrix, or an array of a number for each column.
template <element_function F, class Context, class B>
status apply_element(const Context& ctx, float by, const matrix_view<const float>& a, const B& b,
                     const matrix_view<float>& out) {
  const auto x = expr::in(a);
  const auto put = [&](const auto& value) { return evaluate(ctx, expr::assign(out, value)); };
  if constexpr (is_binary(F)) {
    const auto with = [&](const auto& y) {
      if constexpr (F == element_function::add) {
        return put(x + y);
      } else if constexpr (F == element_function::subtract) {
        return put(x - y);
      } else if constexpr (F == element_function::multiply) {
        return put(x * y);
      } else {
        return put(x / y);
      }
    };
    if constexpr (std::is_same_v<B, array_view<const float>>) {
      return with(expr::row(b));
    } else {
      return with(expr::in(b));
    }
  } else if constexpr (F == element_function::scale) {
    return put(x * by);
  } else if constexpr (F == element_function::shift) {
    return put(x + by);
  } else if constexpr (F == element_function::subtract_from) {
    return put(by - x);
  } else if constexpr (F == element_function::copy) {
    return put(x);
  } else if constexpr (F == element_function::relu) {
    return put(expr::relu(x));
  } else if constexpr (F == element_function::sigmoid) {
    return put(expr::sigmoid(x));
  } else if constexpr (F == element_function::gelu_tanh) {
    return put(expr::gelu(x));
  } else if constexpr (F == element_function::tanh) {
    return put(expr::tanh(x));
  } else if constexpr (F == element_function::exp) {
    return put(expr::exp(x));
  } else if constexpr (F == element_function::sqrt) {
    return put(expr::sqrt(x));
  } else if constexpr (F == element_function::abs) {
    return put(expr::abs(x));
  } else {
    static_assert(F == element_function::square);
    return put(expr::square(x));
  }
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
