// Functions of the elements of matrices as ops of a step graph, each a pass over memory, as a framework's
// graph has them; fuse() joins them (element_fusions.hpp).
//
//   add_op multiply_op subtract_op divide_op                     y = a + b, ...          (B,D), (B,D)
//   add_row_op multiply_row_op subtract_row_op divide_row_op     y = x + row, ...        (B,D), (1,D)
//   scale_op shift_op subtract_from_op                           y = x by, x + by, by - x
//   tanh_op exp_op sqrt_op abs_op square_op activate_op          y = tanh(x), ...
//   normalize_op                                                 y = (x - mean) / sqrt(variance + epsilon)
//   dice_op                                                      DIN's activation, with a given mean
//
// Rows are variables whose type converts to matrix_view<const float>, such as matrix_view<float>.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <vector>

#include <deeprec/core/array_view.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/dense/gemm/gemm_desc.hpp>
#include <deeprec/dense/layers/dice.hpp>
#include <deeprec/graph/ops/detail/element_functions.hpp>
#include <deeprec/graph/ops/element_function.hpp>
#include <deeprec/graph/ops/matrix_value.hpp>
#include <deeprec/graph/step/step_handles.hpp>
#include <deeprec/ops/expression.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// y = f(a, b), element by element: a, b (B,D).
template <element_function F>
struct binary_op {
  static_assert(is_binary(F), "deeprec::binary_op: a function of one element. Fix: map_op<F>.");
  static constexpr const char* kind = to_string(F);
  static constexpr bool sample_wise = true;
  static constexpr bool commutative = F == element_function::add || F == element_function::multiply;
  using output = matrix_value;
  status operator()(const step_call& call, const matrix_value& a, const matrix_value& b,
                    matrix_value& y) const {
    if (a.rows() != b.rows() || a.columns() != b.columns())
      return {errc::shape_mismatch, detail::pair_shapes(F)};
    return detail::apply_element<F>(call.on, 0, a.view(), b.view(), y.make(a.rows(), a.columns()));
  }
};
using add_op = binary_op<element_function::add>;
using subtract_op = binary_op<element_function::subtract>;
using multiply_op = binary_op<element_function::multiply>;
using divide_op = binary_op<element_function::divide>;

/// y = f(x, row), element by element: x (B,D), row (1,D).
template <element_function F, class Row = matrix_view<float>>
struct row_op {
  static_assert(is_binary(F), "deeprec::row_op: a function of one element. Fix: map_op<F>.");
  static constexpr const char* kind = detail::row_kind(F);
  static constexpr bool sample_wise = true;
  using output = matrix_value;
  status operator()(const step_call& call, const matrix_value& x, const Row& r, matrix_value& y) const {
    const matrix_view<const float> row(r);
    if (row.extent(0) != 1 || row.extent(1) != x.columns())
      return {errc::shape_mismatch, detail::row_shapes(F)};
    return detail::apply_element<F>(call.on, 0, x.view(), array_view(row.row(0), row.extent(1)),
                                    y.make(x.rows(), x.columns()));
  }
};
template <class Row = matrix_view<float>>
using add_row_op = row_op<element_function::add, Row>;
template <class Row = matrix_view<float>>
using subtract_row_op = row_op<element_function::subtract, Row>;
template <class Row = matrix_view<float>>
using multiply_row_op = row_op<element_function::multiply, Row>;
template <class Row = matrix_view<float>>
using divide_row_op = row_op<element_function::divide, Row>;

/// y = f(x, by), element by element.
template <element_function F>
struct map_op {
  static_assert(!is_binary(F), "deeprec::map_op: a function of two elements. Fix: binary_op<F>.");
  static_assert(!is_activation(F), "deeprec::map_op: an activation. Fix: activate_op.");
  static constexpr const char* kind = to_string(F);
  static constexpr bool sample_wise = true;
  using output = matrix_value;
  float by = 0;  ///< of scale, shift and subtract_from
  template <class Visit>
  void for_each_attribute(Visit&& visit) const {
    if (takes_number(F)) visit("by", by);
  }
  status operator()(const step_call& call, const matrix_value& x, matrix_value& y) const {
    return detail::apply_element<F>(call.on, by, x.view(), detail::no_operand{},
                                    y.make(x.rows(), x.columns()));
  }
};
using scale_op = map_op<element_function::scale>;
using shift_op = map_op<element_function::shift>;
using subtract_from_op = map_op<element_function::subtract_from>;
using tanh_op = map_op<element_function::tanh>;
using exp_op = map_op<element_function::exp>;
using sqrt_op = map_op<element_function::sqrt>;
using abs_op = map_op<element_function::abs>;
using square_op = map_op<element_function::square>;

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
    const auto apply = [&](auto function) {
      return detail::apply_element<decltype(function)::value>(call.on, 0, x.view(), detail::no_operand{},
                                                              y.make(x.rows(), x.columns()));
    };
    switch (activation) {
      case gemm_activation::none:
        return apply(detail::element_constant<element_function::copy>());
      case gemm_activation::relu:
        return apply(detail::element_constant<element_function::relu>());
      case gemm_activation::sigmoid:
        return apply(detail::element_constant<element_function::sigmoid>());
      case gemm_activation::gelu_tanh:
        return apply(detail::element_constant<element_function::gelu_tanh>());
      default:
        return {errc::unsupported, "activate: not as an op of its own: gelu"};
    }
  }
};

/// y = (x - mean) / sqrt(variance + epsilon), column by column: x (B,D), mean and variance (1,D); batch
/// normalisation with given statistics.
template <class Row = matrix_view<float>>
struct normalize_op {
  static constexpr const char* kind = "normalize";
  static constexpr bool sample_wise = true;
  using output = matrix_value;
  float epsilon = 1e-8F;
  template <class Visit>
  void for_each_attribute(Visit&& visit) const {
    visit("epsilon", epsilon);
  }
  status operator()(const step_call& call, const matrix_value& x, const Row& m, const Row& v,
                    matrix_value& y) const {
    const matrix_view<const float> mean(m), variance(v);
    const index_t width = x.columns();
    if (mean.extent(0) != 1 || mean.extent(1) != width || variance.extent(0) != 1 ||
        variance.extent(1) != width)
      return {errc::shape_mismatch, "normalize: mean and variance must be (1,D), with the columns of x"};
    std::pmr::vector<float> scale(static_cast<std::size_t>(width), call.on.memory);
    for (index_t j = 0; j < width; ++j)
      scale[static_cast<std::size_t>(j)] = 1 / std::sqrt(variance(0, j) + epsilon);
    return evaluate(call.on, expr::assign(y.make(x.rows(), width),
                                          (expr::in(x.view()) - expr::row(array_view(mean.row(0), width))) *
                                              expr::row(array_view<const float>(scale.data(), width))));
  }
};

/// Dice with fixed statistics (dice_forward): x (B,D); mean, variance and alpha (1,D).
template <class Row = matrix_view<float>>
struct dice_op {
  static constexpr const char* kind = "dice";
  static constexpr bool sample_wise = true;
  using output = matrix_value;
  float epsilon = 1e-8F;
  template <class Visit>
  void for_each_attribute(Visit&& visit) const {
    visit("epsilon", epsilon);
  }
  status operator()(const step_call& call, const matrix_value& x, const Row& m, const Row& v, const Row& a,
                    matrix_value& y) const {
    const matrix_view<const float> rows[] = {matrix_view<const float>(m), matrix_view<const float>(v),
                                             matrix_view<const float>(a)};
    for (const matrix_view<const float>& row : rows) {
      if (row.extent(0) != 1 || row.extent(1) != x.columns())
        return {errc::shape_mismatch, "dice: mean, variance and alpha must be (1,D), with the columns of x"};
    }
    // Fixed statistics are only read.
    const auto column = [&](std::size_t i) {
      return array_view<float>(const_cast<float*>(rows[i].row(0)), x.columns());
    };
    return dice_forward<decltype(call.on), host_space>(call.on, x.view(), column(2), {column(0), column(1)},
                                                       y.make(x.rows(), x.columns()),
                                                       {.epsilon = epsilon, .mode = dice_mode::fixed});
  }
};

}}  // namespace deeprec::DEEPREC_ABI
