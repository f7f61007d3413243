#include "cross_stack.hpp"

#include <algorithm>
#include <cmath>

#include <deeprec/dense/interactions/cross_layer.hpp>
#include <deeprec/optim/apply_row.hpp>

namespace ctr {

cross_stack::cross_stack(index_t width, index_t layers, deeprec::counter_rng rng, deeprec::gemm_math math)
    : width_(width),
      layers_(layers),
      math_(math),
      parameters_(static_cast<std::size_t>(layers * layer_floats())),
      state_(parameters_.size()) {
  const double bound = std::sqrt(3.0 / static_cast<double>(width));
  for (index_t l = 0; l < layers; ++l) {
    const matrix_view<float> w = weights(parameters_.data(), l);
    for (index_t i = 0; i < width * width; ++i) {
      const double u = rng.uniform(static_cast<std::uint64_t>(l), static_cast<std::uint64_t>(i));
      w.data_handle()[i] = static_cast<float>((2 * u - 1) * bound);
    }
  }
}

cross_pass::cross_pass(const cross_stack& of) : gradients_(static_cast<std::size_t>(of.floats())) {}

status cross_stack::forward(const step_context& on, cross_pass& pass, matrix_view<const float> input) const {
  const index_t rows = input.extent(0);
  const std::size_t floats = static_cast<std::size_t>(rows * width_);
  pass.memory_.resize(std::max(pass.memory_.size(), floats * static_cast<std::size_t>(2 * layers_ + 3)));
  float* next = pass.memory_.data();
  const auto take = [&] {
    const matrix_view<float> taken(next, rows, width_);
    next += floats;
    return taken;
  };
  pass.products_.clear();
  pass.outputs_.clear();
  pass.input_ = input;
  matrix_view<const float> x = input;
  for (index_t l = 0; l < layers_; ++l) {
    pass.products_.push_back(take());
    pass.outputs_.push_back(take());
    const status s =
        cross_layer_forward(on, input, x, weights(parameters_.data(), l), bias(parameters_.data(), l),
                            pass.products_.back(), pass.outputs_.back(), math_);
    if (!s) return s;
    x = pass.outputs_.back();
  }
  pass.input_gradient_ = take();
  pass.layer_gradient_ = take();
  pass.product_gradient_ = take();
  return {};
}

status cross_stack::backward(const step_context& on, cross_pass& pass,
                             matrix_view<const float> output_gradient) const {
  std::fill_n(pass.input_gradient_.data_handle(), pass.input_gradient_.extent(0) * width_, 0.0F);
  float* const gradients = pass.gradients_.data();
  matrix_view<const float> dy = output_gradient;
  for (index_t l = layers_; l-- > 0;) {
    const auto at = static_cast<std::size_t>(l);
    const matrix_view<const float> x = l == 0 ? pass.input_ : matrix_view<const float>(pass.outputs_[at - 1]);
    const matrix_view<float> dx = l == 0 ? pass.input_gradient_ : pass.layer_gradient_;
    const status s =
        cross_layer_backward(on, pass.input_, x, pass.products_[at], dy, weights(parameters_.data(), l),
                             {.product = pass.product_gradient_,
                              .weights = weights(gradients, l),
                              .bias = bias(gradients, l),
                              .x0 = pass.input_gradient_,
                              .x = dx},
                             math_);
    if (!s) return s;
    dy = dx;
  }
  return {};
}

status cross_stack::step(const step_context& on, const dense_optimizer& optimizer,
                         matrix_view<const float> gradients) {
  const float* const all = gradients.data_handle();
  return optimizer.visit([&](const auto& one) -> status {
    for (index_t l = 0; l < layers_; ++l) {
      if (const status s =
              apply_rows(on, weights(all, l), one, weights(parameters_.data(), l), weights(state_.data(), l));
          !s) {
        return s;
      }
      if (const status s =
              apply_rows(on, bias(all, l), one, bias(parameters_.data(), l), bias(state_.data(), l));
          !s) {
        return s;
      }
    }
    return {};
  });
}

}  // namespace ctr
