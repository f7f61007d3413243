// The cross layers of DCN-v2 with their weights, as a stack:
//
//   x ─┬──────────────┬──────────────┐
//      └─> layer 1 ──>└─> layer 2 ──>└─> ...       layer: y = x * (W y + b) + y, from y = x on
#pragma once

#include <string_view>
#include <vector>

#include <deeprec/core/random.hpp>

#include "kernels.hpp"

namespace ctr {

/// @threads one thread at a time; the work inside is spread over the context's executor
class cross_stack {
 public:
  /// Weights begin uniform with variance 1 / width, biases at 0.
  cross_stack(index_t width, index_t layers, deeprec::counter_rng rng, deeprec::gemm_math math);

  [[nodiscard]] index_t width() const { return width_; }
  [[nodiscard]] index_t layers() const { return layers_; }
  /// Layer by layer, the weights (D,D) and the bias, as one row.
  [[nodiscard]] matrix_view<float> parameters() { return {parameters_.data(), 1, layers_ * layer_floats()}; }
  /// Of the optimizer: one row.
  [[nodiscard]] matrix_view<float> state() { return {state_.data(), 1, layers_ * layer_floats()}; }
  [[nodiscard]] static constexpr std::string_view state_owner() { return deeprec::adagrad::name; }
  [[nodiscard]] matrix_view<const float> output() const { return outputs_.back(); }
  [[nodiscard]] matrix_view<const float> input_gradient() const { return input_gradient_; }

  /// The result is output(). Input (B,D) is unchanged until backward() has run.
  [[nodiscard]] status forward(const step_context& on, matrix_view<const float> input);
  /// Gradients of all parameters and of the input, from that of output().
  [[nodiscard]] status backward(const step_context& on, matrix_view<const float> output_gradient);
  [[nodiscard]] status step(const step_context& on, const deeprec::adagrad& optimizer);

 private:
  [[nodiscard]] index_t layer_floats() const { return width_ * (width_ + 1); }
  [[nodiscard]] matrix_view<float> weights(std::vector<float>& of, index_t layer) const {
    return {of.data() + layer * layer_floats(), width_, width_};
  }
  [[nodiscard]] matrix_view<float> bias(std::vector<float>& of, index_t layer) const {
    return {of.data() + layer * layer_floats() + width_ * width_, 1, width_};
  }

  index_t width_, layers_;
  deeprec::gemm_math math_;
  std::vector<float> parameters_, gradients_, state_;
  matrix_view<const float> input_;
  std::vector<matrix_view<float>> products_, outputs_;  // of each layer
  matrix_view<float> input_gradient_, layer_gradient_, product_gradient_;
  std::vector<float> memory_;
};

}  // namespace ctr
