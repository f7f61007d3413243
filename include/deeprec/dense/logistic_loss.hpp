// Binary cross entropy of logits: the loss of click models, without overflow for any finite logit.
//
//   p = 1 / (1 + exp(-z))     loss = mean of  max(z, 0) - z y + log(1 + exp(-|z|))
//                             d loss / d z  = (p - y) / B
#pragma once

#include <algorithm>
#include <cmath>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/core/unit.hpp>
#include <deeprec/core/verb.hpp>

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
/// @numerics never overflows for a finite logit
/// @cost     one exp, one log1p
/// @threads  reentrant
/// @error    none
DEEPREC_INLINE double logistic_loss_of(double logit, double label) noexcept {
  return (std::max)(logit, 0.0) - logit * label + std::log1p(std::exp(-std::abs(logit)));
}

/// Rows are cut into 64 pieces at most, whose bounds depend on the number of rows only.
inline constexpr index_t loss_pieces = 64;
constexpr index_t loss_piece(index_t rows) noexcept {
  return std::max<index_t>(256, (rows + loss_pieces - 1) / loss_pieces);
}

inline namespace DEEPREC_UNIT {

/// `sum` plus the losses of rows [begin, end), in order.
DEEPREC_APART inline double add_losses(double sum, matrix_view<const float> logits,
                                       matrix_view<const float> labels, index_t begin, index_t end) noexcept {
  for (index_t i = begin; i < end; ++i) {
    sum += detail::logistic_loss_of(static_cast<double>(*logits.row(i)), static_cast<double>(*labels.row(i)));
  }
  return sum;
}

DEEPREC_APART inline void loss_gradients(matrix_view<const float> logits, matrix_view<const float> labels,
                                         double scale, matrix_view<float> gradient, index_t begin,
                                         index_t end) noexcept {
  for (index_t i = begin; i < end; ++i) {
    const double p = sigmoid(static_cast<double>(*logits.row(i)));
    *gradient.row(i) = static_cast<float>((p - static_cast<double>(*labels.row(i))) * scale);
  }
}

}  // namespace DEEPREC_UNIT

}  // namespace detail

/// Mean binary cross entropy of a batch.
///
/// @shape    logits (B,1) · labels (B,1), in [0, 1]
/// @dtype    float; the loss double
/// @space    host
/// @post     loss is NaN where B = 0
/// @numerics double, at most 64 partial sums over consecutive rows, added in order
/// @cost     O(B), two transcendental functions a row
/// @threads  thread-safe; the same bits for any number of workers
/// @error    shape_mismatch
template <class Context, class = detail::unit>
[[nodiscard]] status logistic_loss_forward(Context&& context_or_executor, matrix_view<const float> logits,
                                           matrix_view<const float> labels, double& loss) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::verb_call call(ctx, "logistic_loss_forward");
  if (!call) return call.stopped();
  const index_t batch = logits.extent(0);
  if (!detail::well_formed(logits) || logits.extent(1) != 1) {
    return {errc::shape_mismatch, "logistic_loss_forward: logits must be (B,1)"};
  }
  if (!detail::well_formed(labels) || !detail::has_shape(labels, batch, 1)) {
    return {errc::shape_mismatch, "logistic_loss_forward: labels must be (B,1)"};
  }
  const index_t piece = detail::loss_piece(batch);
  double sums[detail::loss_pieces] = {};
  ctx.executor->parallel_for(batch, piece, [&](index_t begin, index_t end, int) {
    for (index_t i = begin; i < end; i += piece) {  // an executor may hand out several pieces at once
      double& sum = sums[i / piece];
      sum = detail::add_losses(sum, logits, labels, i, end - i > piece ? i + piece : end);
    }
  });
  double sum = 0;
  for (const double part : sums) sum += part;
  loss = sum / static_cast<double>(batch);
  return {};
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
template <class Context, class = detail::unit>
[[nodiscard]] status logistic_loss_backward(Context&& context_or_executor, matrix_view<const float> logits,
                                            matrix_view<const float> labels, matrix_view<float> gradient) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::verb_call call(ctx, "logistic_loss_backward");
  if (!call) return call.stopped();
  const index_t batch = logits.extent(0);
  if (!detail::well_formed(logits) || logits.extent(1) != 1) {
    return {errc::shape_mismatch, "logistic_loss_backward: logits must be (B,1)"};
  }
  if (!detail::well_formed(labels) || !detail::has_shape(labels, batch, 1)) {
    return {errc::shape_mismatch, "logistic_loss_backward: labels must be (B,1)"};
  }
  if (!detail::well_formed(gradient) || !detail::has_shape(gradient, batch, 1)) {
    return {errc::shape_mismatch, "logistic_loss_backward: gradient must be (B,1)"};
  }
  const double scale = 1 / static_cast<double>(std::max<index_t>(batch, 1));
  ctx.executor->parallel_for(batch, detail::loss_piece(batch), [&](index_t begin, index_t end, int) {
    detail::loss_gradients(logits, labels, scale, gradient, begin, end);
  });
  return {};
}

}}  // namespace deeprec::DEEPREC_ABI
