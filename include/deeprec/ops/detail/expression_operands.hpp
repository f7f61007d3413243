// Which arguments the operations of expressions take, as parts of a node, and what a leaf has to be.
#pragma once

#include <ranges>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/ops/detail/expression_nodes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace expr::detail {

template <class T>
concept Number = (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) || is_storage<T>;

template <class T>
inline constexpr bool gives_numbers = requires { requires T::gives == yields::numbers; };

// Operands of an operation: expressions and plain numbers, one of them an expression.
template <class... T>
concept Operands = ((gives_numbers<T> || Number<T>) && ...) && (gives_numbers<T> || ...);
template <class B, class A>
concept OperandWith = Operands<A, B>;

template <class T>
constexpr const T& part(const T& expression) {
  return expression;
}
template <Number T>
constexpr scalar part(const T& number) {
  return scalar(static_cast<float>(number));
}

template <class Op, class... Parts>
constexpr node<Op, Parts...> node_of(const Parts&... of) {
  return {parts_of(of...)};
}
template <class Op, class... T>
constexpr auto make(const T&... operands) {
  return node_of<Op>(part(operands)...);
}

// These hold where their own assertions do.

// The memory of a leaf outlives the expression: views, and containers that are no temporaries.
template <class Range>
constexpr bool lasts() {
  using plain = std::remove_cvref_t<Range>;
  static_assert(std::is_lvalue_reference_v<Range> || std::ranges::enable_borrowed_range<plain>,
                "deeprec::expr: a leaf of a temporary container would dangle. Fix: keep the container in a "
                "variable, or owned(std::move(values), 1, C) for a matrix that the expression owns.");
  static_assert(std::ranges::contiguous_range<plain>,
                "deeprec::expr: a leaf is no contiguous range. Fix: array_view<const T>(data, size), "
                "matrix_view<const T>(data, rows, columns).");
  return true;
}
template <class Space>
constexpr bool on_host() {
  static_assert(reachable_as<Space, host_space>,
                "deeprec::expr: device memory in an expression. Fix: copy it to the host; expressions have "
                "no device backend.");
  return true;
}
template <class T>
constexpr bool holds_numbers() {
  static_assert(is_storage<T>,
                "deeprec::expr: an element type without vector loads. Fix: float, bf16 or f16; flags are "
                "mask(...).");
  return true;
}
template <class Flag>
const unsigned char* bytes_of_flags(const Flag* data) {
  static_assert(sizeof(Flag) == 1 && std::is_integral_v<Flag>,
                "deeprec::expr::mask: the flags are neither bool nor bytes. Fix: array_view<const bool> or "
                "<const std::uint8_t>.");
  return reinterpret_cast<const unsigned char*>(data);
}

}}}  // namespace deeprec::DEEPREC_ABI::expr::detail
