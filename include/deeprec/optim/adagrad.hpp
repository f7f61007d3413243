// Adagrad, with a sum of squares for each row (the choice for embeddings) or for each element.
//
//   rowwise_adagrad   s += mean_j g[j]^2     w[j] -= rate * g[j] / (sqrt(s) + epsilon)
//   adagrad           s[j] += g[j]^2         w[j] -= rate * g[j] / (sqrt(s[j]) + epsilon)
//
// Source: Duchi, Hazan, Singer (JMLR 2011); the rowwise form as in FBGEMM and DLRM.
#pragma once

#include <deeprec/optim/row_optimizer.hpp>
#include <deeprec/optim/steps.hpp>

namespace deeprec::inline DEEPREC_ABI {

struct rowwise_adagrad {
  static constexpr int row_state = 1;
  static constexpr int element_state = 0;
  static constexpr bool needs_mean_square = true;

  float learning_rate = 0.01F;
  float epsilon = 1e-8F;

  DEEPREC_HD scaled_step begin_row(float* squares, float mean_square) const noexcept {
    *squares += mean_square;
    return {learning_rate / (scalar::sqrt(*squares) + epsilon)};
  }
};

struct adagrad {
  static constexpr int row_state = 0;
  static constexpr int element_state = 1;
  static constexpr bool needs_mean_square = false;

  float learning_rate = 0.01F;
  float epsilon = 1e-8F;

  DEEPREC_HD adagrad_step begin_row(float*, float) const noexcept { return {learning_rate, epsilon}; }
};

}  // namespace deeprec::inline DEEPREC_ABI
