// Dense layers as ops of a step graph: the steps of a layer one by one, as a framework's graph has them, and
// the layer as one op, which fuse() puts in their place (fusions.hpp).
//
//   x ─> matmul ─> add_row ─> activate ─> y            three passes over y (element_ops.hpp)
//   x ─────────────> linear ─────────────> y           one: bias and activation where a tile is multiplied
//
// Weights and bias are variables whose type converts to the operand of gemm(), such as matrix_view<float>; a
// variable is the view then, so an op that trains the weights writes that variable.
#pragma once

#include <deeprec/core/config.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/dense/gemm/gemm.hpp>
#include <deeprec/dense/layers/linear.hpp>
#include <deeprec/graph/ops/matrix_value.hpp>
#include <deeprec/graph/step/step_handles.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// y = x W^T: (B,I), W (O,I), y (B,O).
///
/// @dtype   T: of x, float or bf16; the weights as gemm()
template <class Weights = matrix_view<float>, class T = float, class Backends = host_gemm_backends>
struct matmul_op {
  static constexpr const char* kind = "matmul";
  static constexpr bool sample_wise = true;
  using output = matrix_value;
  gemm_math math = gemm_math::f32;
  template <class Visit>
  void for_each_attribute(Visit&& visit) const {
    visit("math", math);
  }
  status operator()(const step_call& call, const basic_matrix_value<T>& x, const Weights& w,
                    matrix_value& y) const {
    const gemm_factor<> weights(w);
    return gemm<Backends>(call.on, {.b = gemm_operand::transposed, .math = math}, x.view(), weights,
                          y.make(x.rows(), weights.values().extent(0)));
  }
};

/// y = activation(x W^T + b), as linear_forward.
///
/// @dtype   T: of x, float or bf16; the weights as gemm()
template <class Weights = matrix_view<float>, class Row = matrix_view<float>, class T = float,
          class Backends = host_gemm_backends>
struct linear_op {
  static constexpr const char* kind = "linear";
  static constexpr bool sample_wise = true;
  using output = matrix_value;
  gemm_math math = gemm_math::f32;
  gemm_activation activation = gemm_activation::none;
  template <class Visit>
  void for_each_attribute(Visit&& visit) const {
    visit("math", math);
    visit("activation", activation);
  }
  status operator()(const step_call& call, const basic_matrix_value<T>& x, const Weights& w, const Row& bias,
                    matrix_value& y) const {
    const gemm_factor<> weights(w);
    return linear_forward<Backends>(call.on, x.view(), weights, matrix_view<const float>(bias),
                                    y.make(x.rows(), weights.values().extent(0)),
                                    {.math = math, .activation = activation});
  }
};

}}  // namespace deeprec::DEEPREC_ABI
