#include <deeprec/dense/interactions/dot_interaction.hpp>
#include <deeprec/dense/interactions/fm_interaction.hpp>
#include <deeprec/dense/layers/dropout.hpp>
#include <deeprec/dense/losses/logistic_loss.hpp>
#include <deeprec/ops/expression.hpp>

#include "kernels.hpp"

namespace ctr {

status stack_forward(const step_context& on, const stack_type& stack, deeprec::mlp_pass& pass,
                     matrix_view<const float> input) {
  return stack.forward(on, pass, input);
}
status set_stack_dropout(deeprec::mlp_pass& pass, const deeprec::mlp_dropout& dropout) {
  return set_dropout(pass, dropout);
}
status stack_backward(const step_context& on, const stack_type& stack, deeprec::mlp_pass& pass,
                      matrix_view<const float> gradient, deeprec::compute_input_gradient wanted) {
  return stack.backward(on, pass, gradient, wanted);
}
status stack_step(const step_context& on, stack_type& stack, const dense_optimizer& optimizer) {
  return stack_step(on, stack, optimizer, stack.gradients());
}
status stack_step(const step_context& on, stack_type& stack, const dense_optimizer& optimizer,
                  matrix_view<const float> gradients) {
  return optimizer.visit([&](const auto& one) { return stack.step(on, one, gradients); });
}
index_t interaction_width(index_t tables, index_t width) {
  return deeprec::dot_interaction_width(tables, width);
}
status interact(const step_context& on, matrix_view<const float> dense, matrix_view<const float> pooled,
                matrix_view<float> out) {
  return dot_interaction_forward(on, dense, pooled, out);
}
status interact_backward(const step_context& on, matrix_view<const float> dense,
                         matrix_view<const float> pooled, matrix_view<const float> gradient,
                         matrix_view<float> dense_gradient, matrix_view<float> pooled_gradient) {
  return dot_interaction_backward(on, dense, pooled, gradient, dense_gradient, pooled_gradient);
}
status factorize(const step_context& on, matrix_view<const float> pooled, index_t width,
                 matrix_view<float> out) {
  return fm_interaction_forward(on, pooled, width, out);
}
status factorize_backward(const step_context& on, matrix_view<const float> pooled, index_t width,
                          matrix_view<const float> out_gradient, matrix_view<const float> other,
                          matrix_view<float> gradient) {
  if (const status s = fm_interaction_backward(on, pooled, width, out_gradient, gradient); !s) return s;
  namespace expr = deeprec::expr;
  return evaluate(on, expr::assign(gradient, expr::in(gradient) + expr::in(other)));
}
status loss_gradient(const step_context& on, matrix_view<const float> logits, matrix_view<const float> labels,
                     matrix_view<const float> weights, matrix_view<float> gradient) {
  if (weights.extent(0) == 0) return logistic_loss_backward(on, logits, labels, gradient);
  return logistic_loss_backward(on, logits, labels, weights, gradient);
}

}  // namespace ctr
