// FTRL-proximal, by TensorFlow's rule (FtrlV2).
//
//   n' = n + g^2            p = -learning_rate_power
//   z += g + 2 * l2_shrinkage * w - (n'^p - n^p) / rate * w
//   w  = |z| <= l1 ? 0 : (sign(z) * l1 - z) / (n'^p / rate + 2 * l2)
//
// A weight is a function of z and n, so l1 makes weights exactly 0. With l1 = l2 = l2_shrinkage = 0 and n
// beginning at 0 it is Adagrad without epsilon. McMahan's beta is l2 += beta / (2 * rate). A power other than
// -0.5 calls powf for each element.
// Source: McMahan et al. (KDD 2013); tf.train.FtrlOptimizer.
#pragma once

#include <string_view>

#include <deeprec/optim/row_optimizer.hpp>
#include <deeprec/optim/steps.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// State: n, then z. An element whose n is still 0 and whose gradient is 0 becomes 0, whatever it was.
struct ftrl {
  static constexpr std::string_view name = "ftrl";
  static constexpr int row_state = 0;
  static constexpr int element_state = 2;
  static constexpr bool needs_mean_square = false;
  static constexpr bool steps_on_sums = true;

  float learning_rate = 0.05F;        ///< above 0
  float learning_rate_power = -0.5F;  ///< 0 or less
  float l1 = 0;
  float l2 = 0;
  float l2_shrinkage = 0;
  float initial_squares = 0;  ///< initial n; TensorFlow: 0.1, with weights of 0

  DEEPREC_HD steps::ftrl_step begin_row(float*, float) const noexcept {
    return {1.0F / learning_rate, -learning_rate_power, l1, 2.0F * l2, 2.0F * l2_shrinkage, initial_squares};
  }
};

}}  // namespace deeprec::DEEPREC_ABI
