// The fusions of element-wise ops: chains, trees and random graphs of them, with the bits of the ops one by
// one.

#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/graph/ops/element_fusions.hpp>
#include <deeprec/graph/ops/element_ops.hpp>
#include <deeprec/graph/ops/expression_op.hpp>
#include <deeprec/graph/ops/matrix_value.hpp>
#include <deeprec/graph/step/describe_graph.hpp>
#include <deeprec/graph/step/fusion/fuse.hpp>
#include <deeprec/graph/step/lane_steps.hpp>
#include <deeprec/graph/step/step_program.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "support/matrix_graphs.hpp"
#include "support/sanitizers.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

using row_type = matrix_view<float>;

/// Matrices of one shape, and rows, that ops read.
struct element_world {
  index_t rows, columns;
  std::vector<float> numbers, row_numbers;
  std::vector<row_type> views;
  step_graph g{};
  std::vector<value<matrix_value>> matrices{};
  std::vector<variable<row_type>> row_variables{};

  element_world(std::mt19937_64& random, index_t r, index_t c, index_t matrix_count = 3,
                index_t row_count = 2)
      : rows(r), columns(c) {
    std::uniform_real_distribution<float> draw(-3, 3);
    const auto fill = [&](std::vector<float>& to, index_t n) {
      for (index_t i = 0; i < n; ++i) to.push_back(draw(random));
    };
    fill(numbers, matrix_count * (rows * columns + columns));
    fill(row_numbers, row_count * columns);
    for (std::size_t i = 0; i < numbers.size(); i += 97)
      numbers[i] = std::array{0.0F, -0.0F, std::numeric_limits<float>::infinity(), -1e30F}[i / 97 % 4];
    const auto batch = g.source<index_t>("read", [](index_t& i) { return i = 0, true; });
    for (index_t m = 0; m < matrix_count; ++m) {
      // Every other one is not dense.
      const index_t stride = m % 2 == 0 ? columns : columns + (rows > 1 ? 1 : 0);
      matrices.push_back(g.add<matrix_value>(
          "x" + std::to_string(m),
          [this, m, stride](const index_t&, matrix_value& to) {
            to.refer(matrix_view<const float>(numbers.data() + m * (rows * columns + columns), rows, columns,
                                              stride));
          },
          batch));
    }
    for (index_t i = 0; i < row_count; ++i) views.emplace_back(row_numbers.data() + i * columns, 1, columns);
    for (row_type& v : views) row_variables.push_back(g.variable("row", v));
  }
  element_world(const element_world&) = delete;
  element_world& operator=(const element_world&) = delete;
};

/// Ops of elements, each of values before it.
value<matrix_value> add_random_op(std::mt19937_64& random, step_graph& g, const std::string& name,
                                  const std::vector<value<matrix_value>>& values,
                                  const std::vector<variable<row_type>>& rows) {
  const auto any = [&](const auto& of) { return of[random() % of.size()]; };
  // Mostly the last one and a matrix that is read, so that there are large trees.
  const auto x = random() % 4 != 0 ? values.back() : any(values);
  const auto y = random() % 3 != 0 ? values[random() % 3] : any(values);
  const float by = static_cast<float>(random() % 9) / 4 - 1;
  switch (random() % 18) {
    case 0:
    case 1:
      return g.add(name, add_op{}, x, y);
    case 2:
      return g.add(name, subtract_op{}, y, x);
    case 3:
    case 4:
      return g.add(name, multiply_op{}, x, y);
    case 5:
      return g.add(name, divide_op{}, x, y);
    case 6:
      return g.add(name, add_row_op<>{}, x, g.read(any(rows)));
    case 7:
      return g.add(name, subtract_row_op<>{}, x, g.read(any(rows)));
    case 8:
      return g.add(name, multiply_row_op<>{}, x, g.read(any(rows)));
    case 9:
      return g.add(name, divide_row_op<>{}, x, g.read(any(rows)));
    case 10:
      return g.add(name, scale_op{by}, x);
    case 11:
      return g.add(name, shift_op{by}, x);
    case 12:
      return g.add(name, subtract_from_op{by}, x);
    case 13:
      return g.add(name, tanh_op{}, x);
    case 14:
      return random() % 2 == 0 ? value<matrix_value>(g.add(name, exp_op{}, x)) : g.add(name, sqrt_op{}, x);
    case 15:
      return random() % 2 == 0 ? value<matrix_value>(g.add(name, abs_op{}, x)) : g.add(name, square_op{}, x);
    default:
      return g.add(name,
                   activate_op{std::array{gemm_activation::relu, gemm_activation::sigmoid,
                                          gemm_activation::gelu_tanh, gemm_activation::none}[random() % 4]},
                   x);
  }
}

}  // namespace

TEST_CASE("element_fusions: a tree becomes one expression with its steps, with the bits of its ops") {
  std::mt19937_64 random(deeprec_test::seed());
  for (const auto& [rows, columns] :
       {std::pair<index_t, index_t>{1, 1}, {3, 5}, {37, 129}, {2, 9000}, {700, 33}}) {
    element_world w(random, rows, columns);
    step_graph& g = w.g;
    const auto sum = g.add("sum", add_op{}, w.matrices[0], w.matrices[1]);
    const auto gate = g.add("gate", activate_op{gemm_activation::sigmoid}, sum);
    const auto swish = g.add("swish", multiply_op{}, gate, sum);  // sum twice, in one expression
    const auto scaled = g.add("scaled", multiply_row_op<>{}, swish, g.read(w.row_variables[0]));
    const auto both = g.add("both", add_op{}, scaled, scaled);
    const auto end = g.add("end", subtract_from_op{0.5F}, both);
    g.keep(end);
    const fused_graph made = fuse(g, element_fusions()).or_throw();
    const index_t op = made.moved(end)->op();
    CHECK(made.graph.kind_name(op) == "expression");
    CHECK(made.graph.size() == g.size() - 5);
    REQUIRE(made.graph.attributes(op).size() == 1);
    CHECK(made.graph.attributes(op)[0].value.text() ==
          "0 add x0 x1, 1 sigmoid 0, 2 multiply 1 0, 3 multiply 2 r0, 4 add 3 3, 5 subtract_from 4 0.5");
    CHECK(same_bits(after_step(g, end), after_step(made.graph, *made.moved(end))));
  }
}

TEST_CASE("element_fusions: random graphs of element-wise ops give the bits of the ops one by one") {
  std::mt19937_64 random(deeprec_test::seed() + 1);
  constexpr int rounds = DEEPREC_TEST_SANITIZED ? 20 : 200;
  std::size_t fused = 0, left = 0, most_steps = 0;
  for (int round = 0; round < rounds; ++round) {
    const auto columns = static_cast<index_t>(1 + random() % (round % 8 == 0 ? 5000 : 40));
    element_world w(random, static_cast<index_t>(1 + random() % 30), columns);
    step_graph& g = w.g;
    std::vector<value<matrix_value>> values = w.matrices, kept;
    const auto ops = 2 + random() % 24;
    for (std::uint64_t i = 0; i < ops; ++i) {
      values.push_back(add_random_op(random, g, "op" + std::to_string(i), values, w.row_variables));
      if (i + 1 == ops || random() % 8 == 0) {
        g.keep(values.back());
        kept.push_back(values.back());
      }
    }
    const fused_graph made = fuse(g, element_fusions()).or_throw();
    for (index_t v = 0; v < made.graph.size(); ++v) {
      const auto* expression = made.graph.as<expression_op<>>(v);
      left += expression != nullptr ? 1 : 0;
      if (expression != nullptr) most_steps = std::max(most_steps, expression->steps().size());
    }
    fused += made.fused.size();
    CAPTURE(round);
    for (const value<matrix_value>& v : kept) {
      REQUIRE(made.moved(v).has_value());
      const std::vector<float> one_by_one = after_step(g, v);
      CHECK(same_bits(one_by_one, after_step(made.graph, *made.moved(v))));
      CHECK(same_bits(one_by_one, after_planned_step(made.graph, *made.moved(v))));
      CHECK(same_bits(one_by_one, after_step(made.graph, *made.moved(v), {.samples = by_parts(3)})));
    }
  }
  CHECK(fused > 10 * static_cast<std::size_t>(rounds));
  CHECK(left > static_cast<std::size_t>(rounds));
  CHECK(most_steps >= (DEEPREC_TEST_SANITIZED ? 5 : 10));
}

TEST_CASE("element_fusions: what others read, other roles and GELU with erf end an expression") {
  std::mt19937_64 random(deeprec_test::seed() + 2);
  element_world w(random, 4, 6);
  step_graph& g = w.g;
  const auto sum = g.add("sum", add_op{}, w.matrices[0], w.matrices[1]);
  const auto expressions = [&] {
    const fused_graph made = fuse(g, element_fusions()).or_throw();
    index_t count = 0;
    for (index_t v = 0; v < made.graph.size(); ++v) count += made.graph.kind_name(v) == "expression" ? 1 : 0;
    return count;
  };
  SUBCASE("nobody") {
    g.add("end", tanh_op{}, sum);
    CHECK(expressions() == 1);
  }
  SUBCASE("another op") {
    g.add("end", tanh_op{}, sum);
    g.add<index_t>("reader", [](const matrix_value& m, index_t& out) { out = m.rows(); }, sum);
    CHECK(expressions() == 2);
  }
  SUBCASE("the caller") {
    g.add("end", tanh_op{}, sum);
    g.keep(sum);
    CHECK(expressions() == 2);
  }
  SUBCASE("two expressions") {
    g.add("end", tanh_op{}, sum);
    g.add("other", square_op{}, sum);
    CHECK(expressions() == 3);
  }
  SUBCASE("a role") {
    g.add("end", tanh_op{}, sum).role(op_role::gradient);
    CHECK(expressions() == 2);
  }
  SUBCASE("GELU with erf") {
    g.add("end", activate_op{gemm_activation::gelu}, sum);
    CHECK(expressions() == 1);
  }
}

TEST_CASE("element ops: shapes that do not fit are refused by name") {
  std::vector<float> numbers(24), row_numbers(4);
  row_type row(row_numbers.data(), 1, 4);
  step_graph g;
  const auto rv = g.variable("row", row);
  const auto x = g.source<matrix_value>(
      "read", [&](matrix_value& to) { return to.refer({numbers.data(), 2, 3}), true; });
  const auto other = g.add<matrix_value>(
      "other", [&](const matrix_value&, matrix_value& to) { to.refer({numbers.data(), 2, 4}); }, x);
  const auto refuses = [&](const std::string& words, bool fused_as_well = true) {
    for (const bool fused : {false, true}) {
      if (fused && !fused_as_well) continue;
      const fused_graph made = fuse(g, fused ? element_fusions() : std::vector<step_pattern>()).or_throw();
      const step_program program = step_program::compile(made.graph).or_throw();
      step_state state = program.make_state();
      const result<bool> ran = program.run(inline_executor{}, state);
      REQUIRE(!ran);
      CAPTURE(ran.message());
      CHECK(ran.code() == errc::shape_mismatch);
      CHECK(ran.message().find(fused ? "expression: " : words) != std::string::npos);
    }
  };
  SUBCASE("two matrices") {
    g.add("sum", add_op{}, x, other);
    refuses("add: both matrices must have one shape");
  }
  SUBCASE("a row") {
    g.add("scaled", multiply_row_op<>{}, x, g.read(rv));
    refuses("multiply_row: the row must be (1,D), with the columns of x");
  }
  SUBCASE("deep in a tree") {
    g.add("end", square_op{}, g.add("sum", subtract_op{}, g.add("tanh", tanh_op{}, x), other));
    refuses("subtract: both matrices must have one shape");
  }
  SUBCASE("statistics") {
    g.add("normalized", normalize_op<>{}, x, g.read(rv), g.read(rv));
    refuses("normalize: mean and variance must be (1,D)", false);
  }
  SUBCASE("of Dice") {
    g.add("dice", dice_op<>{}, x, g.read(rv), g.read(rv), g.read(rv));
    refuses("dice: mean, variance and alpha must be (1,D)", false);
  }
}

TEST_CASE("dice_fusions: normalize, sigmoid and the two products become one op") {
  std::mt19937_64 random(deeprec_test::seed() + 3);
  std::uniform_real_distribution<float> draw(-3, 3);
  for (const index_t columns : {1, 16, 37}) {
    const index_t rows = 29;
    std::vector<float> numbers, statistics;
    for (index_t i = 0; i < rows * columns; ++i) numbers.push_back(draw(random));
    for (index_t i = 0; i < 3 * columns; ++i)
      statistics.push_back(i / columns == 1 ? std::abs(draw(random)) : draw(random));
    row_type mean(statistics.data(), 1, columns), variance(statistics.data() + columns, 1, columns),
        alpha(statistics.data() + 2 * columns, 1, columns);
    for (int form = 0; form < 4; ++form) {
      step_graph g;
      const auto mv = g.variable("mean", mean), vv = g.variable("variance", variance),
                 av = g.variable("alpha", alpha);
      const auto x = g.source<matrix_value>(
          "read", [&](matrix_value& to) { return to.refer({numbers.data(), rows, columns}), true; });
      const auto u = g.add("u", normalize_op<>{1e-5F}, x, g.read(mv), g.read(vv));
      const auto p = g.add("p", activate_op{gemm_activation::sigmoid}, u);
      const auto q = g.add("q", subtract_from_op{form == 3 ? 2.0F : 1.0F}, p);
      const auto px = form == 1 ? g.add("px", multiply_op{}, x, p) : g.add("px", multiply_op{}, p, x);
      const auto second =
          form == 2 ? g.add("second", multiply_op{}, q, g.add("ax", multiply_row_op<>{}, x, g.read(av)))
                    : g.add("second", multiply_op{}, g.add("aq", multiply_row_op<>{}, q, g.read(av)), x);
      const auto y = form == 1 ? g.add("y", add_op{}, second, px) : g.add("y", add_op{}, px, second);
      g.keep(y);
      std::vector<step_pattern> patterns = dice_fusions();
      const fused_graph made = fuse(g, patterns).or_throw();
      if (form == 3) {  // 2 - p
        CHECK(made.fused.empty());
        continue;
      }
      REQUIRE(made.fused.size() == 1);
      CHECK(made.graph.kind_name(made.moved(y)->op()) == "dice");
      CHECK(made.graph.size() == 5);
      const std::vector<float> one_by_one = after_step(g, y), fused = after_step(made.graph, *made.moved(y));
      if (form != 2) {
        CHECK(same_bits(one_by_one, fused));
      } else {
        for (std::size_t i = 0; i < fused.size(); ++i) {
          const float a = alpha(0, static_cast<index_t>(i) % columns),
                      size = std::abs(numbers[i]) * (1 + std::abs(a));
          CHECK(std::abs(fused[i] - one_by_one[i]) <= 0x1p-21F * size);
        }
      }
      // Whatever else element_fusions() finds.
      for (step_pattern& pattern : element_fusions()) patterns.push_back(pattern);
      const fused_graph all = fuse(g, patterns).or_throw();
      CHECK(all.graph.kind_name(all.moved(y)->op()) == "dice");
      // An interior value that is kept.
      g.keep(p);
      CHECK(fuse(g, dice_fusions()).or_throw().fused.empty());
    }
  }
}
