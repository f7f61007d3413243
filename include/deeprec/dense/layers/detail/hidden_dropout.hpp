// What set_dropout installs in a pass: the evaluation of flags by place.
#pragma once

#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/rounding.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/dense/layers/mlp_pass.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/ops/expression.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

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

}}}  // namespace deeprec::DEEPREC_ABI::detail
