// The verbs of deeprec that a step calls, for the types of these models, in units of their own: they take the
// most time to compile, and all forms of a step call the same code.
//
//   row_kernels.cpp     resolve, lookup and update of the features of all slots; of bags of all slots
//   stack_kernels.cpp   passes and steps of stacks, interactions, the gradient of the loss
//   cross_stack.cpp     passes and steps of cross layers
#pragma once

#include <optional>
#include <span>
#include <vector>

#include <deeprec/core/context.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/dense/layers/mlp.hpp>
#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/resolved_features.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/optim/adagrad.hpp>

#include "ctr_data.hpp"

namespace ctr {

using deeprec::status;

/// Where a step runs: any executor.
using step_context = deeprec::context<deeprec::executor_ref>;
using table_type = deeprec::dense_table<deeprec::f32_rows>;
using row_view = deeprec::table_view<deeprec::f32_rows>;
using const_row_view = deeprec::const_table_view<deeprec::f32_rows>;
using stack_type = deeprec::mlp<>;

/// Rows with one float of optimizer state beside each: zeros, or uniform in +- bound.
[[nodiscard]] table_type make_table(const step_context& on, index_t rows, index_t width, float bound = 0,
                                    std::uint64_t seed = 0);

/// The features of all slots over one table: slot s reads and steps the rows [first_row[s], first_row[s +
/// 1]).
struct slot_features {
  using group_type = deeprec::feature_group<deeprec::rowwise_adagrad, slot_bags>;
  /// The rows of a batch that was looked up, for its update.
  using found_rows = std::optional<deeprec::resolved_features<group_type>>;
  group_type group;

  /// @param absent  the id that has no row: one of zeros stands for it
  slot_features(row_view all, const std::vector<index_t>& first_row, std::optional<row_id> absent = {});

  /// Checks the ids and locates their rows, for look_up and update. Reads no row.
  [[nodiscard]] status resolve(const step_context& on, std::span<const slot_bags> by_slot,
                               found_rows& rows) const;
  [[nodiscard]] status look_up(const step_context& on, const found_rows& rows, matrix_view<float> out) const;
  [[nodiscard]] status look_up(const step_context& on, std::span<const slot_bags> by_slot, found_rows& rows,
                               matrix_view<float> out) const {
    if (const status s = resolve(on, by_slot, rows); !s) return s;
    return look_up(on, rows, out);
  }
  /// The same for a part of a batch, whose rows update() resolves with those of the other parts.
  [[nodiscard]] status look_up(const step_context& on, std::span<const slot_bags> by_slot,
                               matrix_view<float> out) const;
  [[nodiscard]] status update(const step_context& on, std::span<const slot_bags> by_slot,
                              const found_rows& rows, matrix_view<const float> gradient,
                              const deeprec::rowwise_adagrad& optimizer) const;
};

/// The sum of the rows of each bag.
[[nodiscard]] status look_up_sums(const step_context& on, const_row_view rows, const slot_bags& bags,
                                  matrix_view<float> out);
[[nodiscard]] status update_sums(const step_context& on, const slot_bags& bags,
                                 matrix_view<const float> gradient, const deeprec::rowwise_adagrad& optimizer,
                                 row_view rows);

/// Of a stack with the activations and gradients of a pass; the stack is only read.
[[nodiscard]] status stack_forward(const step_context& on, const stack_type& stack, deeprec::mlp_pass& pass,
                                   matrix_view<const float> input);
[[nodiscard]] status stack_backward(const step_context& on, const stack_type& stack, deeprec::mlp_pass& pass,
                                    matrix_view<const float> gradient,
                                    deeprec::compute_input_gradient wanted);
[[nodiscard]] status stack_step(const step_context& on, stack_type& stack, const deeprec::adagrad& optimizer);
[[nodiscard]] status stack_step(const step_context& on, stack_type& stack, const deeprec::adagrad& optimizer,
                                matrix_view<const float> gradients);
/// Columns of interact()'s result.
[[nodiscard]] index_t interaction_width(index_t tables, index_t width);
[[nodiscard]] status interact(const step_context& on, matrix_view<const float> dense,
                              matrix_view<const float> pooled, matrix_view<float> out);
[[nodiscard]] status interact_backward(const step_context& on, matrix_view<const float> dense,
                                       matrix_view<const float> pooled, matrix_view<const float> gradient,
                                       matrix_view<float> dense_gradient, matrix_view<float> pooled_gradient);
/// The second order of a factorization machine, one number for each sample.
[[nodiscard]] status factorize(const step_context& on, matrix_view<const float> pooled, index_t width,
                               matrix_view<float> out);
/// The gradient of pooled, plus `other`.
[[nodiscard]] status factorize_backward(const step_context& on, matrix_view<const float> pooled,
                                        index_t width, matrix_view<const float> out_gradient,
                                        matrix_view<const float> other, matrix_view<float> gradient);
/// The sum of each row of `many`, plus `one`.
inline void add_logits(matrix_view<const float> many, matrix_view<const float> one, matrix_view<float> sums) {
  for (index_t i = 0; i < one.extent(0); ++i) {
    float sum = 0;
    for (index_t c = 0; c < many.extent(1); ++c) sum += many(i, c);
    sums(i, 0) = sum + one(i, 0);
  }
}
[[nodiscard]] status loss_gradient(const step_context& on, matrix_view<const float> logits,
                                   matrix_view<const float> labels, matrix_view<float> gradient);
/// The same for a part of a batch, whose share of the loss is `weight`.
[[nodiscard]] inline status loss_gradient(const step_context& on, matrix_view<const float> logits,
                                          matrix_view<const float> labels, float weight,
                                          matrix_view<float> gradient) {
  const status s = loss_gradient(on, logits, labels, gradient);
  if (weight != 1) {
    for (index_t i = 0; i < gradient.extent(0); ++i) gradient(i, 0) *= weight;
  }
  return s;
}

}  // namespace ctr
