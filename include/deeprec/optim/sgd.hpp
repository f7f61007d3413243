// Stochastic gradient descent: w -= rate * g. No state.
#pragma once

#include <deeprec/optim/row_optimizer.hpp>
#include <deeprec/optim/steps.hpp>

namespace deeprec::inline DEEPREC_ABI {

struct sgd {
  static constexpr int row_state = 0;
  static constexpr int element_state = 0;
  static constexpr bool needs_mean_square = false;

  float learning_rate = 0.01F;

  DEEPREC_HD scaled_step begin_row(float*, float) const noexcept { return {learning_rate}; }
};

}  // namespace deeprec::inline DEEPREC_ABI
