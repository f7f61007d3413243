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

class cross_stack;

/// What a pass over a batch, or over a part of one, needs besides the weights.
///
/// @threads one thread at a time
class cross_pass {
 public:
  explicit cross_pass(const cross_stack& of);
  [[nodiscard]] matrix_view<const float> output() const { return outputs_.back(); }
  [[nodiscard]] matrix_view<const float> input_gradient() const { return input_gradient_; }
  /// Of all parameters, as one row.
  [[nodiscard]] matrix_view<float> gradients() {
    return {gradients_.data(), 1, static_cast<index_t>(gradients_.size())};
  }

 private:
  friend class cross_stack;
  std::vector<float> gradients_;
  matrix_view<const float> input_;
  std::vector<matrix_view<float>> products_, outputs_;  // of each layer
  matrix_view<float> input_gradient_, layer_gradient_, product_gradient_;
  std::vector<float> memory_;
};

/// @threads passes at once, while nobody writes to it; the work inside is spread over the context's executor
class cross_stack {
 public:
  /// Weights begin uniform with variance 1 / width, biases at 0.
  cross_stack(index_t width, index_t layers, deeprec::counter_rng rng, deeprec::gemm_math math);

  [[nodiscard]] index_t width() const { return width_; }
  [[nodiscard]] index_t layers() const { return layers_; }
  /// Of all layers.
  [[nodiscard]] index_t floats() const { return layers_ * layer_floats(); }
  /// Layer by layer, the weights (D,D) and the bias, as one row.
  [[nodiscard]] matrix_view<float> parameters() { return {parameters_.data(), 1, floats()}; }
  /// Of the optimizer: one row.
  [[nodiscard]] matrix_view<float> state() { return {state_.data(), 1, floats()}; }
  [[nodiscard]] static constexpr std::string_view state_owner() { return deeprec::adagrad::name; }

  /// The result is pass.output(). Input (B,D) is unchanged until backward() has run.
  [[nodiscard]] status forward(const step_context& on, cross_pass& pass,
                               matrix_view<const float> input) const;
  /// Gradients of all parameters and of the input, from that of pass.output().
  [[nodiscard]] status backward(const step_context& on, cross_pass& pass,
                                matrix_view<const float> output_gradient) const;
  /// @param gradients  in the order of parameters()
  [[nodiscard]] status step(const step_context& on, const dense_optimizer& optimizer,
                            matrix_view<const float> gradients);

 private:
  [[nodiscard]] index_t layer_floats() const { return width_ * (width_ + 1); }
  template <class Float>
  [[nodiscard]] matrix_view<Float> weights(Float* of, index_t layer) const {
    return {of + layer * layer_floats(), width_, width_};
  }
  template <class Float>
  [[nodiscard]] matrix_view<Float> bias(Float* of, index_t layer) const {
    return {of + layer * layer_floats() + width_ * width_, 1, width_};
  }

  index_t width_, layers_;
  deeprec::gemm_math math_;
  std::vector<float> parameters_, state_;
};

}  // namespace ctr
