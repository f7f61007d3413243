// Fully connected layers with Dice between them, with their weights, as a stack:
//
//   x ─> W y + b ─> Dice ─> W y + b ─> Dice ─> ... ─> W y + b
//
// In training Dice takes the mean and the variance of the batch, and moves running averages towards them; a
// prediction takes the averages.
#pragma once

#include <string_view>
#include <vector>

#include <deeprec/core/random.hpp>
#include <deeprec/dense/layers/dice.hpp>

#include "kernels.hpp"

namespace ctr {

/// @threads one thread at a time; the work inside is spread over the context's executor
class dice_stack {
 public:
  /// sizes: width of the input, of every hidden layer, and of the output. Weights begin uniform with variance
  /// 2 / width of the layer's input, biases and alphas at 0.
  dice_stack(std::vector<index_t> sizes, deeprec::counter_rng rng, deeprec::mlp_precision precision);

  /// Layer by layer, the weights (O,I), the bias and, but of the last one, alpha, as one row.
  [[nodiscard]] matrix_view<float> parameters() { return as_row(parameters_); }
  /// Of the optimizer: one row.
  [[nodiscard]] matrix_view<float> state() { return as_row(state_); }
  [[nodiscard]] static constexpr std::string_view state_owner() { return deeprec::adagrad::name; }
  /// The running means and variances, as one row.
  [[nodiscard]] matrix_view<float> averages() { return as_row(averages_); }
  [[nodiscard]] matrix_view<const float> output() const { return outputs_.back(); }
  [[nodiscard]] matrix_view<const float> input_gradient() const { return input_gradient_; }

  /// The result is output(). Input (B,I) is unchanged until backward() has run.
  [[nodiscard]] status forward(const step_context& on, matrix_view<const float> input,
                               deeprec::dice_mode mode);
  /// Gradients of all parameters and of the input, from that of output(), after forward() of a batch.
  [[nodiscard]] status backward(const step_context& on, matrix_view<const float> output_gradient);
  [[nodiscard]] status step(const step_context& on, const dense_optimizer& optimizer);

 private:
  [[nodiscard]] std::size_t layers() const { return sizes_.size() - 1; }
  [[nodiscard]] bool has_dice(std::size_t layer) const { return layer + 1 < layers(); }
  [[nodiscard]] deeprec::gemm_math math(std::size_t layer) const {
    const bool in_f32 = !has_dice(layer) && precision_.last == deeprec::mlp_precision::last_layer::f32;
    return in_f32 ? deeprec::gemm_math::f32 : precision_.math;
  }
  static matrix_view<float> as_row(std::vector<float>& of) {
    return {of.data(), 1, static_cast<index_t>(of.size())};
  }
  [[nodiscard]] matrix_view<float> weights(std::vector<float>& of, std::size_t layer) const {
    return {of.data() + first_[layer], sizes_[layer + 1], sizes_[layer]};
  }
  [[nodiscard]] matrix_view<float> bias(std::vector<float>& of, std::size_t layer) const {
    return {of.data() + first_[layer] + sizes_[layer] * sizes_[layer + 1], 1, sizes_[layer + 1]};
  }
  [[nodiscard]] deeprec::array_view<float> alpha(std::vector<float>& of, std::size_t layer) const {
    return {bias(of, layer).data_handle() + sizes_[layer + 1], sizes_[layer + 1]};
  }
  [[nodiscard]] deeprec::dice_statistics<> statistics(std::vector<float>& of, std::size_t layer) const {
    float* const first = of.data() + 2 * first_unit_[layer];
    return {{first, sizes_[layer + 1]}, {first + sizes_[layer + 1], sizes_[layer + 1]}};
  }

  std::vector<index_t> sizes_;
  std::vector<index_t> first_, first_unit_;  // of each layer: its parameters, its units
  deeprec::mlp_precision precision_;
  std::vector<float> parameters_, gradients_, state_;
  std::vector<float> batch_, averages_;  // mean and variance
  matrix_view<const float> input_;
  std::vector<matrix_view<float>> sums_, outputs_;  // of each layer, before and after Dice
  std::vector<matrix_view<float>> of_sums_;         // their gradients
  matrix_view<float> input_gradient_;
  std::vector<float> memory_;
};

}  // namespace ctr
