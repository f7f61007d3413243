// Patterns of element-wise ops: chains and trees of them become one expression, those of Dice one dice op.
//
//   a ─┐
//   b ─> add ─> sigmoid ─┐                  a ─┐
//          └─────────────> multiply ─> y    b ─> expression ─> y        one pass instead of three
#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/dense/gemm/gemm_desc.hpp>
#include <deeprec/graph/ops/detail/expression_patterns.hpp>
#include <deeprec/graph/ops/element_function.hpp>
#include <deeprec/graph/ops/element_ops.hpp>
#include <deeprec/graph/ops/expression_op.hpp>
#include <deeprec/graph/ops/matrix_value.hpp>
#include <deeprec/graph/step/fusion/step_pattern.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Each element-wise op -> an expression of one step; an expression whose value an expression takes, once or
/// several times, and nobody else -> one expression of both. An activation of GELU with erf stays as it is.
///
/// To be passed behind patterns of the ops one by one (linear_fusions, dice_fusions), which find none
/// afterwards.
///
/// @numerics the bits of the ops one by one
/// @cost     O(1)
/// @threads  reentrant
/// @error    throws std::bad_alloc
template <class Row = matrix_view<float>>
[[nodiscard]] std::vector<step_pattern> element_fusions() {
  using enum element_function;
  std::vector<step_pattern> all;
  detail::each_function<add, subtract, multiply, divide>([&](auto f) {
    all.push_back(detail::pair_pattern<decltype(f)::value, Row>());
    all.push_back(detail::row_pattern<decltype(f)::value, Row>());
  });
  detail::each_function<scale, shift, subtract_from, tanh, exp, sqrt, abs, square>(
      [&](auto f) { all.push_back(detail::map_pattern<decltype(f)::value, Row>()); });
  all.push_back(detail::activation_pattern<Row>());
  all.push_back(detail::join_pattern<Row>());
  return all;
}

/// The ops of Dice with given statistics -> dice, in the forms p x + alpha (1 - p) x, which multiplies 1 - p
/// by alpha first, and p x + (1 - p) (alpha x); with p = sigmoid(normalize(x, mean, variance)).
///
/// @numerics of the first form the bits of the ops one by one; of the second one the terms
///           are multiplied in another order: that term differs by at most 2^-22 of itself
/// @cost     O(1)
/// @threads  reentrant
/// @error    throws std::bad_alloc
template <class Row = matrix_view<float>>
[[nodiscard]] std::vector<step_pattern> dice_fusions() {
  std::vector<step_pattern> all;
  for (const bool alpha_first : {true, false}) {
    step_pattern p(alpha_first ? "Dice, alpha (1 - p) x" : "Dice, (1 - p) (alpha x)");
    const auto x = p.any<matrix_value>();
    const auto mean = p.reads<Row>(), variance = p.reads<Row>(), alpha = p.reads<Row>();
    const auto u = p.op<normalize_op<Row>>(x, mean, variance);
    const auto part = p.op<activate_op>(u);
    const auto rest = p.op<subtract_from_op>(part);
    const auto first = p.op<multiply_op>(part, x);
    const auto becomes = [&](const auto& second) {
      p.becomes(
          p.op<deeprec::add_op>(first, second),
          [=](const pattern_match& m) -> std::optional<dice_op<Row>> {
            if (m[part].activation != gemm_activation::sigmoid || m[rest].by != 1) return std::nullopt;
            return dice_op<Row>{m[u].epsilon};
          },
          x, mean, variance, alpha);
    };
    if (alpha_first) {
      becomes(p.op<multiply_op>(p.op<multiply_row_op<Row>>(rest, alpha), x));
    } else {
      becomes(p.op<multiply_op>(rest, p.op<multiply_row_op<Row>>(x, alpha)));
    }
    all.push_back(std::move(p));
  }
  return all;
}

}}  // namespace deeprec::DEEPREC_ABI
