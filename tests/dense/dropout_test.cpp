#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include <deeprec/core/random.hpp>
#include <deeprec/core/rounding.hpp>
#include <deeprec/dense/layers/dropout.hpp>
#include <deeprec/dense/layers/mlp.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/sgd.hpp>

#include "dense/differences.hpp"
#include "dense/support.hpp"

using namespace dense_test;
using namespace deeprec;

namespace {

using doubles = std::vector<double>;

const std::vector<index_t> sizes = {6, 70, 9, 2};  // a hidden layer of more than 64 columns

mlp<> make_stack(mlp_precision precision = {}) {
  mlp<> made(sizes, mlp_output::linear, counter_rng(3), weight_init::he, 0, std::pmr::get_default_resource(),
             precision);
  for (int l = 0; l < made.layers(); ++l) {
    for (index_t j = 0; j < made.bias(l).extent(1); ++j)
      made.writable_bias(l)(0, j) = 0.1F * static_cast<float>(j % 3) - 0.05F;
  }
  made.weights_settled();
  return made;
}

bool keeps(const mlp_dropout& how, int layer, index_t row, index_t column) {
  const rounding::stochastic words{how.seed, static_cast<std::uint64_t>(layer)};
  const std::uint32_t word =
      words.word(static_cast<std::uint64_t>(how.first_row + row), static_cast<std::uint64_t>(column));
  return static_cast<double>(word) >= static_cast<double>(how.rate) * 0x1p32;
}

/// The output of the stack with these parameters, in plain loops in double.
doubles oracle(const doubles& parameters, const doubles& x, index_t batch, const mlp_dropout& how) {
  doubles in = x;
  const double* next = parameters.data();
  const auto layers = static_cast<int>(sizes.size()) - 1;
  for (int l = 0; l < layers; ++l) {
    const index_t width = sizes[static_cast<std::size_t>(l)], out = sizes[static_cast<std::size_t>(l) + 1];
    const double *weights = next, *bias = next + width * out;
    next = bias + out;
    doubles y;
    for (index_t i = 0; i < batch; ++i) {
      for (index_t o = 0; o < out; ++o) {
        double sum = bias[o];
        for (index_t p = 0; p < width; ++p)
          sum += in[static_cast<std::size_t>(i * width + p)] * weights[o * width + p];
        if (l + 1 < layers) {
          sum = sum < 0 || !keeps(how, l, i, o) ? 0 : sum / (1 - static_cast<double>(how.rate));
        }
        y.push_back(sum);
      }
    }
    in = y;
  }
  return in;
}

double weighted(const doubles& values, const doubles& weights) {
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) sum += values[i] * weights[i];
  return sum;
}

/// The largest difference of two elements, over the largest element.
double distance(matrix_view<const float> a, matrix_view<const float> b) {
  REQUIRE(a.extent(0) == b.extent(0));
  REQUIRE(a.extent(1) == b.extent(1));
  double worst = 0, scale = 0;
  for (index_t i = 0; i < a.extent(0); ++i) {
    for (index_t j = 0; j < a.extent(1); ++j) {
      worst = std::max(worst, static_cast<double>(std::abs(a(i, j) - b(i, j))));
      scale = std::max(scale, static_cast<double>(std::abs(b(i, j))));
    }
  }
  return worst / scale;
}

struct passed {
  std::vector<matrix> hidden;
  matrix output, input_gradient, gradients;
};

template <class Executor>
passed run(Executor& on, const mlp<>& stack, mlp_pass& pass, matrix_view<const float> x,
           matrix_view<const float> slope) {
  stack.forward(on, pass, x).or_throw();
  passed made{{}, matrix(x.extent(0), 2), matrix(x.extent(0), 6), matrix(1, stack.parameters().extent(1))};
  const auto copy = [](matrix& to, const auto& from) {
    for (index_t i = 0; i < from.extent(0); ++i) {
      for (index_t j = 0; j < from.extent(1); ++j) to(i, j) = static_cast<float>(from(i, j));
    }
  };
  pass.for_each_hidden([&](int, const auto& y) {
    made.hidden.emplace_back(y.extent(0), y.extent(1));
    copy(made.hidden.back(), y);
  });
  stack.backward(on, pass, slope).or_throw();
  copy(made.output, pass.output());
  copy(made.input_gradient, pass.input_gradient());
  copy(made.gradients, pass.gradients());
  return made;
}

}  // namespace

TEST_CASE("dropout: outputs and gradients of a stack agree with plain loops and their differences") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  const mlp<> stack = make_stack();
  const index_t batch = 5;
  matrix x(batch, 6), slope(batch, 2);
  x.fill(random);
  slope.fill(random);
  for (const float rate : {0.0F, 0.25F, 0.9F}) {
    const mlp_dropout how{.rate = rate, .seed = 17, .first_row = 100};
    mlp_pass pass = stack.make_pass();
    REQUIRE(set_dropout(pass, how).ok());
    const passed made = run(here, stack, pass, x.view(), slope.view());
    doubles parameters = doubles_of(stack.parameters()), xs = doubles_of(x.view());
    const doubles slopes = doubles_of(slope.view());
    const auto f = [&] { return weighted(oracle(parameters, xs, batch, how), slopes); };
    const doubles expected = oracle(parameters, xs, batch, how);
    for (index_t i = 0; i < batch; ++i) {
      for (index_t j = 0; j < 2; ++j) {
        CHECK(static_cast<double>(made.output(i, j)) ==
              doctest::Approx(expected[static_cast<std::size_t>(i * 2 + j)]).epsilon(1e-4));
      }
    }
    CHECK(difference_error(made.gradients.view(), parameters, f) < small_difference);
    CHECK(difference_error(made.input_gradient.view(), xs, f) < small_difference);
  }
}

TEST_CASE("dropout: what is dropped is known by its place, in all of a batch as in its parts") {
  std::mt19937_64 random(deeprec_test::seed());
  thread_pool three(3);
  inline_executor here;
  for (const gemm_storage hidden : {gemm_storage::f32, gemm_storage::bf16}) {
    const mlp<> stack = make_stack({.hidden = hidden});
    const index_t batch = 64, cut = 23;
    matrix x(batch, 6), slope(batch, 2);
    x.fill(random);
    slope.fill(random);
    mlp_dropout how{.rate = 0.3F, .seed = 5};
    mlp_pass whole = stack.make_pass(), plain = stack.make_pass(), part = stack.make_pass();
    REQUIRE(set_dropout(whole, how).ok());
    const passed all = run(three, stack, whole, x.view(), slope.view());
    const passed alone = run(here, stack, whole, x.view(), slope.view());
    CHECK(same_bits(all.output, alone.output));
    CHECK(same_bits(all.gradients, alone.gradients));
    CHECK(same_bits(all.input_gradient, alone.input_gradient));

    const passed without = run(here, stack, plain, x.view(), slope.view());
    index_t kept = 0, dropped = 0;
    for (index_t i = 0; i < batch; ++i) {
      for (index_t j = 0; j < 70; ++j) {
        const float y = all.hidden[0](i, j), full = without.hidden[0](i, j);
        if (!keeps(how, 0, i, j)) {
          REQUIRE(y == 0.0F);
          ++dropped;
        } else if (hidden == gemm_storage::f32) {
          REQUIRE(y == full * (1.0F / (1.0F - how.rate)));
          ++kept;
        } else {
          REQUIRE((y > 0) == (full > 0));
          ++kept;
        }
      }
    }
    CHECK(dropped > kept / 4);  // 0.3 of 4480, and 22 standard deviations away
    CHECK(dropped < kept);

    for (const index_t first : {index_t{0}, cut}) {
      const index_t rows = first == 0 ? cut : batch - cut;
      how.first_row = first;
      REQUIRE(set_dropout(part, how).ok());
      const passed some = run(here, stack, part, x.view().rows(first, rows), slope.view().rows(first, rows));
      // A product's rounding depends on the number of rows; what is dropped does not.
      const double bound = hidden == gemm_storage::f32 ? 1e-5 : 0.03;
      for (std::size_t l = 0; l < 2; ++l) {
        CHECK(distance(some.hidden[l].view(), all.hidden[l].view().rows(first, rows)) < bound);
        for (index_t i = 0; i < rows; ++i) {
          for (index_t j = 0; j < some.hidden[l].columns; ++j)
            REQUIRE((keeps(how, static_cast<int>(l), i, j) || some.hidden[l](i, j) == 0.0F));
        }
      }
      CHECK(distance(some.input_gradient.view(), all.input_gradient.view().rows(first, rows)) < bound);
    }
  }
}

TEST_CASE("dropout: a pass that drops nothing has the bits of one that never did") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  const mlp<> stack = make_stack();
  matrix x(8, 6), slope(8, 2);
  x.fill(random);
  slope.fill(random);
  mlp_pass plain = stack.make_pass(), once = stack.make_pass();
  REQUIRE(set_dropout(once, {.rate = 0.5F, .seed = 1}).ok());
  const passed before = run(here, stack, plain, x.view(), slope.view());
  const passed dropped = run(here, stack, once, x.view(), slope.view());
  CHECK_FALSE(same_bits(dropped.output, before.output));
  REQUIRE(set_dropout(once, {.rate = 0.5F, .seed = 2}).ok());
  CHECK_FALSE(same_bits(run(here, stack, once, x.view(), slope.view()).output, dropped.output));
  REQUIRE(set_dropout(once, {}).ok());
  const passed after = run(here, stack, once, x.view(), slope.view());
  CHECK(same_bits(after.output, before.output));
  CHECK(same_bits(after.gradients, before.gradients));
}

TEST_CASE("dropout: a rate outside of [0, 1) and a negative row are refused, and change nothing") {
  inline_executor here;
  const mlp<> stack = make_stack();
  matrix x(2, 6), slope(2, 2);
  x.storage.assign(x.storage.size(), 0.5F);
  slope.storage.assign(slope.storage.size(), 1.0F);
  mlp_pass pass = stack.make_pass();
  const passed before = run(here, stack, pass, x.view(), slope.view());
  for (const float rate : {-0.1F, 1.0F, 2.0F, std::numeric_limits<float>::quiet_NaN()}) {
    const status s = set_dropout(pass, {.rate = rate});
    CHECK(s.code() == errc::invalid_value);
    CHECK(s.message().find("rate") != std::string::npos);
  }
  const status s = set_dropout(pass, {.rate = 0.5F, .first_row = -1});
  CHECK(s.code() == errc::invalid_value);
  CHECK(s.message().find("first_row") != std::string::npos);
  CHECK(same_bits(run(here, stack, pass, x.view(), slope.view()).output, before.output));
}
