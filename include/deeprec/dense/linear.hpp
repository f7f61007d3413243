// A fully connected layer: y = x W^T + b, and its gradients.
//
//   x (B,I) ──┐                           dW = dy^T x     (O,I)
//   W (O,I) ──┴─> y (B,O)        dy ─>    db = sum of dy's rows
//   b (1,O) ──┘                           dx = dy W       (B,I)
//
// Views in, views out; the owner of weights and activations is mlp.hpp.
#pragma once

#include <algorithm>

#include <deeprec/dense/gemm.hpp>

namespace deeprec::inline DEEPREC_ABI {

/// y = x W^T + b.
///
/// @shape    input (B,I) · weights (O,I) · bias (1,O), or empty for none · output (B,O)
/// @dtype    float
/// @space    host
/// @pre      output overlaps no other argument
/// @numerics the bias, then the sums of gemm() added to it
/// @cost     one gemm() of B x O x I
/// @threads  thread-safe on distinct outputs; the same bits for any number of workers
/// @error    shape_mismatch (names the operand) · what gemm() says
template <class Engine = default_gemm_engine, class Context>
[[nodiscard]] status linear_forward(Context&& ctx, matrix_view<const float> input,
                                    matrix_view<const float> weights, matrix_view<const float> bias,
                                    matrix_view<float> output) {
  const auto where = as_context(ctx);
  const index_t batch = input.extent(0);
  const index_t out = weights.extent(0);
  if (weights.extent(1) != input.extent(1)) {
    return {errc::shape_mismatch, "linear_forward: weights have other columns than the input"};
  }
  if (!detail::has_shape(output, batch, out) || !detail::well_formed(output)) {
    return {errc::shape_mismatch, "linear_forward: output is not (B,O)"};
  }
  if (!bias.empty() && (!detail::has_shape(bias, 1, out) || !detail::well_formed(bias))) {
    return {errc::shape_mismatch, "linear_forward: bias is not (1,O)"};
  }
  gemm_desc desc{.b = gemm_operand::transposed};
  if (!bias.empty()) {
    desc.c = gemm_output::accumulate;
    where.executor->parallel_for(batch, std::max<index_t>(1, 16384 / out),
                                 [&](index_t begin, index_t end, int) {
                                   for (index_t i = begin; i < end; ++i) {
                                     std::copy_n(bias.row(0), out, output.row(i));
                                   }
                                 });
  }
  return gemm<Engine>(where, desc, input, weights, output);
}

/// The gradients of linear_forward, for the gradient of its output.
///
/// @shape    input (B,I) · output_gradient (B,O) · weights (O,I) · weight_gradient (O,I) ·
///           bias_gradient (1,O) · input_gradient (B,I); an empty gradient is not computed
/// @dtype    float
/// @space    host
/// @pre      a gradient overlaps no other argument
/// @post     gradients are overwritten, not added to
/// @numerics weight and input gradients as gemm(); the bias gradient is summed in double, rows in order
/// @cost     two gemm() of B x O x I, and one pass over output_gradient
/// @threads  thread-safe on distinct gradients; the same bits for any number of workers
/// @error    shape_mismatch (names the operand) · what gemm() says
template <class Engine = default_gemm_engine, class Context>
[[nodiscard]] status linear_backward(Context&& ctx, matrix_view<const float> input,
                                     matrix_view<const float> output_gradient,
                                     matrix_view<const float> weights,
                                     matrix_view<float> weight_gradient,
                                     matrix_view<float> bias_gradient,
                                     matrix_view<float> input_gradient) {
  const auto where = as_context(ctx);
  const index_t batch = input.extent(0);
  const index_t out = weights.extent(0);
  const index_t in = weights.extent(1);
  if (input.extent(1) != in) {
    return {errc::shape_mismatch, "linear_backward: weights have other columns than the input"};
  }
  if (!detail::has_shape(output_gradient, batch, out) || !detail::well_formed(output_gradient)) {
    return {errc::shape_mismatch, "linear_backward: output_gradient is not (B,O)"};
  }
  if (weight_gradient.data_handle() != nullptr && !detail::has_shape(weight_gradient, out, in)) {
    return {errc::shape_mismatch, "linear_backward: weight_gradient is not (O,I)"};
  }
  if (bias_gradient.data_handle() != nullptr &&
      !(detail::has_shape(bias_gradient, 1, out) && detail::well_formed(bias_gradient))) {
    return {errc::shape_mismatch, "linear_backward: bias_gradient is not (1,O)"};
  }
  if (input_gradient.data_handle() != nullptr && !detail::has_shape(input_gradient, batch, in)) {
    return {errc::shape_mismatch, "linear_backward: input_gradient is not (B,I)"};
  }
  if (bias_gradient.data_handle() != nullptr) {
    constexpr index_t block = 64;
    const index_t blocks = (out + block - 1) / block;
    where.executor->parallel_for(blocks, index_t{1}, [&](index_t begin, index_t end, int) {
      for (index_t b = begin; b < end; ++b) {
        const index_t first = b * block;
        const index_t count = (std::min)(block, out - first);
        double sums[block] = {};
        for (index_t i = 0; i < batch; ++i) {
          const float* row = output_gradient.row(i) + first;
          for (index_t j = 0; j < count; ++j) sums[j] += static_cast<double>(row[j]);
        }
        for (index_t j = 0; j < count; ++j) {
          bias_gradient.row(0)[first + j] = static_cast<float>(sums[j]);
        }
      }
    });
  }
  if (weight_gradient.data_handle() != nullptr) {
    const status done = gemm<Engine>(where, {.a = gemm_operand::transposed}, output_gradient, input,
                                     weight_gradient);
    if (!done) return done;
  }
  if (input_gradient.data_handle() != nullptr) {
    return gemm<Engine>(where, {}, output_gradient, weights, input_gradient);
  }
  return {};
}

}  // namespace deeprec::inline DEEPREC_ABI
