// Dense layers as ops of a step graph: the steps of a layer one by one, as a framework's graph has them, and
// the layer as one op, which fuse() puts in their place (fusions.hpp).
//
//   x ─> matmul ─> add_row ─> activate ─> y            three passes over y
//   x ─────────────> linear ─────────────> y           one: bias and activation where a tile is multiplied
//
// Weights and bias are variables whose type converts to the operand of gemm(), such as matrix_view<float>; a
// variable is the view then, so an op that trains the weights writes that variable.
#pragma once

#include <algorithm>

#include <deeprec/core/array_view.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/dense/gemm/gemm.hpp>
#include <deeprec/dense/layers/linear.hpp>
#include <deeprec/graph/ops/matrix_value.hpp>
#include <deeprec/graph/step/step_handles.hpp>
#include <deeprec/ops/expression.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// y = x W^T: (B,I), W (O,I), y (B,O).
template <class Weights = matrix_view<float>>
struct matmul_op {
  static constexpr const char* kind = "matmul";
  static constexpr bool sample_wise = true;
  using output = matrix_value;
  gemm_math math = gemm_math::f32;
  template <class Visit>
  void for_each_attribute(Visit&& visit) const {
    visit("math", math);
  }
  status operator()(const step_call& call, const matrix_value& x, const Weights& w, matrix_value& y) const {
    const gemm_factor<> weights(w);
    return gemm(call.on, {.b = gemm_operand::transposed, .math = math}, x.view(), weights,
                y.make(x.rows(), weights.values().extent(0)));
  }
};

/// y = x + row: (B,D), row (1,D).
template <class Row = matrix_view<float>>
struct add_row_op {
  static constexpr const char* kind = "add_row";
  static constexpr bool sample_wise = true;
  using output = matrix_value;
  status operator()(const step_call& call, const matrix_value& x, const Row& r, matrix_value& y) const {
    const matrix_view<const float> row(r);
    if (row.extent(0) != 1 || row.extent(1) != x.columns())
      return {errc::shape_mismatch, "add_row: the row must be (1,D), with the columns of x"};
    return evaluate(call.on,
                    expr::assign(y.make(x.rows(), x.columns()),
                                 expr::in(x.view()) + expr::row(array_view(row.row(0), row.extent(1)))));
  }
};

/// y = activation(x), element by element. GELU is the form with tanh only.
struct activate_op {
  static constexpr const char* kind = "activate";
  static constexpr bool sample_wise = true;
  using output = matrix_value;
  gemm_activation activation = gemm_activation::relu;
  template <class Visit>
  void for_each_attribute(Visit&& visit) const {
    visit("activation", activation);
  }
  status operator()(const step_call& call, const matrix_value& x, matrix_value& y) const {
    const auto in = expr::in(x.view());
    const auto out = y.make(x.rows(), x.columns());
    switch (activation) {
      case gemm_activation::none:
        return evaluate(call.on, expr::assign(out, in));
      case gemm_activation::relu:
        return evaluate(call.on, expr::assign(out, expr::relu(in)));
      case gemm_activation::sigmoid:
        return evaluate(call.on, expr::assign(out, expr::sigmoid(in)));
      case gemm_activation::gelu_tanh:
        return evaluate(call.on, expr::assign(out, expr::gelu(in)));
      default:
        return {errc::unsupported, "activate: not as an op of its own: gelu"};
    }
  }
};

/// y = activation(x W^T + b), as linear_forward.
template <class Weights = matrix_view<float>, class Row = matrix_view<float>>
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
  status operator()(const step_call& call, const matrix_value& x, const Weights& w, const Row& bias,
                    matrix_value& y) const {
    const gemm_factor<> weights(w);
    return linear_forward(call.on, x.view(), weights, matrix_view<const float>(bias),
                          y.make(x.rows(), weights.values().extent(0)),
                          {.math = math, .activation = activation});
  }
};

/// The columns of all matrices side by side, each with the same rows.
struct concat_columns_op {
  static constexpr const char* kind = "concat_columns";
  static constexpr bool sample_wise = true;
  using output = matrix_value;
  status operator()(op_list<const matrix_value> in, matrix_value& out) const {
    index_t columns = 0;
    const index_t rows = in.empty() ? 0 : in[0].rows();
    for (const matrix_value& x : in) {
      if (x.rows() != rows)
        return {errc::shape_mismatch,
                "concat_columns: all matrices must have the rows of the first",
                {.is = x.rows(), .must_be = rows}};
      columns += x.columns();
    }
    const matrix_view<float> to = out.make(rows, columns);
    for (index_t i = 0; i < rows; ++i) {
      float* at = to.row(i);
      for (const matrix_value& x : in) at = std::copy_n(x.view().row(i), x.columns(), at);
    }
    return {};
  }
};

}}  // namespace deeprec::DEEPREC_ABI
