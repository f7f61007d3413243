#include "cross_stack.hpp"

#include <algorithm>
#include <cmath>

#include <deeprec/dense/cross_layer.hpp>
#include <deeprec/optim/apply_row.hpp>

namespace ctr {

cross_stack::cross_stack(index_t width, index_t layers, deeprec::counter_rng rng, deeprec::gemm_math math)
    : width_(width),
      layers_(layers),
      math_(math),
      parameters_(static_cast<std::size_t>(layers * layer_floats())),
      gradients_(parameters_.size()),
      state_(parameters_.size()) {
  const double bound = std::sqrt(3.0 / static_cast<double>(width));
  for (index_t l = 0; l < layers; ++l) {
    const matrix_view<float> w = weights(parameters_, l);
    for (index_t i = 0; i < width * width; ++i) {
      const double u = rng.uniform(static_cast<std::uint64_t>(l), static_cast<std::uint64_t>(i));
      w.data_handle()[i] = static_cast<float>((2 * u - 1) * bound);
    }
  }
}

status cross_stack::forward(const step_context& on, matrix_view<const float> input) {
  const index_t rows = input.extent(0);
  const std::size_t floats = static_cast<std::size_t>(rows * width_);
  memory_.resize(std::max(memory_.size(), floats * static_cast<std::size_t>(2 * layers_ + 3)));
  float* next = memory_.data();
  const auto take = [&] {
    const matrix_view<float> taken(next, rows, width_);
    next += floats;
    return taken;
  };
  products_.clear();
  outputs_.clear();
  input_ = input;
  matrix_view<const float> x = input;
  for (index_t l = 0; l < layers_; ++l) {
    products_.push_back(take());
    outputs_.push_back(take());
    const matrix_view<const float> w = weights(parameters_, l);
    const status s =
        cross_layer_forward(on, input, x, w, bias(parameters_, l), products_.back(), outputs_.back(), math_);
    if (!s) return s;
    x = outputs_.back();
  }
  input_gradient_ = take();
  layer_gradient_ = take();
  product_gradient_ = take();
  return {};
}

status cross_stack::backward(const step_context& on, matrix_view<const float> output_gradient) {
  std::fill_n(input_gradient_.data_handle(), input_gradient_.extent(0) * width_, 0.0F);
  matrix_view<const float> dy = output_gradient;
  for (index_t l = layers_; l-- > 0;) {
    const auto at = static_cast<std::size_t>(l);
    const matrix_view<const float> x = l == 0 ? input_ : matrix_view<const float>(outputs_[at - 1]);
    const matrix_view<const float> w = weights(parameters_, l);
    const matrix_view<float> dx = l == 0 ? input_gradient_ : layer_gradient_;
    const status s =
        cross_layer_backward(on, input_, x, products_[at], dy, w, product_gradient_, weights(gradients_, l),
                             bias(gradients_, l), input_gradient_, dx, math_);
    if (!s) return s;
    dy = dx;
  }
  return {};
}

status cross_stack::step(const step_context& on, const deeprec::adagrad& optimizer) {
  for (index_t l = 0; l < layers_; ++l) {
    const matrix_view<const float> dw = weights(gradients_, l), db = bias(gradients_, l);
    if (const status s = apply_rows(on, dw, optimizer, weights(parameters_, l), weights(state_, l)); !s)
      return s;
    if (const status s = apply_rows(on, db, optimizer, bias(parameters_, l), bias(state_, l)); !s) return s;
  }
  return {};
}

}  // namespace ctr
