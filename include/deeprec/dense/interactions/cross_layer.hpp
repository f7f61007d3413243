// The cross layer of DCN-v2: y = x0 * (W x + b) + x, element by element.
//
//   x0 (B,D) ──────────────────┐
//   x  (B,D) ──> product = W x + b ──> * ──> + ──> y        dy ──> d product = dy * x0
//      └───────────────────────────────────┘                      d x0     += dy * product
//                                                                  d W, d b   of the linear layer
//                                                                  d x      = dy + (d product) W
//
// A stack begins with x = x0; every layer contributes to the gradient of x0. Each direction is products of
// matrices and one pass over (B,D). Not here: low-rank weights U V^T, for which the product is two calls of
// linear_forward and the rest one evaluate(); mixtures of experts.
// Source: Wang et al. 2021, arXiv:2008.13535.
#pragma once

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/dense/gemm/gemm.hpp>
#include <deeprec/dense/layers/linear.hpp>
#include <deeprec/ops/expression.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {

template <class View>
constexpr bool is_crossed(const View& v, index_t rows, index_t columns) noexcept {
  return well_formed(v) && has_shape(v, rows, columns);
}

}  // namespace detail

/// y = x0 * (W x + b) + x; W x + b is kept for the backward pass.
///
/// @shape    x0, x (B,D) · weights (D,D), a view or gemm_weights · bias (1,D), or empty for none ·
///           product (B,D), which receives W x + b · output (B,D); any row stride
/// @dtype    float; weights float or bf16
/// @space    all reachable from the context
/// @pre      product overlaps no input; output is product (where no backward pass follows), x0 or x itself
///           (same first element and stride), or overlaps no other argument
/// @post     every element of product and output is written
/// @numerics product: gemm(); output: |err| <= |x0| err(product) + 2u |x0 product| + u |x|, u = 2^-24. The
///           same bits for any number of threads
/// @cost     one gemm() of B x D x D, and one pass that reads x0, x and product and writes output; no memory
///           but gemm()'s
/// @threads  thread-safe on distinct outputs
/// @error    shape_mismatch (names the operand; nothing is written) · errors of gemm() · unsupported where
///           output overlaps an operand in part
/// @example  @snippet tests/dense/cross_layer_test.cpp cross_layer
/// @source   Wang et al. 2021, arXiv:2008.13535
template <class Backends = host_gemm_backends, class Context, MemorySpace Space>
DEEPREC_PER_UNIT status cross_layer_forward(Context&& context_or_executor, matrix_arg<const float, Space> x0,
                                            matrix_arg<const float, Space> x, const gemm_factor<>& weights,
                                            matrix_arg<const float, Space> bias,
                                            matrix_view<float, Space> product,
                                            matrix_arg<float, Space> output,
                                            gemm_math math = gemm_math::f32) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "cross_layer_forward", detail::in_spaces<Space>);
  if (!call) return call.stopped();
  const index_t batch = x0.extent(0), width = x0.extent(1);
  const gemm_view<>& w = weights.values();
  if (!detail::well_formed(x0)) {
    return {errc::shape_mismatch, "cross_layer_forward: x0 must be (B,D), and not null"};
  }
  if (!detail::is_crossed(x, batch, width)) {
    return {errc::shape_mismatch, "cross_layer_forward: x must be (B,D), the shape of x0"};
  }
  if (!detail::is_crossed(w, width, width)) {
    return {errc::shape_mismatch, "cross_layer_forward: weights must be (D,D)"};
  }
  if (!bias.empty() && !detail::is_crossed(bias, 1, width)) {
    return {errc::shape_mismatch, "cross_layer_forward: bias must be (1,D), or empty"};
  }
  if (!detail::is_crossed(product, batch, width)) {
    return {errc::shape_mismatch, "cross_layer_forward: product must be (B,D)"};
  }
  if (!detail::is_crossed(output, batch, width)) {
    return {errc::shape_mismatch, "cross_layer_forward: output must be (B,D)"};
  }
  const status multiplied =
      linear_forward<Backends>(detail::begun(ctx), x, weights, bias, product, {.math = math});
  if (!multiplied) return multiplied;
  return evaluate(detail::begun(ctx),
                  expr::assign(output, expr::multiply_add(expr::in(x0), expr::in(product), expr::in(x))));
}

/// What cross_layer_backward writes; any row stride.
///
/// @threads as its memory
template <MemorySpace Space = host_space>
struct cross_layer_gradients {
  matrix_view<float, Space> product;  ///< (B,D)
  matrix_view<float, Space> weights;  ///< (D,D); an empty one is not computed
  matrix_view<float, Space> bias;     ///< (1,D); an empty one is not computed
  matrix_view<float, Space> x0;       ///< (B,D)
  matrix_view<float, Space> x;        ///< (B,D)
};

/// The gradients of cross_layer_forward, for the gradient of its output.
///
/// @shape    x0, x, output_gradient (B,D) · product (B,D), of the forward pass · weights (D,D), a view or
///           gemm_weights; any row stride
/// @dtype    float; weights float or bf16
/// @space    all reachable from the context
/// @pre      a gradient overlaps no other argument, with these exceptions (same first element and stride):
///           that of product may be product; that of x may be output_gradient, or that of x0 where x is x0
/// @post     gradients.x0 is added to, since every layer of a stack contributes; so is gradients.x where it
///           is gradients.x0 itself. The other gradients are overwritten
/// @numerics gradients.product: one rounding; .x0: |err| <= 2u |dy product| + u |old value|, u = 2^-24; the
///           others: gemm(), of gradients.product as it is stored. The same bits for any number of threads
/// @cost     one pass that reads x0, product, output_gradient and gradients.x0 and writes gradients.product
///           and .x0, and two gemm() of B x D x D, one of which adds output_gradient; no memory but gemm()'s
/// @threads  thread-safe on distinct gradients
/// @error    shape_mismatch (names the operand; nothing is written) · unsupported where a gradient overlaps
///           an operand in part · errors of gemm(): gradients.x0 was added to by then
/// @example  @snippet tests/dense/cross_layer_test.cpp cross_layer_backward
template <class Backends = host_gemm_backends, class Context, MemorySpace Space = host_space>
DEEPREC_PER_UNIT status cross_layer_backward(Context&& context_or_executor, matrix_arg<const float, Space> x0,
                                             matrix_arg<const float, Space> x,
                                             matrix_arg<const float, Space> product,
                                             matrix_arg<const float, Space> output_gradient,
                                             const gemm_factor<>& weights,
                                             const cross_layer_gradients<Space>& gradients,
                                             gemm_math math = gemm_math::f32) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "cross_layer_backward", detail::in_spaces<Space>);
  if (!call) return call.stopped();
  const index_t batch = x0.extent(0), width = x0.extent(1);
  const gemm_view<>& w = weights.values();
  if (!detail::well_formed(x0)) {
    return {errc::shape_mismatch, "cross_layer_backward: x0 must be (B,D), and not null"};
  }
  if (!detail::is_crossed(x, batch, width)) {
    return {errc::shape_mismatch, "cross_layer_backward: x must be (B,D), the shape of x0"};
  }
  if (!detail::is_crossed(product, batch, width)) {
    return {errc::shape_mismatch, "cross_layer_backward: product must be (B,D)"};
  }
  if (!detail::is_crossed(output_gradient, batch, width)) {
    return {errc::shape_mismatch, "cross_layer_backward: output_gradient must be (B,D)"};
  }
  if (!detail::is_crossed(w, width, width)) {
    return {errc::shape_mismatch, "cross_layer_backward: weights must be (D,D)"};
  }
  if (!detail::is_crossed(gradients.product, batch, width)) {
    return {errc::shape_mismatch, "cross_layer_backward: gradients.product must be (B,D)"};
  }
  if (gradients.weights.data_handle() != nullptr && !detail::is_crossed(gradients.weights, width, width)) {
    return {errc::shape_mismatch, "cross_layer_backward: gradients.weights must be (D,D), or empty"};
  }
  if (gradients.bias.data_handle() != nullptr && !detail::is_crossed(gradients.bias, 1, width)) {
    return {errc::shape_mismatch, "cross_layer_backward: gradients.bias must be (1,D), or empty"};
  }
  if (!detail::is_crossed(gradients.x0, batch, width)) {
    return {errc::shape_mismatch, "cross_layer_backward: gradients.x0 must be (B,D)"};
  }
  if (!detail::is_crossed(gradients.x, batch, width)) {
    return {errc::shape_mismatch, "cross_layer_backward: gradients.x must be (B,D)"};
  }
  const auto rest = detail::begun(ctx);
  const auto dy = expr::in(output_gradient);
  const status split =
      evaluate(rest, expr::assign(gradients.product, dy * expr::in(x0)),
               expr::assign(gradients.x0, expr::multiply_add(dy, expr::in(product), expr::in(gradients.x0))));
  if (!split) return split;
  const matrix_view<const float, Space> of_product(gradients.product);
  const status summed = linear_backward<Backends>(rest, x, of_product, weights, gradients.weights,
                                                  gradients.bias, {}, {.math = math});
  if (!summed) return summed;
  const bool added = gradients.x.data_handle() == gradients.x0.data_handle();  // the first layer of a stack
  const gemm_desc to_x{.c = added ? gemm_output::accumulate : gemm_output::overwrite,
                       .math = math,
                       .residual = output_gradient};
  return gemm<Backends>(rest, to_x, of_product, weights, gradients.x);
}

}}  // namespace deeprec::DEEPREC_ABI
