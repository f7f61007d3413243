// Stochastic gradient descent, plain and with momentum.
//
//   sgd        w -= rate * g                                                      no state
//   momentum   v = decay * v + g        w -= rate * v                             v: a float for each element
//              nesterov:                w -= rate * (g + decay * v)
//
// As in PyTorch (without dampening) and TensorFlow. A row that a batch does not use keeps v and its weights.
#pragma once

#include <cstdint>
#include <string_view>

#include <deeprec/optim/row_optimizer.hpp>
#include <deeprec/optim/steps.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

struct sgd {
  static constexpr std::string_view name = "sgd";
  static constexpr int row_state = 0;
  static constexpr int element_state = 0;
  static constexpr bool needs_mean_square = false;
  static constexpr bool steps_on_sums = true;

  float learning_rate = 0.01F;

  DEEPREC_HD steps::scaled_step begin_row(float*, float) const noexcept { return {learning_rate}; }
};

/// Where the gradient is taken: at the weight, or (nesterov) at the point that the velocity leads to.
enum class momentum_kind : std::uint8_t { classical, nesterov };

struct momentum {
  static constexpr std::string_view name = "momentum";
  static constexpr int row_state = 0;
  static constexpr int element_state = 1;
  static constexpr bool needs_mean_square = false;
  static constexpr bool steps_on_sums = true;

  float learning_rate = 0.01F;
  float decay = 0.9F;
  momentum_kind kind = momentum_kind::classical;

  DEEPREC_HD steps::momentum_step begin_row(float*, float) const noexcept {
    const bool ahead = kind == momentum_kind::nesterov;
    return {learning_rate, decay, 1, ahead ? decay : 1, ahead ? 1.0F : 0.0F};
  }
};

}}  // namespace deeprec::DEEPREC_ABI
