// Softmax cross entropy with in-batch negatives: the loss of two-tower models. Item i is the positive of
// query i, and a negative of every other query of the batch.
//
//   normalize_rows_forward(ctx, queries, q, q_inverse);            normalize_rows_forward(ctx, items, t, ..)
//   gemm(ctx, {.b = gemm_operand::transposed}, q, t, scores);                                   (B,B)
//   evaluate(ctx, expr::assign(scores, expr::in(scores) * (1 / temperature)));
//   in_batch_softmax_forward(ctx, scores, {}, ids, loss);
//   in_batch_softmax_backward(ctx, scores, {}, ids, 1 / temperature, scores);      of the cosines, in place
//   gemm(ctx, {}, scores, t, q_gradient);
//   gemm(ctx, {.a = gemm_operand::transposed}, scores, q, t_gradient);
//
//   loss = mean over rows i of  w_i (log(sum over j of exp(s_ij)) - s_ii)
//
// With ids, a column j != i of the same item as row i is an accidental hit: it is left out of the row's sum.
// Source: Huang et al. 2013, "Learning Deep Structured Semantic Models for Web Search using Clickthrough
// Data", CIKM.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include <deeprec/core/array_view.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/dense/losses/detail/in_batch_softmax_kernels.hpp>
#include <deeprec/simd/dispatch.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {

/// The loss is added in 64 pieces of rows at most, whose bounds depend on the number of rows only.
inline constexpr index_t softmax_pieces = 64;
constexpr index_t softmax_piece_of(index_t rows) noexcept {
  return rows <= softmax_pieces ? 1 : (rows + softmax_pieces - 1) / softmax_pieces;
}
/// Of one exponential of each score.
inline double softmax_ns(index_t rows) noexcept {
  return 0.5 * static_cast<double>(rows) * static_cast<double>(rows);
}

template <class T, class Space>
constexpr bool is_none_or(array_view<T, Space> values, index_t size) noexcept {
  return values.valid() && (values.empty() || values.size() == size);
}

}  // namespace detail

/// Mean over the rows of the cross entropy of softmax(scores) against the diagonal.
///
/// @shape    scores (B,B), any row stride · weights (B), finite, or {}: 1 each · items (B), or {}: all
///           different
/// @dtype    float, ids of 64 bits; the loss double
/// @space    host
/// @post     loss is NaN where B = 0
/// @numerics the largest score is subtracted: no overflow. exp in float, 1.1 ulp; 16 vectors are added in
///           float, their sums in double, the rows in order in at most 64 partial sums. A row of finite
///           scores: |err| <= w ((24 + ln B) u + 2^-50 max|s|), u = 2^-24. The divisor stays B whatever the
///           weights; a weight of 0 leaves out a row, whatever its scores are. A score of -infinity leaves
///           out a negative; as that of the target it makes the loss infinite. NaN, +infinity and a row of
///           -infinity alone make the loss NaN, unless they are left out. The same bits for any number of
///           threads, not on every ISA
/// @cost     O(B^2), two reads of scores; no allocation
/// @threads  reentrant; the same bits for any number of workers
/// @error    shape_mismatch. On an error nothing is written
/// @example  @snippet tests/dense/in_batch_softmax_test.cpp in_batch_softmax
template <class Context>
DEEPREC_PER_UNIT status in_batch_softmax_forward(Context&& context_or_executor,
                                                 matrix_view<const float> scores,
                                                 array_view<const float> weights,
                                                 array_view<const std::int64_t> items, double& loss) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "in_batch_softmax_forward");
  if (!call) return call.stopped();
  const index_t batch = scores.extent(0);
  if (!detail::well_formed(scores) || scores.extent(1) != batch) {
    return {errc::shape_mismatch, "in_batch_softmax_forward: scores must be (B,B)"};
  }
  if (!detail::is_none_or(weights, batch)) {
    return {errc::shape_mismatch, "in_batch_softmax_forward: weights must be (B) or empty"};
  }
  if (!detail::is_none_or(items, batch)) {
    return {errc::shape_mismatch, "in_batch_softmax_forward: items must be (B) or empty"};
  }
  const index_t piece = detail::softmax_piece_of(batch);
  double sums[detail::softmax_pieces] = {};
  detail::run_bulk(ctx, {batch, piece, detail::softmax_ns(batch)}, [&](index_t begin, index_t end, int) {
    with_isa_up_to_avx512(ctx.instruction_set, [&](auto region) {
      for (index_t i = begin; i < end; ++i) {  // an executor may hand out several pieces at once
        const double weight = weights.empty() ? 1.0 : static_cast<double>(weights.data()[i]);
        if (weight == 0) continue;
        const float* const row = scores.row(i);
        const detail::softmax_sum of = softmax_sum_of(region, {row, items.data(), i, batch});
        sums[i / piece] +=
            weight * (std::log(of.sum) + (static_cast<double>(of.most) - static_cast<double>(row[i])));
      }
    });
  });
  double sum = 0;
  for (const double part : sums) sum += part;
  loss = sum / static_cast<double>(batch);
  return {};
}

/// The gradient of in_batch_softmax_forward with respect to the scores, times `scale`:
/// w_i (softmax(s_i)_j - [i = j]) scale / B, and 0 where a column is left out of the row's sum. With scale =
/// 1 / temperature it is the gradient of what was divided by the temperature.
///
/// @shape    scores (B,B), any row stride · weights (B), finite, or {}: 1 each · items (B), or {}: all
///           different · scale finite · gradient (B,B), which may be scores itself
/// @dtype    float, ids of 64 bits
/// @space    all reachable from the context
/// @pre      gradient is scores or overlaps nothing
/// @post     every element of gradient is written
/// @numerics with p the softmax and d the distance of a score from the largest of its row, of finite scores:
///           |err| <= |w scale| / B u ((32 + ln B + d) p + 1 on the diagonal) + 2^-149 (1 + |w scale| / B),
///           u = 2^-24; p is 0 where d is above 104. A weight of 0 gives a row of zeros, whatever its scores
///           are; NaN, +infinity and a row of -infinity alone make all of their row NaN, unless they are left
///           out. The same bits for any number of threads, not on every ISA
/// @cost     O(B^2), two reads of scores, two writes of gradient; no allocation
/// @threads  reentrant; concurrent calls are safe where their gradients share no byte
/// @error    shape_mismatch. On an error nothing is written
/// @example  @snippet tests/dense/in_batch_softmax_test.cpp in_batch_softmax_backward
template <class Context, MemorySpace Space>
DEEPREC_PER_UNIT status
in_batch_softmax_backward(Context&& context_or_executor, matrix_arg<const float, Space> scores,
                          std::type_identity_t<array_view<const float, Space>> weights,
                          std::type_identity_t<array_view<const std::int64_t, Space>> items, float scale,
                          matrix_view<float, Space> gradient) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "in_batch_softmax_backward", detail::in_spaces<Space>);
  if (!call) return call.stopped();
  const index_t batch = scores.extent(0);
  if (!detail::well_formed(scores) || scores.extent(1) != batch) {
    return {errc::shape_mismatch, "in_batch_softmax_backward: scores must be (B,B)"};
  }
  if (!detail::is_none_or(weights, batch)) {
    return {errc::shape_mismatch, "in_batch_softmax_backward: weights must be (B) or empty"};
  }
  if (!detail::is_none_or(items, batch)) {
    return {errc::shape_mismatch, "in_batch_softmax_backward: items must be (B) or empty"};
  }
  if (!detail::well_formed(gradient) || !detail::has_shape(gradient, batch, batch)) {
    return {errc::shape_mismatch, "in_batch_softmax_backward: gradient must be (B,B)"};
  }
  const double each = static_cast<double>(scale) / static_cast<double>(batch);
  detail::run_bulk(ctx, {batch, detail::softmax_piece_of(batch), 2 * detail::softmax_ns(batch)},
                   [&](index_t begin, index_t end, int) {
                     with_isa_up_to_avx512(ctx.instruction_set, [&](auto region) {
                       for (index_t i = begin; i < end; ++i) {
                         const double weight = weights.empty() ? 1.0 : static_cast<double>(weights.data()[i]);
                         float* const to = gradient.row(i);
                         if (weight == 0) {
                           for (index_t j = 0; j < batch; ++j) to[j] = 0;
                           continue;
                         }
                         softmax_gradient_of(region, {scores.row(i), items.data(), i, batch}, weight * each,
                                             to);
                       }
                     });
                   });
  return {};
}

}}  // namespace deeprec::DEEPREC_ABI
