// The verbs of deeprec that a step calls, for the types of these models, in units of their own: they take the
// most time to compile, and all forms of a step call the same code.
//
//   slot_tables.cpp     resolve, lookup and update of the features of all slots: slot_tables.hpp
//   stack_kernels.cpp   passes and steps of stacks, interactions, the gradient of the loss
//   cross_stack.cpp     passes and steps of cross layers
#pragma once

#include <deeprec/core/context.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/dense/layers/mlp.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/optim/adagrad.hpp>

#include "ctr_data.hpp"
#include "optimizers.hpp"
#include "step_control.hpp"

namespace ctr {

using deeprec::status;

/// Where a step runs: any executor.
using step_context = deeprec::context<deeprec::executor_ref>;
using stack_type = deeprec::mlp<>;

/// Of a stack with the activations and gradients of a pass; the stack is only read.
[[nodiscard]] status stack_forward(const step_context& on, const stack_type& stack, deeprec::mlp_pass& pass,
                                   matrix_view<const float> input);
/// Of the next passes, until it is set anew.
[[nodiscard]] status set_stack_dropout(deeprec::mlp_pass& pass, const deeprec::mlp_dropout& dropout);
[[nodiscard]] status stack_backward(const step_context& on, const stack_type& stack, deeprec::mlp_pass& pass,
                                    matrix_view<const float> gradient,
                                    deeprec::compute_input_gradient wanted);
[[nodiscard]] status stack_step(const step_context& on, stack_type& stack, const dense_optimizer& optimizer);
[[nodiscard]] status stack_step(const step_context& on, stack_type& stack, const dense_optimizer& optimizer,
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
/// Weights of the samples, without rows: 1 each. The divisor is B whatever they are.
[[nodiscard]] status loss_gradient(const step_context& on, matrix_view<const float> logits,
                                   matrix_view<const float> labels, matrix_view<const float> weights,
                                   matrix_view<float> gradient);
/// The same for a part of a batch, which has this share of its samples. The loss is added to `meter`, which
/// may be null.
[[nodiscard]] inline status loss_gradient(const step_context& on, matrix_view<const float> logits,
                                          matrix_view<const float> labels, matrix_view<const float> weights,
                                          float share, loss_meter* meter, matrix_view<float> gradient) {
  if (meter != nullptr) meter->add(logits, labels, weights);
  const status s = loss_gradient(on, logits, labels, weights, gradient);
  if (share != 1) {
    for (index_t i = 0; i < gradient.extent(0); ++i) gradient(i, 0) *= share;
  }
  return s;
}

}  // namespace ctr
