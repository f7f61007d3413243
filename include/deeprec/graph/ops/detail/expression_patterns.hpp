// The patterns of element_fusions(): an op becomes an expression of one step; two expressions become one.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/dense/gemm/gemm_desc.hpp>
#include <deeprec/graph/ops/detail/element_functions.hpp>
#include <deeprec/graph/ops/element_function.hpp>
#include <deeprec/graph/ops/element_ops.hpp>
#include <deeprec/graph/ops/expression_op.hpp>
#include <deeprec/graph/ops/matrix_value.hpp>
#include <deeprec/graph/step/fusion/step_pattern.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

template <element_function... F, class Body>
void each_function(const Body& body) {
  (body(element_constant<F>()), ...);
}

constexpr element_operand matrix_operand(index_t at) noexcept { return {element_operand::from::matrix, at}; }

template <class Row>
expression_op<Row> one_step(const element_step& step) {
  return expression_op<Row>(std::vector<element_step>{step});
}
template <class Row>
auto no_rows() {
  return step_pattern::list(std::vector<pattern_access<const Row>>());
}

template <element_function F, class Row>
step_pattern pair_pattern() {
  step_pattern p(std::string(to_string(F)) + " -> expression");
  const auto a = p.any<matrix_value>(), b = p.any<matrix_value>();
  const auto both = p.list(a, b).once();
  p.becomes(
      p.op<binary_op<F>>(a, b),
      [=](const pattern_match& m) {
        const std::vector<index_t> at = m.places(both);
        return one_step<Row>({F, matrix_operand(at[0]), matrix_operand(at[1])});
      },
      both, no_rows<Row>());
  return p;
}
template <element_function F, class Row>
step_pattern row_pattern() {
  step_pattern p(std::string(row_kind(F)) + " -> expression");
  const auto x = p.any<matrix_value>();
  const auto row = p.reads<Row>();
  p.becomes(
      p.op<row_op<F, Row>>(x, row),
      [](const pattern_match&) {
        return one_step<Row>({F, matrix_operand(0), {element_operand::from::row, 0}});
      },
      p.list(x), p.list(row));
  return p;
}
template <element_function F, class Row>
step_pattern map_pattern() {
  step_pattern p(std::string(to_string(F)) + " -> expression");
  const auto x = p.any<matrix_value>();
  const auto y = p.op<map_op<F>>(x);
  p.becomes(
      y, [=](const pattern_match& m) { return one_step<Row>({F, matrix_operand(0), {}, m[y].by}); },
      p.list(x), no_rows<Row>());
  return p;
}
template <class Row>
step_pattern activation_pattern() {
  step_pattern p("activate -> expression");
  const auto x = p.any<matrix_value>();
  const auto y = p.op<activate_op>(x);
  p.becomes(
      y,
      [=](const pattern_match& m) -> std::optional<expression_op<Row>> {
        const gemm_activation is = m[y].activation;
        if (is == gemm_activation::gelu) return std::nullopt;
        const element_function f = is == gemm_activation::none      ? element_function::copy
                                   : is == gemm_activation::relu    ? element_function::relu
                                   : is == gemm_activation::sigmoid ? element_function::sigmoid
                                                                    : element_function::gelu_tanh;
        return one_step<Row>({f, matrix_operand(0)});
      },
      p.list(x), no_rows<Row>());
  return p;
}

/// The steps of an expression, with its operands at other places: at(operand).
template <class At>
void append_steps(const std::vector<element_step>& from, const At& at, std::vector<element_step>& to) {
  for (element_step step : from) {
    step.a = at(step.a);
    step.b = at(step.b);
    to.push_back(step);
  }
}

/// outer([before, inner(matrices, rows), after], more rows) -> one of both.
template <class Row>
step_pattern join_pattern() {
  using expression = expression_op<Row>;
  using from = element_operand::from;
  step_pattern p("expression of an expression");
  const auto before = p.any_list<matrix_value>(), matrices = p.any_list<matrix_value>(),
             after = p.any_list<matrix_value>();
  const auto rows = p.reads_list<Row>(), more = p.reads_list<Row>();
  const auto inner = p.op<expression>(matrices, rows);
  const auto outer = p.op<expression>(p.list(before, inner, after), more);
  const auto all = p.list(before, matrices, after).once();
  const auto all_rows = p.list(rows, more).once();
  p.becomes(
      outer,
      [=](const pattern_match& m) {
        const std::vector<index_t> matrix = m.places(all), row = m.places(all_rows);
        const auto size = [&](const auto& list) { return static_cast<index_t>(m.places(list).size()); };
        const index_t first = size(before), count = size(matrices), inner_rows = size(rows);
        const auto made = static_cast<index_t>(m[inner].steps().size());
        const auto place = [](const std::vector<index_t>& of, index_t i) {
          return of[static_cast<std::size_t>(i)];
        };
        std::vector<element_step> steps;
        append_steps(
            m[inner].steps(),
            [&](element_operand o) {
              if (o.of == from::matrix) o.at = place(matrix, first + o.at);
              if (o.of == from::row) o.at = place(row, o.at);
              return o;
            },
            steps);
        append_steps(
            m[outer].steps(),
            [&](element_operand o) {
              if (o.of == from::step) return element_operand{from::step, made + o.at};
              if (o.of == from::row) return element_operand{from::row, place(row, inner_rows + o.at)};
              if (o.at == first) return element_operand{from::step, made - 1};
              return matrix_operand(place(matrix, o.at < first ? o.at : o.at + count - 1));
            },
            steps);
        return expression(std::move(steps));
      },
      all, all_rows);
  return p;
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
