// Binary cross entropy of logits: the loss of click models, without overflow for any logit.
//
//   p = 1 / (1 + exp(-z))     loss = mean of  |z| d + log(1 + exp(-|z|))      d = y where z < 0, else 1 - y
//                             d loss / d z  = (p - y) / B
//
// With a weight w for each sample: the mean of w times the loss, d loss / d z = w (p - y) / B. The divisor
// stays B, the number of rows, so the gradients of parts of a batch add up as they do without weights.
#pragma once

#include <algorithm>
#include <cmath>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Probability of a logit, in double.
///
/// @numerics never overflows; exact in the limits
/// @cost     one exp
/// @threads  reentrant
/// @error    none
DEEPREC_INLINE double sigmoid(double logit) noexcept {
  const double e = std::exp(-std::abs(logit));
  return logit < 0 ? e / (1 + e) : 1 / (1 + e);
}

namespace detail {

/// Cross entropy of one logit against a label in [0, 1], in double.
///
/// @numerics never overflows for a finite logit; an infinite one gives 0 where the label is wholly on its
///           side, else infinity
/// @cost     one exp, one log1p
/// @threads  reentrant
/// @error    none
DEEPREC_INLINE double logistic_loss_of(double logit, double label) noexcept {
  const double size = std::abs(logit), away = logit < 0 ? label : 1 - label;
  return (away == 0 ? 0 : size * away) + std::log1p(std::exp(-size));
}

/// Rows are cut into 64 pieces at most, whose bounds depend on the number of rows only.
inline constexpr index_t loss_pieces = 64;
constexpr index_t loss_piece(index_t rows) noexcept {
  return std::max<index_t>(256, (rows + loss_pieces - 1) / loss_pieces);
}

inline namespace DEEPREC_UNIT {

/// `sum` plus the losses of rows [begin, end), in order; weights without rows: 1 each.
DEEPREC_APART inline double add_losses(double sum, matrix_view<const float> logits,
                                       matrix_view<const float> labels, matrix_view<const float> weights,
                                       index_t begin, index_t end) noexcept {
  for (index_t i = begin; i < end; ++i) {
    const double weight = weights.extent(0) > 0 ? static_cast<double>(*weights.row(i)) : 1.0;
    if (weight == 0) continue;  // whatever its logit is
    sum += weight *
           detail::logistic_loss_of(static_cast<double>(*logits.row(i)), static_cast<double>(*labels.row(i)));
  }
  return sum;
}

DEEPREC_APART inline void loss_gradients(matrix_view<const float> logits, matrix_view<const float> labels,
                                         matrix_view<const float> weights, double scale,
                                         matrix_view<float> gradient, index_t begin, index_t end) noexcept {
  for (index_t i = begin; i < end; ++i) {
    const double weight = weights.extent(0) > 0 ? static_cast<double>(*weights.row(i)) : 1.0;
    const double p = sigmoid(static_cast<double>(*logits.row(i)));
    *gradient.row(i) =
        weight == 0 ? 0.0F : static_cast<float>(weight * (p - static_cast<double>(*labels.row(i))) * scale);
  }
}

}  // namespace DEEPREC_UNIT

template <class E>
DEEPREC_PER_UNIT status logistic_loss_forward_in(const context<E>& ctx, matrix_view<const float> logits,
                                                 matrix_view<const float> labels,
                                                 matrix_view<const float> weights, double& loss) {
  const index_t batch = logits.extent(0);
  if (!well_formed(logits) || logits.extent(1) != 1) {
    return {errc::shape_mismatch, "logistic_loss_forward: logits must be (B,1)"};
  }
  if (!well_formed(labels) || !has_shape(labels, batch, 1)) {
    return {errc::shape_mismatch, "logistic_loss_forward: labels must be (B,1)"};
  }
  const index_t piece = loss_piece(batch);
  double sums[loss_pieces] = {};
  run_bulk(ctx, {batch, piece, 20.0 * static_cast<double>(batch)}, [&](index_t begin, index_t end, int) {
    for (index_t i = begin; i < end; i += piece) {  // an executor may hand out several pieces at once
      double& sum = sums[i / piece];
      sum = detail::add_losses(sum, logits, labels, weights, i, end - i > piece ? i + piece : end);
    }
  });
  double sum = 0;
  for (const double part : sums) sum += part;
  loss = sum / static_cast<double>(batch);
  return {};
}

template <class E>
DEEPREC_PER_UNIT status logistic_loss_backward_in(const context<E>& ctx, matrix_view<const float> logits,
                                                  matrix_view<const float> labels,
                                                  matrix_view<const float> weights,
                                                  matrix_view<float> gradient) {
  const index_t batch = logits.extent(0);
  if (!well_formed(logits) || logits.extent(1) != 1) {
    return {errc::shape_mismatch, "logistic_loss_backward: logits must be (B,1)"};
  }
  if (!well_formed(labels) || !has_shape(labels, batch, 1)) {
    return {errc::shape_mismatch, "logistic_loss_backward: labels must be (B,1)"};
  }
  if (!well_formed(gradient) || !has_shape(gradient, batch, 1)) {
    return {errc::shape_mismatch, "logistic_loss_backward: gradient must be (B,1)"};
  }
  const double scale = 1 / static_cast<double>(std::max<index_t>(batch, 1));
  run_bulk(ctx, {batch, loss_piece(batch), 10.0 * static_cast<double>(batch)},
           [&](index_t begin, index_t end, int) {
             detail::loss_gradients(logits, labels, weights, scale, gradient, begin, end);
           });
  return {};
}

}  // namespace detail

/// Mean binary cross entropy of a batch.
///
/// @shape    logits (B,1) · labels (B,1), in [0, 1]
/// @dtype    float; the loss double
/// @space    host
/// @post     loss is NaN where B = 0
/// @numerics double, at most 64 partial sums over consecutive rows, added in order. An infinite logit adds 0
///           where its label is wholly on its side, else infinity; NaN makes the loss NaN
/// @cost     O(B), two transcendental functions a row
/// @threads  thread-safe; the same bits for any number of workers
/// @error    shape_mismatch
template <class Context>
DEEPREC_PER_UNIT status logistic_loss_forward(Context&& context_or_executor, matrix_view<const float> logits,
                                              matrix_view<const float> labels, double& loss) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "logistic_loss_forward");
  if (!call) return call.stopped();
  return detail::logistic_loss_forward_in(ctx, logits, labels, {}, loss);
}

/// Mean binary cross entropy of a batch whose samples have weights: the sum of weight times loss, over B.
/// Weights of 1 give the bits of the loss without weights; a weight of 0 leaves out a row, whatever its
/// logit is, but not from B.
///
/// @shape    logits (B,1) · labels (B,1), in [0, 1] · weights (B,1), finite
/// @dtype    float; the loss double
/// @space    host
/// @post     loss is NaN where B = 0
/// @numerics as without weights
/// @cost     O(B), two transcendental functions a row
/// @threads  thread-safe; the same bits for any number of workers
/// @error    shape_mismatch
/// @example  logistic_loss_forward(pool, logits, labels, weights, loss).or_throw();
template <class Context>
DEEPREC_PER_UNIT status logistic_loss_forward(Context&& context_or_executor, matrix_view<const float> logits,
                                              matrix_view<const float> labels,
                                              matrix_view<const float> weights, double& loss) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "logistic_loss_forward");
  if (!call) return call.stopped();
  if (!detail::well_formed(weights) || !detail::has_shape(weights, logits.extent(0), 1)) {
    return {errc::shape_mismatch, "logistic_loss_forward: weights must be (B,1)"};
  }
  return detail::logistic_loss_forward_in(ctx, logits, labels, weights, loss);
}

/// The gradient of logistic_loss_forward with respect to the logits: (p - y) / B.
///
/// @shape    logits (B,1) · labels (B,1), in [0, 1] · gradient (B,1), which may be the logits
/// @dtype    float
/// @space    host
/// @numerics double, rounded once
/// @cost     O(B), one exp a row
/// @threads  thread-safe on distinct gradients
/// @error    shape_mismatch
template <class Context>
DEEPREC_PER_UNIT status logistic_loss_backward(Context&& context_or_executor, matrix_view<const float> logits,
                                               matrix_view<const float> labels, matrix_view<float> gradient) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "logistic_loss_backward");
  if (!call) return call.stopped();
  return detail::logistic_loss_backward_in(ctx, logits, labels, {}, gradient);
}

/// The gradient of the weighted logistic_loss_forward with respect to the logits: w (p - y) / B, and 0 for a
/// weight of 0.
///
/// @shape    logits (B,1) · labels (B,1), in [0, 1] · weights (B,1), finite · gradient (B,1), which may be
///           the logits
/// @dtype    float
/// @space    host
/// @numerics double, rounded once
/// @cost     O(B), one exp a row
/// @threads  thread-safe on distinct gradients
/// @error    shape_mismatch
template <class Context>
DEEPREC_PER_UNIT status logistic_loss_backward(Context&& context_or_executor, matrix_view<const float> logits,
                                               matrix_view<const float> labels,
                                               matrix_view<const float> weights,
                                               matrix_view<float> gradient) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "logistic_loss_backward");
  if (!call) return call.stopped();
  if (!detail::well_formed(weights) || !detail::has_shape(weights, logits.extent(0), 1)) {
    return {errc::shape_mismatch, "logistic_loss_backward: weights must be (B,1)"};
  }
  return detail::logistic_loss_backward_in(ctx, logits, labels, weights, gradient);
}

}}  // namespace deeprec::DEEPREC_ABI
