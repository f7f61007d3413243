// Stochastic gradient descent: w -= rate * g. No state.
#pragma once

#include <deeprec/optim/row_optimizer.hpp>

namespace deeprec::inline DEEPREC_ABI {

struct sgd {
  static constexpr int row_state = 0;
  static constexpr int element_state = 0;
  static constexpr bool needs_mean_square = false;

  float learning_rate = 0.01F;

  struct step {
    float rate;
    template <class V>
    DEEPREC_HD DEEPREC_INLINE V operator()(V weight, V gradient) const {
      return weight - V(rate) * gradient;
    }
  };
  DEEPREC_HD step begin_row(float*, float) const noexcept { return {learning_rate}; }
};

}  // namespace deeprec::inline DEEPREC_ABI
