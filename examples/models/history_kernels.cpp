#include "history_kernels.hpp"

#include <algorithm>

#include <deeprec/dense/gemm/gemm.hpp>
#include <deeprec/dense/layers/attention_features.hpp>
#include <deeprec/dense/layers/attention_pool.hpp>
#include <deeprec/dense/layers/normalize_rows.hpp>
#include <deeprec/dense/losses/in_batch_softmax.hpp>
#include <deeprec/ops/expression.hpp>

namespace ctr {

namespace expr = deeprec::expr;

namespace {

matrix_view<float> targets_of(matrix_view<float> of_rows, const history_rows_view& h) {
  return of_rows.rows(0, h.targets.extent(0));
}
matrix_view<float> keys_of(matrix_view<float> of_rows, const history_rows_view& h) {
  return of_rows.rows(h.targets.extent(0), h.keys.extent(0));
}

}  // namespace

status compare(const step_context& on, const history_rows_view& h, matrix_view<float> out) {
  return attention_features_forward(on, h.targets, h.keys, h.offsets, out);
}
status compare_backward(const step_context& on, const history_rows_view& h, matrix_view<const float> gradient,
                        matrix_view<float> of_targets, matrix_view<float> of_rows) {
  if (const status s = attention_features_backward(on, h.targets, h.keys, h.offsets, gradient,
                                                   {.queries = of_targets, .keys = keys_of(of_rows, h)},
                                                   deeprec::gradient_write::add);
      !s) {
    return s;
  }
  const matrix_view<float> sums = targets_of(of_rows, h);
  return evaluate(on, expr::assign(sums, expr::in(sums) + expr::in(of_targets)));
}

status pool(const step_context& on, const history_rows_view& h, matrix_view<const float> scores,
            matrix_view<float> weights, matrix_view<float> out) {
  return attention_pool_forward(on, scores, h.keys, h.offsets, weights, out);
}
status pool_backward(const step_context& on, const history_rows_view& h, matrix_view<const float> weights,
                     matrix_view<const float> gradient, matrix_view<float> of_scores,
                     matrix_view<float> of_rows) {
  return attention_pool_backward(on, weights, h.keys, h.offsets, gradient,
                                 {.scores = of_scores, .keys = keys_of(of_rows, h)},
                                 {.weights = deeprec::attention_weights::softmax});
}

status join(const step_context& on, const history_rows_view& h, matrix_view<const float> pooled,
            matrix_view<float> out) {
  const index_t width = pooled.extent(1);
  return evaluate(on, expr::assign(out.columns(0, width), expr::in(pooled)),
                  expr::assign(out.columns(width, width), expr::in(h.targets)),
                  expr::assign(out.columns(2 * width, width), expr::in(pooled)*expr::in(h.targets)));
}
status join_backward(const step_context& on, const history_rows_view& h, matrix_view<const float> pooled,
                     matrix_view<const float> gradient, matrix_view<float> of_pooled,
                     matrix_view<float> of_targets) {
  const index_t width = pooled.extent(1);
  const auto of_product = expr::in(gradient.columns(2 * width, width));
  return evaluate(
      on, expr::assign(of_pooled, expr::in(gradient.columns(0, width)) + of_product * expr::in(h.targets)),
      expr::assign(of_targets, expr::in(gradient.columns(width, width)) + of_product * expr::in(pooled)));
}

status normalize(const step_context& on, matrix_view<const float> in, matrix_view<float> out,
                 std::vector<float>& inverse) {
  inverse.resize(static_cast<std::size_t>(in.extent(0)));
  return normalize_rows_forward(on, in, out, inverse);
}
status normalize_backward(const step_context& on, matrix_view<const float> out,
                          const std::vector<float>& inverse, matrix_view<const float> gradient,
                          matrix_view<float> of_in) {
  return normalize_rows_backward(on, out, inverse, gradient, of_in);
}

status in_batch_gradient(const step_context& on, matrix_view<const float> queries,
                         matrix_view<const float> items, deeprec::array_view<const float> log_shares,
                         deeprec::array_view<const std::int64_t> ids, float temperature,
                         matrix_view<float> scores, matrix_view<float> of_queries,
                         matrix_view<float> of_items) {
  using deeprec::gemm_operand;
  if (const status s = gemm(on, {.b = gemm_operand::transposed}, queries, items, scores); !s) return s;
  if (const status s =
          evaluate(on, expr::assign(scores, expr::in(scores) * (1 / temperature) - expr::row(log_shares)));
      !s) {
    return s;
  }
  if (const status s = in_batch_softmax_backward(on, scores, {}, ids, 1 / temperature, scores); !s) return s;
  if (const status s = gemm(on, {}, scores, items, of_queries); !s) return s;
  return gemm(on, {.a = gemm_operand::transposed}, scores, queries, of_items);
}

}  // namespace ctr
