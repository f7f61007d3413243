// The cross layer against loops in double on every ISA, and its gradients against differences.

#include <deeprec/dense/interactions/cross_layer.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "dense/differences.hpp"
#include "dense/support.hpp"
#include "support/isas.hpp"

using namespace deeprec;
using namespace dense_test;
using deeprec_test::on;
using deeprec_test::runnable_isas;

namespace {

using doubles = std::vector<double>;
constexpr double u = 0x1p-24;

/// One layer: what goes in, and what comes out, which begins as sentinels.
struct layer {
  layer(index_t batch, index_t width)
      : x0(batch, width, 1),
        x(batch, width, 2, 3),
        w(width, width, 1),
        b(1, width),
        dy(batch, width, 3),
        product(batch, width, 2),
        y(batch, width, 1),
        dp(batch, width, 1),
        dw(width, width, 2),
        db(1, width, 1),
        dx0(batch, width, 1, 1),
        dx(batch, width, 3) {}
  void fill(std::mt19937_64& random) {
    for (matrix* m : {&x0, &x, &w, &b, &dy, &dx0}) m->fill(random);
  }
  template <class Context>
  status forward(const Context& ctx, bool biased = true) {
    return cross_layer_forward(ctx, std::as_const(x0).view(), x.view(), w.view(),
                               biased ? std::as_const(b).view() : matrix_view<const float>(), product.view(),
                               y.view());
  }
  template <class Context>
  status backward(const Context& ctx) {
    return cross_layer_backward(ctx, std::as_const(x0).view(), x.view(), product.view(), dy.view(), w.view(),
                                {dp.view(), dw.view(), db.view(), dx0.view(), dx.view()});
  }
  std::vector<const matrix*> results() const { return {&product, &y, &dp, &dw, &db, &dx0, &dx}; }

  matrix x0, x, w, b, dy, product, y, dp, dw, db, dx0, dx;
};

/// A sum in double, and the sum of absolute values.
struct sum_of {
  double value = 0, size = 0;
  void add(double x) { value += x, size += std::fabs(x); }
};

double number(const matrix& m, index_t i, index_t j) { return static_cast<double>(m(i, j)); }

index_t wrong(float got, double exact, double bound) {
  return std::fabs(static_cast<double>(got) - exact) <= 1.001 * bound + 1e-37 ? 0 : 1;
}

index_t wrong_outputs(const layer& l, bool biased) {
  const index_t batch = l.x.rows, width = l.x.columns;
  index_t count = 0;
  for (index_t i = 0; i < batch; ++i) {
    for (index_t j = 0; j < width; ++j) {
      sum_of product;
      for (index_t k = 0; k < width; ++k) product.add(number(l.x, i, k) * number(l.w, j, k));
      if (biased) product.add(number(l.b, 0, j));
      const double error = static_cast<double>(width + 4) * u * product.size;
      const double x0 = number(l.x0, i, j), x = number(l.x, i, j);
      count += wrong(l.product(i, j), product.value, error);
      const double crossed = std::fabs(x0 * product.value);
      count += wrong(l.y(i, j), x0 * product.value + x,
                     std::fabs(x0) * error + 2 * u * crossed + u * std::fabs(x));
    }
  }
  return count;
}

// `before`: the gradient of x0 before the call.
index_t wrong_gradients(const layer& l, const matrix& before) {
  const index_t batch = l.x.rows, width = l.x.columns;
  index_t count = 0;
  const auto dp = [&](index_t i, index_t j) { return number(l.dy, i, j) * number(l.x0, i, j); };
  for (index_t i = 0; i < batch; ++i) {
    for (index_t j = 0; j < width; ++j) {
      count += wrong(l.dp(i, j), dp(i, j), u * std::fabs(dp(i, j)));
      const double to_x0 = number(l.dy, i, j) * number(l.product, i, j), old = number(before, i, j);
      count += wrong(l.dx0(i, j), old + to_x0, 2 * u * std::fabs(to_x0) + u * std::fabs(old));
      sum_of to_x;
      to_x.add(number(l.dy, i, j));
      for (index_t k = 0; k < width; ++k) to_x.add(dp(i, k) * number(l.w, k, j));
      count += wrong(l.dx(i, j), to_x.value, static_cast<double>(width + 5) * u * to_x.size);
    }
  }
  for (index_t j = 0; j < width; ++j) {
    sum_of to_b;
    for (index_t i = 0; i < batch; ++i) to_b.add(dp(i, j));
    count += wrong(l.db(0, j), to_b.value, (65 + static_cast<double>(batch) / 64) * u * to_b.size);
    for (index_t k = 0; k < width; ++k) {
      sum_of to_w;
      for (index_t i = 0; i < batch; ++i) to_w.add(dp(i, j) * number(l.x, i, k));
      count += wrong(l.dw(j, k), to_w.value, static_cast<double>(batch + 4) * u * to_w.size);
    }
  }
  return count;
}

}  // namespace

TEST_CASE("cross layer: agrees with loops in double on every ISA, in any stride") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  for (const index_t batch : {0, 1, 3, 33}) {
    for (const index_t width : {1, 2, 7, 16, 31, 65}) {
      layer given(batch, width);
      given.fill(random);
      const matrix before = given.dx0;
      for (const isa which : runnable_isas()) {
        CAPTURE(batch);
        CAPTURE(width);
        CAPTURE(to_string(which));
        layer l(batch, width);
        l = given;
        REQUIRE(l.forward(on(here, which), false).ok());
        CHECK(wrong_outputs(l, false) == 0);
        REQUIRE(l.forward(on(here, which)).ok());
        CHECK(wrong_outputs(l, true) == 0);
        REQUIRE(l.backward(on(here, which)).ok());
        CHECK(wrong_gradients(l, before) == 0);
        for (const matrix* m : l.results()) CHECK(m->padding_untouched());
        if (batch > 0) {  // the checks can fail
          CHECK(wrong_outputs(l, false) > 0);
          CHECK(wrong_gradients(l, l.dx0) > 0);
        }
      }
    }
  }
}

TEST_CASE("cross layer: gradients of a stack are those of its outputs") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  const index_t batch = 3, width = 4;
  layer first(batch, width), second(batch, width);
  first.fill(random), second.fill(random);
  first.x.copy(first.x0);
  second.x0.copy(first.x0);
  REQUIRE(first.forward(here).ok());
  second.x.copy(first.y);
  REQUIRE(second.forward(here).ok());

  matrix to_x0(batch, width);
  for (index_t i = 0; i < batch; ++i) {
    for (index_t j = 0; j < width; ++j) to_x0(i, j) = 0;
  }
  second.dx0.copy(to_x0);
  REQUIRE(second.backward(here).ok());
  first.dy.copy(second.dx);
  to_x0.copy(second.dx0);
  // The first layer: x is x0, and one matrix receives both gradients; it may lose its product.
  REQUIRE(cross_layer_backward(
              here, first.x0.view(), first.x0.view(), first.product.view(), first.dy.view(), first.w.view(),
              {first.product.view(), first.dw.view(), first.db.view(), to_x0.view(), to_x0.view()})
              .ok());

  doubles x0 = doubles_of(first.x0.view()), w1 = doubles_of(first.w.view()), b1 = doubles_of(first.b.view());
  doubles w2 = doubles_of(second.w.view()), b2 = doubles_of(second.b.view());
  const doubles dy = doubles_of(second.dy.view());
  const auto crossed = [&](const doubles& x, const doubles& w, const doubles& b) {
    doubles y(x.size());
    for (std::size_t i = 0; i < y.size(); ++i) {
      const std::size_t row = i / b.size() * b.size(), j = i % b.size();
      double product = b[j];
      for (std::size_t k = 0; k < b.size(); ++k) product += x[row + k] * w[j * b.size() + k];
      y[i] = x0[i] * product + x[i];
    }
    return y;
  };
  const auto f = [&] {
    const doubles y = crossed(crossed(x0, w1, b1), w2, b2);
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
    return sum;
  };
  CHECK(difference_error(to_x0.view(), x0, f) < small_difference);
  CHECK(difference_error(first.dw.view(), w1, f) < small_difference);
  CHECK(difference_error(first.db.view(), b1, f) < small_difference);
  CHECK(difference_error(second.dw.view(), w2, f) < small_difference);
  CHECK(difference_error(second.db.view(), b2, f) < small_difference);
  to_x0(0, 0) -= second.dx0(0, 0);  // the check can fail: a layer that contributes nothing to x0
  CHECK(difference_error(to_x0.view(), x0, f) > small_difference);
}

TEST_CASE("cross layer: in place, and without the gradients of the parameters") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  const index_t batch = 5, width = 9;
  layer given(batch, width);
  given.fill(random);
  layer l(batch, width);
  l = given;
  REQUIRE(l.forward(here).ok());
  for (matrix* at : {&l.dp, &l.dx}) {  // product and output in one matrix
    REQUIRE(cross_layer_forward(here, l.x0.view(), l.x.view(), l.w.view(), l.b.view(), at->view(), at->view())
                .ok());
    CHECK(same_bits(*at, l.y));
  }
  layer over(batch, width);
  over = given;
  REQUIRE(cross_layer_forward(here, over.x0.view(), over.x.view(), over.w.view(), over.b.view(),
                              over.product.view(), over.x.view())
              .ok());
  CHECK(same_bits(over.x, l.y));

  REQUIRE(l.backward(here).ok());
  over = given;
  REQUIRE(over.forward(here).ok());
  REQUIRE(cross_layer_backward(here, over.x0.view(), over.x.view(), over.product.view(), over.dy.view(),
                               over.w.view(), {over.product.view(), {}, {}, over.dx0.view(), over.dy.view()})
              .ok());
  CHECK(same_bits(over.dy, l.dx));
  CHECK(same_bits(over.dx0, l.dx0));
  CHECK(over.dw(0, 0) == matrix::sentinel);
}

TEST_CASE("cross layer: the same bits for any number of threads") {
  std::mt19937_64 random(deeprec_test::seed());
  layer given(300, 40);
  given.fill(random);
  const auto run = [&](auto& executor) {
    layer l(300, 40);
    l = given;
    REQUIRE(l.forward(context(executor)).ok());
    REQUIRE(l.backward(context(executor)).ok());
    return l;
  };
  inline_executor here;
  const layer expected = run(here);
  for (const int threads : thread_counts) {
    scrambled_threads crew(threads);
    const layer got = run(crew);
    for (std::size_t i = 0; i < got.results().size(); ++i) {
      CHECK(same_bits(*expected.results()[i], *got.results()[i]));
    }
  }
}

TEST_CASE("cross layer: wrong shapes are named, and nothing is written") {
  inline_executor here;
  const std::pair<matrix layer::*, const char*> forward[] = {{&layer::x, "forward: x must be (B,D)"},
                                                             {&layer::w, "forward: weights must be (D,D)"},
                                                             {&layer::b, "forward: bias must be (1,D)"},
                                                             {&layer::product, "forward: product must be"},
                                                             {&layer::y, "forward: output must be (B,D)"}};
  const std::pair<matrix layer::*, const char*> backward[] = {
      {&layer::x, "backward: x must be (B,D)"},
      {&layer::product, "backward: product must be (B,D)"},
      {&layer::dy, "backward: output_gradient must be (B,D)"},
      {&layer::w, "backward: weights must be (D,D)"},
      {&layer::dp, "backward: gradients.product must be (B,D)"},
      {&layer::dw, "backward: gradients.weights must be (D,D)"},
      {&layer::db, "backward: gradients.bias must be (1,D)"},
      {&layer::dx0, "backward: gradients.x0 must be (B,D)"},
      {&layer::dx, "backward: gradients.x must be (B,D)"}};
  const auto check = [&](const auto& cases, const auto& call) {
    for (const auto& [member, text] : cases) {
      layer l(3, 4);
      (l.*member).columns = 3;
      const status s = call(l);
      CHECK(s.code() == errc::shape_mismatch);
      CHECK_MESSAGE(s.message().find(std::string("cross_layer_") + text) != std::string::npos, s.message());
      for (const matrix* m : l.results()) {
        for (const float x : m->storage) CHECK(x == matrix::sentinel);
      }
    }
  };
  check(forward, [&](layer& l) { return l.forward(here); });
  check(backward, [&](layer& l) { return l.backward(here); });
  layer l(3, 4);
  l.x0.stride = 2;
  CHECK(l.forward(here).message().find("cross_layer_forward: x0 must be") != std::string::npos);
  CHECK(l.backward(here).message().find("cross_layer_backward: x0 must be") != std::string::npos);
}

TEST_CASE("cross layer: the example of its documentation") {
  thread_pool pool(2);
  //! [cross_layer]
  const std::vector<float> x{1, 2}, w{1, 0, 1, 1}, b{0, 1};  // one sample, D = 2; x0 is x
  std::vector<float> product(2), y(2);
  const matrix_view<const float> inputs(x.data(), 1, 2), weights(w.data(), 2, 2), bias(b.data(), 1, 2);
  const matrix_view<float> kept(product.data(), 1, 2);
  cross_layer_forward(pool, inputs, inputs, weights, bias, kept, matrix_view<float>(y.data(), 1, 2))
      .or_throw();  // product 1 4, y 2 10
  //! [cross_layer]
  CHECK(product == std::vector<float>{1, 4});
  CHECK(y == std::vector<float>{2, 10});
  //! [cross_layer_backward]
  const std::vector<float> dy{1, 10};
  std::vector<float> dw(4), db(2), dx(2);  // dx begins at 0 and receives the gradients of x0 and x
  const matrix_view<float> to_x(dx.data(), 1, 2);
  cross_layer_backward(pool, inputs, inputs, kept, matrix_view<const float>(dy.data(), 1, 2), weights,
                       {.product = kept,
                        .weights = matrix_view<float>(dw.data(), 2, 2),
                        .bias = matrix_view<float>(db.data(), 1, 2),
                        .x0 = to_x,
                        .x = to_x})
      .or_throw();
  //! [cross_layer_backward]
  CHECK(db == std::vector<float>{1, 20});
  CHECK(dw == std::vector<float>{1, 2, 20, 40});
  CHECK(dx == std::vector<float>{23, 70});
}
