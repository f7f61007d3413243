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

#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/dense/gemm.hpp>
#include <deeprec/dense/linear.hpp>
#include <deeprec/ops/expression.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {

/// A parameter from which no type is deduced: {} is an empty view, and matrix_view<float> converts to const.
template <class T, class Space>
using given_view = std::type_identity_t<matrix_view<T, Space>>;

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
template <class Backends = host_gemm_backends, class Context, class X0, MemorySpace Space, class Weights>
DEEPREC_PER_UNIT status cross_layer_forward(Context&& context_or_executor, matrix_view<X0, Space> x0,
                                            detail::given_view<const float, Space> x, const Weights& weights,
                                            detail::given_view<const float, Space> bias,
                                            detail::given_view<float, Space> product,
                                            detail::given_view<float, Space> output,
                                            gemm_math math = gemm_math::f32) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::verb_call call(ctx, "cross_layer_forward");
  if (!call) return call.stopped();
  const index_t batch = x0.extent(0), width = x0.extent(1);
  const auto& w = detail::values_of(weights);
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
  return cross_layer_forward_on<Backends>(ctx.backend(), ctx, matrix_view<const float, Space>(x0), x, weights,
                                          bias, product, output, math);
}

template <class Backends, class... Args>
status cross_layer_forward_on(any_backend, const Args&...) {
  return detail::no_backend<Args...>();
}

template <class Backends, class Context, MemorySpace Space, class Weights>
DEEPREC_PER_UNIT status cross_layer_forward_on(host_backend, const Context& ctx,
                                               matrix_view<const float, Space> x0,
                                               matrix_view<const float, Space> x, const Weights& weights,
                                               matrix_view<const float, Space> bias,
                                               matrix_view<float, Space> product,
                                               matrix_view<float, Space> output, gemm_math math) {
  static_assert(
      reachable_as<Space, host_space>,
      "deeprec::cross_layer_forward: device memory given to a host context. Fix: copy it, or pass a "
      "device context.");
  const status multiplied =
      linear_forward<Backends>(detail::begun(ctx), x, weights, bias, product, {.math = math});
  if (!multiplied) return multiplied;
  return evaluate(detail::begun(ctx),
                  expr::assign(output, expr::multiply_add(expr::in(x0), expr::in(product), expr::in(x))));
}

/// The gradients of cross_layer_forward, for the gradient of its output.
///
/// @shape    x0, x, output_gradient (B,D) · product (B,D), of the forward pass · weights (D,D), a view or
///           gemm_weights · product_gradient (B,D), which receives the gradient of product ·
///           weight_gradient (D,D) and bias_gradient (1,D): an empty one is not computed ·
///           x0_gradient, x_gradient (B,D); any row stride
/// @dtype    float; weights float or bf16
/// @space    all reachable from the context
/// @pre      a gradient overlaps no other argument, with these exceptions (same first element and stride):
///           product_gradient may be product; x_gradient may be output_gradient, or x0_gradient where x is x0
/// @post     x0_gradient is added to, since every layer of a stack contributes; so is x_gradient where it is
///           x0_gradient itself. The other gradients are overwritten
/// @numerics product_gradient: one rounding; x0_gradient: |err| <= 2u |dy product| + u |old x0_gradient|,
///           u = 2^-24; the others: gemm(), of product_gradient as it is stored. The same bits for any number
///           of threads
/// @cost     one pass that reads x0, product, output_gradient and x0_gradient and writes product_gradient
///           and x0_gradient, and two gemm() of B x D x D, one of which adds output_gradient; no memory but
///           gemm()'s
/// @threads  thread-safe on distinct gradients
/// @error    shape_mismatch (names the operand; nothing is written) · unsupported where a gradient overlaps
///           an operand in part · errors of gemm(): x0_gradient was added to by then
/// @example  @snippet tests/dense/cross_layer_test.cpp cross_layer_backward
template <class Backends = host_gemm_backends, class Context, class X0, MemorySpace Space, class Weights>
DEEPREC_PER_UNIT status cross_layer_backward(
    Context&& context_or_executor, matrix_view<X0, Space> x0, detail::given_view<const float, Space> x,
    detail::given_view<const float, Space> product, detail::given_view<const float, Space> output_gradient,
    const Weights& weights, detail::given_view<float, Space> product_gradient,
    detail::given_view<float, Space> weight_gradient, detail::given_view<float, Space> bias_gradient,
    detail::given_view<float, Space> x0_gradient, detail::given_view<float, Space> x_gradient,
    gemm_math math = gemm_math::f32) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::verb_call call(ctx, "cross_layer_backward");
  if (!call) return call.stopped();
  const index_t batch = x0.extent(0), width = x0.extent(1);
  const auto& w = detail::values_of(weights);
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
  if (!detail::is_crossed(product_gradient, batch, width)) {
    return {errc::shape_mismatch, "cross_layer_backward: product_gradient must be (B,D)"};
  }
  if (weight_gradient.data_handle() != nullptr && !detail::is_crossed(weight_gradient, width, width)) {
    return {errc::shape_mismatch, "cross_layer_backward: weight_gradient must be (D,D), or empty"};
  }
  if (bias_gradient.data_handle() != nullptr && !detail::is_crossed(bias_gradient, 1, width)) {
    return {errc::shape_mismatch, "cross_layer_backward: bias_gradient must be (1,D), or empty"};
  }
  if (!detail::is_crossed(x0_gradient, batch, width)) {
    return {errc::shape_mismatch, "cross_layer_backward: x0_gradient must be (B,D)"};
  }
  if (!detail::is_crossed(x_gradient, batch, width)) {
    return {errc::shape_mismatch, "cross_layer_backward: x_gradient must be (B,D)"};
  }
  return cross_layer_backward_on<Backends>(ctx.backend(), ctx, matrix_view<const float, Space>(x0), x,
                                           product, output_gradient, weights, product_gradient,
                                           weight_gradient, bias_gradient, x0_gradient, x_gradient, math);
}

template <class Backends, class... Args>
status cross_layer_backward_on(any_backend, const Args&...) {
  return detail::no_backend<Args...>();
}

template <class Backends, class Context, MemorySpace Space, class Weights>
DEEPREC_PER_UNIT status cross_layer_backward_on(
    host_backend, const Context& ctx, matrix_view<const float, Space> x0, matrix_view<const float, Space> x,
    matrix_view<const float, Space> product, matrix_view<const float, Space> output_gradient,
    const Weights& weights, matrix_view<float, Space> product_gradient,
    matrix_view<float, Space> weight_gradient, matrix_view<float, Space> bias_gradient,
    matrix_view<float, Space> x0_gradient, matrix_view<float, Space> x_gradient, gemm_math math) {
  static_assert(
      reachable_as<Space, host_space>,
      "deeprec::cross_layer_backward: device memory given to a host context. Fix: copy it, or pass a "
      "device context.");
  const auto rest = detail::begun(ctx);
  const auto dy = expr::in(output_gradient);
  const status split =
      evaluate(rest, expr::assign(product_gradient, dy * expr::in(x0)),
               expr::assign(x0_gradient, expr::multiply_add(dy, expr::in(product), expr::in(x0_gradient))));
  if (!split) return split;
  const matrix_view<const float, Space> of_product(product_gradient);
  const status summed = linear_backward<Backends>(rest, x, of_product, weights, weight_gradient,
                                                  bias_gradient, {}, {.math = math});
  if (!summed) return summed;
  const bool added = x_gradient.data_handle() == x0_gradient.data_handle();  // the first layer of a stack
  const gemm_desc to_x{.c = added ? gemm_output::accumulate : gemm_output::overwrite,
                       .math = math,
                       .residual = output_gradient};
  return gemm<Backends>(rest, to_x, of_product, weights, x_gradient);
}

}}  // namespace deeprec::DEEPREC_ABI
