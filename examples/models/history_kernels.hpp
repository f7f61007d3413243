// The verbs of deeprec that the step of a sequence model calls, in a unit of their own, as kernels.hpp has it
// for click logs. h: the rows of B candidates and of the N positions of their histories, of K floats each.
#pragma once

#include <cstdint>
#include <vector>

#include <deeprec/core/array_view.hpp>

#include "history_data.hpp"
#include "kernels.hpp"

namespace ctr {

/// What the attention unit compares: a row of 4 K for each position.
[[nodiscard]] status compare(const step_context& on, const history_rows_view& h, matrix_view<float> out);
/// Adds to of_rows (B + N, K), the gradient of all rows; of_targets (B,K) is scratch.
[[nodiscard]] status compare_backward(const step_context& on, const history_rows_view& h,
                                      matrix_view<const float> gradient, matrix_view<float> of_targets,
                                      matrix_view<float> of_rows);

/// The sum of weight times key over each history: out (B,K). The weights (N,1) are the softmax of the scores
/// (N,1) over the history.
[[nodiscard]] status pool(const step_context& on, const history_rows_view& h, matrix_view<const float> scores,
                          matrix_view<float> weights, matrix_view<float> out);
/// The gradients of the scores, and of the keys: the last N of of_rows (B + N, K).
[[nodiscard]] status pool_backward(const step_context& on, const history_rows_view& h,
                                   matrix_view<const float> weights, matrix_view<const float> gradient,
                                   matrix_view<float> of_scores, matrix_view<float> of_rows);

/// out (B,3K): the pooled history, the target, and their product.
[[nodiscard]] status join(const step_context& on, const history_rows_view& h, matrix_view<const float> pooled,
                          matrix_view<float> out);
[[nodiscard]] status join_backward(const step_context& on, const history_rows_view& h,
                                   matrix_view<const float> pooled, matrix_view<const float> gradient,
                                   matrix_view<float> of_pooled, matrix_view<float> of_targets);

/// Rows of length one, and the inverse of the lengths that they had.
[[nodiscard]] status normalize(const step_context& on, matrix_view<const float> in, matrix_view<float> out,
                               std::vector<float>& inverse);
[[nodiscard]] status normalize_backward(const step_context& on, matrix_view<const float> out,
                                        const std::vector<float>& inverse, matrix_view<const float> gradient,
                                        matrix_view<float> of_in);
/// The gradients of the in-batch softmax of query_i . item_j / temperature - log_share_j, where row i is to
/// be found. Columns of the same item as row i are left out. scores (B,B) is scratch.
[[nodiscard]] status in_batch_gradient(const step_context& on, matrix_view<const float> queries,
                                       matrix_view<const float> items,
                                       deeprec::array_view<const float> log_shares,
                                       deeprec::array_view<const std::int64_t> ids, float temperature,
                                       matrix_view<float> scores, matrix_view<float> of_queries,
                                       matrix_view<float> of_items);

}  // namespace ctr
