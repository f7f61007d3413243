// A fully connected layer: y = act(x W^T + b), and its gradients.
//
//   x (B,I) ──┐                            dW = dy^T x    (O,I)
//   W (O,I) ──┴─> y (B,O)        dy ──>    db = sum of dy's rows
//   b (1,O) ──┘                            dx = dy W      (B,I), zero where x is an output of ReLU at 0
//
// Each product is one gemm() on views; mlp.hpp owns weights and activations.
#pragma once

#include <deeprec/core/config.hpp>
#include <deeprec/dense/gemm/gemm.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Options of a layer.
struct linear_options {
  gemm_math math = gemm_math::f32;
  gemm_activation activation = gemm_activation::none;  ///< of the forward pass
  gemm_view<> input_mask{};  ///< (B,I), of the backward pass: the input, if it is an output of ReLU
};

/// y = act(x W^T + b).
///
/// @shape    input (B,I) · weights (O,I), a view or gemm_weights · bias (1,O), or empty for none ·
///           output (B,O)
/// @dtype    float or bf16, each
/// @space    host
/// @pre      output overlaps no other argument
/// @numerics gemm()
/// @cost     one gemm() of B x O x I
/// @threads  thread-safe on distinct outputs; the same bits for any number of workers
/// @error    shape_mismatch (names the operand) · errors of gemm()
template <class Backends = host_gemm_backends, class Context>
DEEPREC_PER_UNIT status linear_forward(Context&& context_or_executor, const gemm_view<>& input,
                                       const gemm_factor<>& weights, matrix_view<const float> bias,
                                       const gemm_result<>& output, const linear_options& options = {}) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "linear_forward");
  if (!call) return call.stopped();
  const gemm_view<>& w = weights.values();
  if (w.extent(1) != input.extent(1)) {
    return {errc::shape_mismatch, "linear_forward: weights must have the columns of input"};
  }
  if (!detail::has_shape(output, input.extent(0), w.extent(0)) || !detail::well_formed(output)) {
    return {errc::shape_mismatch, "linear_forward: output must be (B,O)"};
  }
  if (!bias.empty() && (!detail::has_shape(bias, 1, w.extent(0)) || !detail::well_formed(bias))) {
    return {errc::shape_mismatch, "linear_forward: bias must be (1,O)"};
  }
  gemm_desc desc{.b = gemm_operand::transposed, .math = options.math, .activation = options.activation};
  if (!bias.empty()) desc.bias = bias;
  return gemm<Backends>(detail::begun(ctx), desc, input, weights, output);
}

/// The gradients of linear_forward, for the gradient of x W^T + b.
///
/// @shape    input (B,I) · output_gradient (B,O) · weights (O,I), a view or gemm_weights ·
///           weight_gradient (O,I) · bias_gradient (1,O) · input_gradient (B,I); an empty gradient is not
///           computed
/// @dtype    input, weights: float or bf16; gradients: float
/// @space    host
/// @pre      a gradient overlaps no other argument
/// @post     gradients are overwritten, not added to
/// @numerics gemm(), the bias gradient too
/// @cost     two gemm() of B x O x I, and one pass over output_gradient
/// @threads  thread-safe on distinct gradients; the same bits for any number of workers
/// @error    shape_mismatch (names the operand; nothing is written) · errors of gemm(): input_gradient is
///           computed last
template <class Backends = host_gemm_backends, class Context>
DEEPREC_PER_UNIT status linear_backward(Context&& context_or_executor, const gemm_view<>& input,
                                        matrix_view<const float> output_gradient,
                                        const gemm_factor<>& weights, matrix_view<float> weight_gradient,
                                        matrix_view<float> bias_gradient, matrix_view<float> input_gradient,
                                        const linear_options& options = {}) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "linear_backward");
  if (!call) return call.stopped();
  const gemm_view<>& w = weights.values();
  const index_t batch = input.extent(0);
  const index_t out = w.extent(0);
  const index_t in = w.extent(1);
  if (input.extent(1) != in) {
    return {errc::shape_mismatch, "linear_backward: weights must have the columns of input"};
  }
  if (!detail::has_shape(output_gradient, batch, out) || !detail::well_formed(output_gradient)) {
    return {errc::shape_mismatch, "linear_backward: output_gradient must be (B,O)"};
  }
  if (weight_gradient.data_handle() != nullptr && !detail::has_shape(weight_gradient, out, in)) {
    return {errc::shape_mismatch, "linear_backward: weight_gradient must be (O,I)"};
  }
  if (bias_gradient.data_handle() != nullptr &&
      !(detail::has_shape(bias_gradient, 1, out) && detail::well_formed(bias_gradient))) {
    return {errc::shape_mismatch, "linear_backward: bias_gradient must be (1,O)"};
  }
  if (input_gradient.data_handle() != nullptr && !detail::has_shape(input_gradient, batch, in)) {
    return {errc::shape_mismatch, "linear_backward: input_gradient must be (B,I)"};
  }
  const gemm_desc to_weights{
      .a = gemm_operand::transposed, .math = options.math, .bias_gradient = bias_gradient};
  const gemm_desc to_input{.math = options.math, .mask = options.input_mask};
  if (weight_gradient.data_handle() != nullptr) {  // both are checked before either writes
    if (const status s = detail::check_gemm<host_space>(to_weights, output_gradient, input, weight_gradient);
        !s)
      return s;
  }
  if (input_gradient.data_handle() != nullptr) {
    if (const status s = detail::check_gemm<host_space>(to_input, output_gradient, w, input_gradient); !s)
      return s;
  }
  if (weight_gradient.data_handle() != nullptr) {
    if (const status s =
            gemm<Backends>(detail::begun(ctx), to_weights, output_gradient, input, weight_gradient);
        !s)
      return s;
  } else if (bias_gradient.data_handle() != nullptr) {
    detail::sum_rows<float>(ctx, gemm_operand::transposed, gemm_view<>(output_gradient),
                            bias_gradient.row(0));
  }
  if (input_gradient.data_handle() == nullptr) return {};
  return gemm<Backends>(detail::begun(ctx), to_input, output_gradient, weights, input_gradient);
}

}}  // namespace deeprec::DEEPREC_ABI
