// Adam and its variants.
//
//   m = beta1 * m + (1 - beta1) * g      v = beta2 * v + (1 - beta2) * g^2        t: step number
//
//   adam                 w -= rate * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)
//   rowwise_adam         the same with one v for a row, of the mean of g^2
//   adamw(adam{}, d)     w *= 1 - rate * d first (with_decoupled_decay in wrappers.hpp)
//   adam_async           w -= alpha * m / (sqrt(v) + epsilon), where alpha = rate * sqrt(1 - power2) /
//                        (1 - power1), and each table has its own powers of the betas
//   adam_async_rmsprop   adam_async's other rule for sparse rows: no bias correction
//
// Moments are lazy, as in PyTorch's SparseAdam, FBGEMM and DeepRec: a row that a batch does not use keeps m,
// v and its weights, while dense (eager) Adam would decay the moments and change the weights. Bias correction
// uses the step number, not how often a row was used. Epsilon has two places, which matters for small
// gradients:
//
//   epsilon_place::after_correction    sqrt(v / (1 - beta2^t)) + epsilon     torch.optim.Adam, FBGEMM
//   epsilon_place::before_correction   (sqrt(v) + epsilon) / sqrt(1 - beta2^t)
//                                      torch.optim.SparseAdam, TensorFlow; adam_async always
// Source: Kingma, Ba (ICLR 2015); Loshchilov, Hutter (ICLR 2019); PARTIAL_ROWWISE_ADAM of FBGEMM; AdamAsync
// of DeepRec.
#pragma once

#include <cmath>
#include <cstdint>

#include <deeprec/optim/detail/integer_power.hpp>
#include <deeprec/optim/row_optimizer.hpp>
#include <deeprec/optim/sgd.hpp>
#include <deeprec/optim/steps.hpp>
#include <deeprec/optim/wrappers.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {

/// One minus a float, rounded once.
DEEPREC_HD constexpr float rest_of(float beta) noexcept {
  return static_cast<float>(1.0 - static_cast<double>(beta));
}
/// 1 - beta^step.
constexpr double bias_of(float beta, std::int64_t step) noexcept {
  return 1.0 - integer_power(static_cast<double>(beta), step > 1 ? step : 1);
}

struct adam_rows {
  steps::adam_step step;
  DEEPREC_HD steps::adam_step begin_row(float*, float) const noexcept { return step; }
};

struct rowwise_adam_rows {
  steps::adam_step step;
  DEEPREC_HD steps::momentum_step begin_row(float* squares, float mean_square) const noexcept {
    *squares = step.decay2 * *squares + step.gain2 * mean_square;
    return {step.rate / (scalar::sqrt(*squares) * step.root + step.epsilon), step.decay1, step.gain1, 1, 0};
  }
};

}  // namespace detail

/// What Adam adds epsilon to: the root of v after its bias correction, or before.
enum class epsilon_place : std::uint8_t { after_correction, before_correction };

/// State: m, then v. `adam{.epsilon_at = epsilon_place::before_correction}` is torch.optim.SparseAdam.
struct adam {
  static constexpr int row_state = 0;
  static constexpr int element_state = 2;
  static constexpr bool needs_mean_square = false;
  static constexpr bool steps_on_sums = true;

  float learning_rate = 0.001F;
  float beta1 = 0.9F;
  float beta2 = 0.999F;
  float epsilon = 1e-8F;
  std::int64_t step = 1;  ///< the number of this step: next_step() after each batch
  epsilon_place epsilon_at = epsilon_place::after_correction;

  [[nodiscard]] detail::adam_rows prepare() const noexcept {
    const double rate = static_cast<double>(learning_rate) / detail::bias_of(beta1, step);
    const double of_squares = std::sqrt(detail::bias_of(beta2, step));
    const bool before = epsilon_at == epsilon_place::before_correction;
    return {{static_cast<float>(before ? rate * of_squares : rate), epsilon, beta1, detail::rest_of(beta1),
             beta2, detail::rest_of(beta2), before ? 1.0F : static_cast<float>(1.0 / of_squares), 1, 0}};
  }
  constexpr void next_step() noexcept { ++step; }
};

/// State: v of the row, then m of its elements.
struct rowwise_adam {
  static constexpr int row_state = 1;
  static constexpr int element_state = 1;
  static constexpr bool needs_mean_square = true;
  static constexpr bool steps_on_sums = true;

  float learning_rate = 0.001F;
  float beta1 = 0.9F;
  float beta2 = 0.999F;
  float epsilon = 1e-8F;
  std::int64_t step = 1;  ///< the number of this step: next_step() after each batch
  epsilon_place epsilon_at = epsilon_place::after_correction;

  [[nodiscard]] detail::rowwise_adam_rows prepare() const noexcept {
    return {adam{learning_rate, beta1, beta2, epsilon, step, epsilon_at}.prepare().step};
  }
  constexpr void next_step() noexcept { ++step; }
};

/// Adam whose weights are multiplied by 1 - learning_rate * weight_decay at every step, before the update.
///
/// @pre      as with_decoupled_decay
/// @cost     O(1)
/// @threads  reentrant
/// @error    none
constexpr with_decoupled_decay<adam> adamw(const adam& base, float weight_decay) noexcept {
  return {base, weight_decay};
}

/// DeepRec's AdamAsync. Each table has its own powers of the betas, so tables need no common step number and
/// late workers do no harm; the powers are fields, which the caller saves with the rows. State: m, then v.
struct adam_async {
  static constexpr int row_state = 0;
  static constexpr int element_state = 2;
  static constexpr bool needs_mean_square = false;
  static constexpr bool steps_on_sums = true;

  float learning_rate = 0.001F;
  float beta1 = 0.9F;
  float beta2 = 0.999F;
  float epsilon = 1e-8F;
  momentum_kind kind = momentum_kind::classical;  ///< nesterov: (1 - beta1) * g + beta1 * m in place of m
  float beta1_power = beta1;                      ///< beta1^t: next_step() after each batch
  float beta2_power = beta2;                      ///< beta2^t

  [[nodiscard]] detail::adam_rows prepare() const noexcept {
    const bool ahead = kind == momentum_kind::nesterov;
    const double alpha = static_cast<double>(learning_rate) *
                         std::sqrt(1.0 - static_cast<double>(beta2_power)) /
                         (1.0 - static_cast<double>(beta1_power));
    return {{static_cast<float>(alpha), epsilon, beta1, detail::rest_of(beta1), beta2, detail::rest_of(beta2),
             1, ahead ? beta1 : 1, ahead ? detail::rest_of(beta1) : 0}};
  }
  constexpr void next_step() noexcept {
    beta1_power *= beta1;
    beta2_power *= beta2;
  }
};

/// AdamAsync's rule for sparse rows with apply_sparse_rmsprop:
/// v as above, m = beta1 * m + rate * g / sqrt(v + epsilon), w -= m.
/// beta1 = 0, the default, is RMSProp without momentum, as in DeepRec's manual; DeepRec's kernel multiplies m
/// by AdamAsync's beta1, which .beta1 = 0.9F reproduces. State: m, then v, as in adam_async.
struct adam_async_rmsprop {
  static constexpr int row_state = 0;
  static constexpr int element_state = 2;
  static constexpr bool needs_mean_square = false;
  static constexpr bool steps_on_sums = true;

  float learning_rate = 0.001F;
  float beta1 = 0;
  float beta2 = 0.999F;
  float epsilon = 1e-8F;

  DEEPREC_HD steps::rmsprop_momentum_step begin_row(float*, float) const noexcept {
    return {learning_rate, epsilon, beta1, beta2, detail::rest_of(beta2)};
  }
};

}}  // namespace deeprec::DEEPREC_ABI
