// Adagrad, with a sum of squares for each row (the choice for embeddings) or for each element.
//
//   rowwise_adagrad   s += mean_j g[j]^2     w[j] -= rate * g[j] / (sqrt(s) + epsilon)
//   adagrad           s[j] += g[j]^2         w[j] -= rate * g[j] / (sqrt(s[j]) + epsilon)
//
// Source: Duchi, Hazan, Singer (JMLR 2011); the rowwise form as in FBGEMM and DLRM.
#pragma once

#include <cmath>

#include <deeprec/optim/row_optimizer.hpp>

namespace deeprec::inline DEEPREC_ABI {

struct rowwise_adagrad {
  static constexpr int row_state = 1;
  static constexpr int element_state = 0;
  static constexpr bool needs_mean_square = true;

  float learning_rate = 0.01F;
  float epsilon = 1e-8F;

  struct step {
    float rate;
    template <class V>
    DEEPREC_HD DEEPREC_INLINE V operator()(V weight, V gradient) const {
      return weight - V(rate) * gradient;
    }
  };
  DEEPREC_HD step begin_row(float* sum, float mean_square) const noexcept {
    *sum += mean_square;
    return {learning_rate / (std::sqrt(*sum) + epsilon)};
  }
};

struct adagrad {
  static constexpr int row_state = 0;
  static constexpr int element_state = 1;
  static constexpr bool needs_mean_square = false;

  float learning_rate = 0.01F;
  float epsilon = 1e-8F;

  struct step {
    float rate;
    float epsilon;
    template <class V>
    DEEPREC_HD DEEPREC_INLINE V operator()(V weight, V gradient, V& sum) const {
      using std::sqrt;
      sum = sum + gradient * gradient;
      return weight - V(rate) * gradient / (sqrt(sum) + V(epsilon));
    }
  };
  DEEPREC_HD step begin_row(float*, float) const noexcept { return {learning_rate, epsilon}; }
};

}  // namespace deeprec::inline DEEPREC_ABI
