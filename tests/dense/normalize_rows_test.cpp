// Normalised rows against loops in double: every ISA, widths around the vectors.

#include <deeprec/dense/layers/normalize_rows.hpp>
#include <deeprec/exec/inline_executor.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "dense/support.hpp"
#include "support/isas.hpp"

using namespace deeprec;
using namespace dense_test;
using deeprec_test::on;
using deeprec_test::runnable_isas;

namespace {

constexpr double u = 0x1p-24;
constexpr index_t widths[] = {0, 1, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 64, 100, 129};

double norm_of(const std::vector<double>& x) {
  double squares = 0;
  for (const double v : x) squares += v * v;
  return std::sqrt(squares);
}
/// The dot product of the normalised row and r: its gradient with respect to x is that of the verb.
double through_norm(const std::vector<double>& x, const matrix& r, index_t row, double epsilon) {
  const double norm = std::max(norm_of(x), epsilon);
  double sum = 0;
  for (std::size_t j = 0; j < x.size(); ++j) {
    sum += x[j] / norm * static_cast<double>(r(row, static_cast<index_t>(j)));
  }
  return sum;
}
std::vector<double> row_of(const matrix& m, index_t i) {
  std::vector<double> x;
  for (index_t j = 0; j < m.columns; ++j) x.push_back(static_cast<double>(m(i, j)));
  return x;
}

/// The largest distance from central differences, over the largest of these.
double gradient_error(const matrix& gradient, const matrix& x, const matrix& r, double epsilon) {
  double worst = 0, scale = 1e-30;
  for (index_t i = 0; i < x.rows; ++i) {
    std::vector<double> at = row_of(x, i);
    const double h = 1e-6 * norm_of(at);
    for (std::size_t j = 0; j < at.size(); ++j) {
      const double kept = at[j];
      at[j] = kept + h;
      const double up = through_norm(at, r, i, epsilon);
      at[j] = kept - h;
      const double slope = (up - through_norm(at, r, i, epsilon)) / (2 * h);
      at[j] = kept;
      scale = std::max(scale, std::fabs(slope));
      worst = std::max(worst, std::fabs(static_cast<double>(gradient(i, static_cast<index_t>(j))) - slope));
    }
  }
  return worst / scale;
}

}  // namespace

TEST_CASE("normalize rows: within their bounds of loops in double, on every ISA, in any stride and size") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  for (const index_t width : widths) {
    for (const float size :
         {1.0F, 1e-11F, 1e-30F, 1e30F}) {  // the squares of 1e-30 are 0, those of 1e30 infinite
      matrix x(3, width, 2, 1), dy(3, width, 1);
      x.fill(random, size);
      dy.fill(random);
      for (const isa which : runnable_isas()) {
        CAPTURE(width);
        CAPTURE(size);
        CAPTURE(to_string(which));
        matrix y(3, width, 1, 3), dx(3, width, 3);
        std::vector<float> inverse(3);
        const float epsilon = 1e-32F;
        REQUIRE(normalize_rows_forward(on(here, which), x.view(), y.view(), inverse, epsilon).ok());
        REQUIRE(
            normalize_rows_backward(on(here, which), y.view(), inverse, dy.view(), dx.view(), epsilon).ok());
        double worst = 0;  // over the bound
        const auto d = static_cast<double>(width);
        for (index_t i = 0; i < 3; ++i) {
          const double norm = std::max(norm_of(row_of(x, i)), static_cast<double>(epsilon));
          const auto inv = static_cast<double>(inverse[static_cast<std::size_t>(i)]);
          worst = std::max(worst, std::fabs(inv * norm - 1) / ((d / 2 + 4) * u));
          double dot = 0, sizes = 0;
          for (index_t j = 0; j < width; ++j) {
            const double product = static_cast<double>(y(i, j)) * static_cast<double>(dy(i, j));
            dot += product, sizes += std::fabs(product);
          }
          for (index_t j = 0; j < width; ++j) {
            const double expected = static_cast<double>(x(i, j)) / norm;
            const auto at = static_cast<double>(y(i, j)), g = static_cast<double>(dy(i, j));
            worst =
                std::max(worst, std::fabs(at - expected) / ((d / 2 + 4) * u * std::fabs(expected) + 1e-44));
            const double slope = inv * (g - at * dot);
            const double allowed = inv * u * ((d + 4) * std::fabs(at) * sizes + 3 * std::fabs(g));
            worst = std::max(worst, std::fabs(static_cast<double>(dx(i, j)) - slope) / (allowed + 1e-44));
          }
        }
        CHECK(worst <= 1);
        CHECK(y.padding_untouched());
        CHECK(dx.padding_untouched());
      }
    }
  }
}

TEST_CASE("normalize rows: the gradient agrees with central differences, above epsilon and below") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  for (const index_t width : {2, 5, 40}) {
    for (const float epsilon : {1e-12F, 1e3F}) {
      matrix x(4, width), r(4, width), y(4, width), dx(4, width);
      x.fill(random);
      r.fill(random);
      std::vector<float> inverse(4);
      REQUIRE(normalize_rows_forward(here, x.view(), y.view(), inverse, epsilon).ok());
      REQUIRE(normalize_rows_backward(here, y.view(), inverse, r.view(), dx.view(), epsilon).ok());
      CHECK(gradient_error(dx, x, r, static_cast<double>(epsilon)) < 2e-5);
      // The check can fail: a gradient that keeps the part along the row, or loses it below epsilon.
      for (index_t i = 0; i < 4; ++i) {
        double along = 0;
        for (index_t j = 0; j < width; ++j)
          along += static_cast<double>(y(i, j)) * static_cast<double>(r(i, j));
        if (epsilon > 1) along *= 1e6;
        const double factor = along * static_cast<double>(inverse[static_cast<std::size_t>(i)]);
        for (index_t j = 0; j < width; ++j) dx(i, j) += static_cast<float>(factor) * y(i, j);
      }
      CHECK(gradient_error(dx, x, r, static_cast<double>(epsilon)) > 2e-5);
    }
  }
}

TEST_CASE("normalize rows: zeros, NaN, infinities, and in place") {
  inline_executor here;
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  for (const isa which : runnable_isas()) {
    matrix x(4, 3), dy(4, 3);
    const float values[] = {0, 0, 0, 3, nan, 4, 1, inf, 2, 3, 0, 4};
    for (index_t k = 0; k < 12; ++k) x(k / 3, k % 3) = values[k], dy(k / 3, k % 3) = 2;
    std::vector<float> inverse(4);
    REQUIRE(normalize_rows_forward(on(here, which), x.view(), x.view(), inverse, 0.25F).ok());
    REQUIRE(normalize_rows_backward(on(here, which), x.view(), inverse, dy.view(), dy.view(), 0.25F).ok());
    for (index_t j = 0; j < 3; ++j) {
      CHECK(x(0, j) == 0);
      CHECK(dy(0, j) == 8);  // 2 / epsilon
      CHECK(std::isnan(x(1, j)));
      CHECK(std::isnan(dy(1, j)));
    }
    CHECK(inverse[0] == 4);
    CHECK(std::isnan(inverse[1]));
    CHECK(inverse[2] == 0);
    CHECK(x(2, 0) == 0);
    CHECK(std::isnan(x(2, 1)));
    CHECK(x(3, 0) == doctest::Approx(0.6));
    CHECK(inverse[3] == doctest::Approx(0.2));
  }
}

TEST_CASE("normalize rows: the same bits for any number of threads") {
  std::mt19937_64 random(deeprec_test::seed());
  const index_t rows = 3000, width = 70;
  matrix x(rows, width), dy(rows, width);
  x.fill(random);
  dy.fill(random);
  const auto run = [&](auto& executor) {
    matrix y(rows, width), dx(rows, width), inverse(1, rows);
    const array_view<float> norms(&inverse(0, 0), rows);
    REQUIRE(normalize_rows_forward(executor, x.view(), y.view(), norms).ok());
    REQUIRE(normalize_rows_backward(executor, y.view(), norms, dy.view(), dx.view()).ok());
    return std::vector<matrix>{y, dx, inverse};
  };
  inline_executor here;
  const std::vector<matrix> expected = run(here);
  for (const int threads : thread_counts) {
    scrambled_threads crew(threads);
    const std::vector<matrix> got = run(crew);
    for (std::size_t i = 0; i < got.size(); ++i) CHECK(same_bits(expected[i], got[i]));
  }
}

TEST_CASE("normalize rows: wrong shapes are named, and nothing is written") {
  inline_executor here;
  matrix x(2, 4), y(2, 4), wrong(2, 3);
  std::vector<float> inverse(2, matrix::sentinel), few(1);
  const auto names = [](const status& s, const char* what) {
    return !s.ok() && s.message().find(what) != std::string::npos;
  };
  CHECK(
      names(normalize_rows_forward(here, x.view(), wrong.view(), inverse), "forward: output must be (B,D)"));
  CHECK(names(normalize_rows_forward(here, x.view(), y.view(), few), "inverse_norms must be (B)"));
  for (const float bad : {0.0F, -1.0F, 1e-40F, std::nanf(""), std::numeric_limits<float>::infinity()}) {
    CHECK(normalize_rows_forward(here, x.view(), y.view(), inverse, bad).code() == errc::invalid_value);
    CHECK(normalize_rows_backward(here, x.view(), inverse, x.view(), y.view(), bad).code() ==
          errc::invalid_value);
  }
  CHECK(names(normalize_rows_backward(here, x.view(), inverse, wrong.view(), y.view()),
              "output_gradient must"));
  CHECK(
      names(normalize_rows_backward(here, x.view(), inverse, x.view(), wrong.view()), "input_gradient must"));
  CHECK(names(normalize_rows_backward(here, x.view(), few, x.view(), y.view()), "inverse_norms must be (B)"));
  CHECK(y(0, 0) == matrix::sentinel);
  CHECK(inverse[0] == matrix::sentinel);
}

TEST_CASE("normalize rows: the example of its documentation") {
  inline_executor here;
  //! [normalize_rows]
  const std::vector<float> x{3, 4, 0, 2};  // two rows
  std::vector<float> y(4), inverse_norms(2);
  normalize_rows_forward(here, matrix_view(x.data(), 2, 2), matrix_view(y.data(), 2, 2), inverse_norms)
      .or_throw();  // y is 0.6 0.8 | 0 1, the inverse norms 0.2 and 0.5
  //! [normalize_rows]
  CHECK(y[1] == doctest::Approx(0.8));
  CHECK(inverse_norms[1] == 0.5F);
  //! [normalize_rows_backward]
  const std::vector<float> dy{1, 0, 1, 1};
  std::vector<float> dx(4);
  normalize_rows_backward(here, matrix_view(y.data(), 2, 2), inverse_norms, matrix_view(dy.data(), 2, 2),
                          matrix_view(dx.data(), 2, 2))
      .or_throw();  // dx is 0.128 -0.096 | 0.5 0
  //! [normalize_rows_backward]
  CHECK(dx[0] == doctest::Approx(0.128));
  CHECK(dx[1] == doctest::Approx(-0.096));
  CHECK(dx[2] == 0.5F);
}
