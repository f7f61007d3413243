// Dropout of the hidden layers of a stack: in training each of their outputs y is y / (1 - rate) or 0.
//
//   mlp_pass mine = tower.make_pass();
//   set_dropout(mine, {.rate = 0.2F, .seed = mix64(step), .first_row = first}).or_throw();
//   tower.forward(pool, mine, x);            rows first, first + 1, ... of a batch
//   tower.backward(pool, mine, gradient);    through what was kept
//
// Outputs are scaled in training, so that inference is the stack as it is. Not here: other expressions
// (expr::dropout).
#pragma once

#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/rounding.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/dense/layers/mlp_pass.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/ops/expression.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {

struct hidden_dropout {
  [[nodiscard]] static status forward(const context<executor_ref>& on, mlp_pass& pass, int layer) {
    const mlp_dropout how = pass.dropout_;
    return pass.with_activation(layer + 1, [&](const auto& y) {
      const rounding::stochastic words{how.seed, static_cast<std::uint64_t>(layer)};
      const auto keep = expr::random_flags(words, how.rate, how.first_row);
      return evaluate(on, expr::assign(y, expr::dropout(expr::in(y), keep, how.rate)));
    });
  }
  // The gradient is 0 already where the output is 0.
  [[nodiscard]] static status backward(const context<executor_ref>& on, mlp_pass& pass, int layer) {
    const matrix_view<float> gradient = pass.delta_in(pass.deltas_, layer + 1);
    return evaluate(on, expr::assign(gradient, expr::in(gradient)*expr::keep_factor(pass.dropout_.rate)));
  }
  static void set(mlp_pass& pass, const mlp_dropout& how) noexcept {
    static constexpr dropout_calls calls{forward, backward};
    pass.dropout_ = how;
    pass.dropping_ = how.rate > 0 ? &calls : nullptr;
  }
};

}  // namespace detail

/// Sets what the next forward pass, and the backward pass behind it, drop. In row i of the pass the output j of
/// hidden layer l, from 0, is kept where rounding::stochastic{seed, l}.word(first_row + i, j) >= rate 2^32:
/// the parts of a batch, each with the place of its first row, drop what a pass over all of it drops.
///
/// @param how  {}: nothing is dropped. A seed of its own for each step and stack
/// @cost    O(1); a pass then costs one read and write of the outputs and of the gradients of hidden layers
///          more, and about ten instructions of a vector for each vector of outputs
/// @threads one thread at a time for each pass; the same bits for any number of workers, on every ISA but for
///          those of the products
/// @error   invalid_value: the rate is outside [0, 1), or first_row is negative; then nothing has changed
/// @source  Srivastava et al. 2014, JMLR 15
[[nodiscard]] inline status set_dropout(mlp_pass& pass, const mlp_dropout& how) noexcept {
  if (!(how.rate >= 0 && how.rate < 1))
    return {errc::invalid_value, "set_dropout: rate must be at least 0 and below 1"};
  if (how.first_row < 0) return {errc::invalid_value, "set_dropout: first_row must not be negative"};
  detail::hidden_dropout::set(pass, how);
  return {};
}

}}  // namespace deeprec::DEEPREC_ABI
