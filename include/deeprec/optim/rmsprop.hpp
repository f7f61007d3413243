// RMSprop: the gradient divided by the root of a running mean of its squares.
//
//   rmsprop            s = decay * s + (1 - decay) * g^2     w -= rate * g / (sqrt(s) + epsilon)
//   centered_rmsprop   m = decay * m + (1 - decay) * g       w -= rate * g / (sqrt(s - m^2) + epsilon)
//
// As in PyTorch, but a variance that rounding made negative is 0; TensorFlow adds epsilon under the root.
// Not here: momentum (see adam_async_rmsprop).
// Source: Tieleman, Hinton (2012); the centered form: Graves (2013).
#pragma once

#include <string_view>

#include <deeprec/optim/adam.hpp>
#include <deeprec/optim/row_optimizer.hpp>
#include <deeprec/optim/steps.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

struct rmsprop {
  static constexpr std::string_view name = "rmsprop";
  static constexpr int row_state = 0;
  static constexpr int element_state = 1;
  static constexpr bool needs_mean_square = false;
  static constexpr bool steps_on_sums = true;

  float learning_rate = 0.01F;
  float decay = 0.99F;
  float epsilon = 1e-8F;

  DEEPREC_HD steps::rmsprop_step begin_row(float*, float) const noexcept {
    return {learning_rate, epsilon, decay, detail::rest_of(decay)};
  }
};

/// State: s, then m.
struct centered_rmsprop {
  static constexpr std::string_view name = "centered_rmsprop";
  static constexpr int row_state = 0;
  static constexpr int element_state = 2;
  static constexpr bool needs_mean_square = false;
  static constexpr bool steps_on_sums = true;

  float learning_rate = 0.01F;
  float decay = 0.99F;
  float epsilon = 1e-8F;

  DEEPREC_HD steps::centered_rmsprop_step begin_row(float*, float) const noexcept {
    return {learning_rate, epsilon, decay, detail::rest_of(decay)};
  }
};

}}  // namespace deeprec::DEEPREC_ABI
