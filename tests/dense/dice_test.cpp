// Dice against loops in double: every ISA, widths around the vectors and the panels, batches of many pieces.

#include <deeprec/dense/layers/dice.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
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
using floats = std::vector<float>;
constexpr double u = 0x1p-24;
constexpr float epsilon = 1e-3F;

struct problem {
  index_t rows, width;
  matrix x, gradient;
  floats alpha;

  problem(index_t n, index_t columns, std::mt19937_64& random)
      : rows(n), width(columns), x(n, columns, 2, 1), gradient(n, columns, 1) {
    x.fill(random, 2);
    gradient.fill(random);
    for (index_t i = 0; i < rows; ++i) {
      for (index_t j = 0; j < width; ++j) x(i, j) += static_cast<float>(j % 3);
    }
    for (index_t j = 0; j < width; ++j) alpha.push_back(0.25F * static_cast<float>(j % 5) - 0.5F);
  }
};

struct results {
  matrix y, to_x;
  floats mean, variance, to_alpha;

  explicit results(const problem& in)
      : y(in.rows, in.width, 1, 3),
        to_x(in.rows, in.width, 2),
        mean(static_cast<std::size_t>(in.width)),
        variance(mean),
        to_alpha(mean) {}
  dice_statistics<> statistics() { return {mean, variance}; }
  template <class Context>
  void run(Context&& ctx, const problem& in, dice_mode mode = dice_mode::batch) {
    const dice_options how{.epsilon = epsilon, .mode = mode};
    REQUIRE(dice_forward(ctx, in.x.view(), in.alpha, statistics(), y.view(), how).ok());
    REQUIRE(dice_backward(ctx, in.x.view(), in.alpha, statistics(), in.gradient.view(), to_x.view(), to_alpha,
                          how)
                .ok());
  }
};

double worst_of(double worst, double got, double expected, double allowed) {
  const double error = std::fabs(got - expected);
  return std::isfinite(error) ? std::max(worst, error / (allowed + 1e-37)) : 1e9;
}

// The statistics against x, everything else against the statistics.
void check(const problem& in, const results& got, bool through_batch) {
  const auto n = static_cast<double>(in.rows);
  const double terms = 64 + n / 2048 + 40;
  double worst_mean = 0, worst_variance = 0, worst_y = 0, worst_x = 0, worst_alpha = 0;
  for (index_t j = 0; j < in.width; ++j) {
    const auto column = static_cast<std::size_t>(j);
    const double mean = static_cast<double>(got.mean[column]);
    const double variance = static_cast<double>(got.variance[column]);
    const double scale = 1 / std::sqrt(variance + static_cast<double>(epsilon));
    const double alpha = static_cast<double>(in.alpha[column]);
    double sum = 0, size = 0, squares = 0;
    double sum_h = 0, sum_hu = 0, size_h = 0, size_hu = 0, of_alpha = 0, size_alpha = 0;
    const auto each = [&](const auto& f) {
      for (index_t i = 0; i < in.rows; ++i) {
        const double x = static_cast<double>(in.x(i, j)), g = static_cast<double>(in.gradient(i, j));
        const double v = (x - mean) * scale;
        f(i, x, g, v, 1 / (1 + std::exp(-v)));
      }
    };
    each([&](index_t i, double x, double g, double v, double p) {
      sum += x, size += std::fabs(x), squares += (x - mean) * (x - mean);
      const double y = p * x + (1 - p) * alpha * x;
      worst_y = worst_of(worst_y, static_cast<double>(got.y(i, j)), y,
                         16 * u * std::fabs(x) * (1 + std::fabs(alpha)) * (1 + std::fabs(v)));
      const double h = g * x * (1 - alpha) * p * (1 - p);
      const double h_size = std::fabs(g * x * (1 - alpha)) * (1 + std::fabs(v));
      sum_h += h, sum_hu += h * v, size_h += h_size, size_hu += h_size * (1 + std::fabs(v));
      of_alpha += g * (1 - p) * x, size_alpha += std::fabs(g * x) * (1 + std::fabs(v));
    });
    worst_alpha =
        worst_of(worst_alpha, static_cast<double>(got.to_alpha[column]), of_alpha, terms * u * size_alpha);
    if (through_batch) {
      worst_mean = worst_of(worst_mean, mean, sum / n, terms * u * size / n);
      worst_variance = worst_of(worst_variance, variance, squares / n, 2 * terms * u * squares / n);
    } else {
      sum_h = sum_hu = size_h = size_hu = 0;
    }
    each([&](index_t i, double x, double g, double v, double p) {
      const double h = g * x * (1 - alpha) * p * (1 - p);
      const double expected = g * (alpha + (1 - alpha) * p) + scale * (h - sum_h / n - v * sum_hu / n);
      const double h_size = std::fabs(g * x * (1 - alpha)) * (1 + std::fabs(v));
      const double allowed = terms * u *
                             (std::fabs(g) * (std::fabs(alpha) + std::fabs(1 - alpha)) * (1 + std::fabs(v)) +
                              scale * (h_size + size_h / n + (1 + std::fabs(v)) * size_hu / n));
      worst_x = worst_of(worst_x, static_cast<double>(got.to_x(i, j)), expected, allowed);
    });
  }
  CHECK(worst_mean <= 1);
  CHECK(worst_variance <= 1);
  CHECK(worst_y <= 1);
  CHECK(worst_x <= 1);
  CHECK(worst_alpha <= 1);
}

// The sum of gradient times y, in double.
double weighted_dice(const problem& in, const doubles& x, const doubles& alpha, const results* fixed) {
  const auto at = [&](index_t i, index_t j) { return x[static_cast<std::size_t>(i * in.width + j)]; };
  double total = 0;
  for (index_t j = 0; j < in.width; ++j) {
    const auto column = static_cast<std::size_t>(j);
    double mean = 0, variance = 0;
    for (index_t i = 0; i < in.rows; ++i) mean += at(i, j) / static_cast<double>(in.rows);
    for (index_t i = 0; i < in.rows; ++i) {
      variance += (at(i, j) - mean) * (at(i, j) - mean) / static_cast<double>(in.rows);
    }
    if (fixed != nullptr) {
      mean = static_cast<double>(fixed->mean[column]);
      variance = static_cast<double>(fixed->variance[column]);
    }
    for (index_t i = 0; i < in.rows; ++i) {
      const double v = (at(i, j) - mean) / std::sqrt(variance + static_cast<double>(epsilon));
      const double p = 1 / (1 + std::exp(-v));
      total += static_cast<double>(in.gradient(i, j)) * (p + (1 - p) * alpha[column]) * at(i, j);
    }
  }
  return total;
}

}  // namespace

TEST_CASE("dice: agrees with loops in double on every ISA, in any stride") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  for (const index_t rows : {0, 1, 2, 17, 64, 65, 300, 5000}) {
    for (const index_t width : {1, 3, 16, 17, 40, 128, 131}) {
      if (rows == 5000 && width > 40) continue;
      const problem in(rows, width, random);
      for (const isa which : runnable_isas()) {
        CAPTURE(rows);
        CAPTURE(width);
        CAPTURE(to_string(which));
        results got(in), fixed(in);
        got.run(on(here, which), in);
        if (rows > 0) check(in, got, true);
        std::fill(fixed.mean.begin(), fixed.mean.end(), 0.75F);
        std::fill(fixed.variance.begin(), fixed.variance.end(), 2.5F);
        fixed.run(on(here, which), in, dice_mode::fixed);
        if (rows > 0) check(in, fixed, false);
        CHECK(fixed.mean == floats(fixed.mean.size(), 0.75F));
        CHECK(fixed.variance == floats(fixed.mean.size(), 2.5F));
        if (rows == 0) {
          const floats none(got.mean.size());
          CHECK((got.mean == none && got.variance == none && got.to_alpha == none));
        }
        for (const matrix* m : {&got.y, &got.to_x, &fixed.y, &fixed.to_x}) CHECK(m->padding_untouched());
      }
    }
  }
}

TEST_CASE("dice: a column far from 0 has the mean and the variance of its distances, on every ISA") {
  std::mt19937_64 random(deeprec_test::seed());
  std::uniform_int_distribution<int> step(-8, 8);
  inline_executor here;
  for (const float base : {1.0F, 100.1F, -1000.1F, 1e6F / 3, 1e30F}) {
    for (const int spread : {0, 1}) {
      const float ulp = std::nextafter(std::fabs(base), 1e38F) - std::fabs(base);
      for (const index_t rows : {2, 64, 777, 5000}) {
        problem in(rows, 19, random);
        doubles means, variances;
        for (index_t j = 0; j < in.width; ++j) {
          double sum = 0, squares = 0;
          for (index_t i = 0; i < rows; ++i) {
            const int steps = spread * 64 * step(random);
            in.x(i, j) = base + static_cast<float>(steps) * ulp;
            sum += steps;
          }
          const double mean = sum / static_cast<double>(rows);
          for (index_t i = 0; i < rows; ++i) {
            const double off = static_cast<double>((in.x(i, j) - base) / ulp) - mean;
            squares += off * off;
          }
          means.push_back(mean), variances.push_back(squares / static_cast<double>(rows));
        }
        for (const isa which : runnable_isas()) {
          CAPTURE(base);
          CAPTURE(spread);
          CAPTURE(rows);
          CAPTURE(to_string(which));
          results got(in);
          REQUIRE(dice_forward(on(here, which), in.x.view(), in.alpha, got.statistics(), got.y.view(),
                               {.epsilon = 1e-30F})
                      .ok());
          double worst_mean = 0, worst_variance = 0;  // in ulps of the base, and their squares
          for (std::size_t j = 0; j < means.size(); ++j) {
            const double mean = static_cast<double>((got.mean[j] - base) / ulp);
            const double of_one = static_cast<double>(ulp) * static_cast<double>(ulp);
            worst_mean = std::max(worst_mean, std::fabs(mean - means[j]));
            worst_variance = std::max(
                worst_variance, std::fabs(static_cast<double>(got.variance[j]) / of_one - variances[j]));
          }
          CHECK(worst_mean <= 0.5 + 1e-3 * 64 * spread);
          CHECK((worst_variance <= 0.01 + spread * 64 || base == 1e30F));  // whose squares overflow
          if (spread == 0) CHECK(got.y(0, 0) == doctest::Approx(0.25 * static_cast<double>(base)));
        }
      }
    }
  }
}

TEST_CASE("dice: gradients agree with central differences in double, through the statistics of the batch") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  const problem in(9, 3, random);
  doubles x = doubles_of(in.x.view()), alpha = doubles_of(in.alpha);
  results got(in);
  got.run(here, in);
  const auto of_batch = [&] { return weighted_dice(in, x, alpha, nullptr); };
  CHECK(difference_error(got.to_x.view(), x, of_batch) < small_difference);
  CHECK(difference_error(doubles_of(got.to_alpha), alpha, of_batch) < small_difference);
  results fixed(got);
  fixed.run(here, in, dice_mode::fixed);
  const auto of_fixed = [&] { return weighted_dice(in, x, alpha, &fixed); };
  CHECK(difference_error(fixed.to_x.view(), x, of_fixed) < small_difference);
  CHECK(difference_error(doubles_of(fixed.to_alpha), alpha, of_fixed) < small_difference);
  // The check can fail: the gradient that takes the statistics of the batch as constants.
  CHECK(same_bits(got.y, fixed.y));
  CHECK(difference_error(fixed.to_x.view(), x, of_batch) > small_difference);
}

TEST_CASE("dice: y may be x, and the gradient of x that of y") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  const problem in(70, 19, random);
  for (const isa which : runnable_isas()) {
    results expected(in), got(in);
    expected.run(on(here, which), in);
    matrix x(in.x), gradient(in.gradient);
    REQUIRE(
        dice_forward(on(here, which), x.view(), in.alpha, got.statistics(), x.view(), {.epsilon = epsilon})
            .ok());
    REQUIRE(dice_backward(on(here, which), in.x.view(), in.alpha, got.statistics(), gradient.view(),
                          gradient.view(), got.to_alpha, {.epsilon = epsilon})
                .ok());
    CHECK(same_bits(x, expected.y));
    CHECK(same_bits(gradient, expected.to_x));
    CHECK(got.to_alpha == expected.to_alpha);
  }
}

TEST_CASE("dice: the same bits for any number of threads") {
  std::mt19937_64 random(deeprec_test::seed());
  const problem in(5000, 21, random);
  inline_executor here;
  results expected(in);
  expected.run(here, in);
  kernel_tuning small_pieces = host_tuning();
  small_pieces.parked_ns = 0;
  small_pieces.piece_ns = 500;
  for (const int threads : thread_counts) {
    scrambled_threads crew(threads);
    context<scrambled_threads> ctx(crew);
    ctx.tuning = &small_pieces;
    results got(in);
    got.run(ctx, in);
    CHECK(same_bits(expected.y, got.y));
    CHECK(same_bits(expected.to_x, got.to_x));
    CHECK((expected.mean == got.mean && expected.variance == got.variance));
    CHECK(expected.to_alpha == got.to_alpha);
  }
}

TEST_CASE("dice: wrong shapes and values are named, and nothing is written") {
  inline_executor here;
  std::mt19937_64 random(1);
  const problem in(4, 3, random);
  results got(in);
  floats two(2), none(3);
  matrix wrong(4, 2);
  const auto fails = [&](const status& s, errc code, const std::string& text) {
    CHECK(s.code() == code);
    CAPTURE(s.message());
    CHECK(s.message().find(text) != std::string::npos);
  };
  const auto forward = [&](const floats& alpha, const dice_statistics<>& of, matrix& y,
                           dice_options how = {}) {
    return dice_forward(here, in.x.view(), alpha, of, y.view(), how);
  };
  const dice_statistics<> good = got.statistics();
  fails(forward(two, good, got.y), errc::shape_mismatch, "dice_forward: alpha must be (D)");
  fails(forward(in.alpha, {two, got.variance}, got.y), errc::shape_mismatch, "mean and variance must be (D)");
  fails(forward(in.alpha, {got.mean, two}, got.y), errc::shape_mismatch, "mean and variance must be (D)");
  fails(forward(in.alpha, good, wrong), errc::shape_mismatch, "dice_forward: y must be (N,D)");
  fails(forward(in.alpha, good, got.y, {.epsilon = 0}), errc::invalid_value, "epsilon must be positive");
  fails(dice_forward(here, matrix_view<const float>(nullptr, 4, 3), in.alpha, good, got.y.view()),
        errc::shape_mismatch, "x must be (N,D)");
  const auto backward = [&](const floats& alpha, const dice_statistics<>& of, const matrix& g, matrix& to_x,
                            floats& to_alpha, dice_options how = {}) {
    return dice_backward(here, in.x.view(), alpha, of, g.view(), to_x.view(), to_alpha, how);
  };
  const matrix& g = in.gradient;
  fails(backward(two, good, g, got.to_x, none), errc::shape_mismatch, "dice_backward: alpha must be (D)");
  fails(backward(in.alpha, {two, two}, g, got.to_x, none), errc::shape_mismatch, "mean and variance must be");
  fails(backward(in.alpha, good, wrong, got.to_x, none), errc::shape_mismatch, "y_gradient must be (N,D)");
  fails(backward(in.alpha, good, g, wrong, none), errc::shape_mismatch, "x_gradient must be (N,D)");
  fails(backward(in.alpha, good, g, got.to_x, two), errc::shape_mismatch, "alpha_gradient must be (D)");
  fails(backward(in.alpha, good, g, got.to_x, none, {.epsilon = -1}), errc::invalid_value, "epsilon must be");
  fails(dice_average(here, good, 0.5F, {two, got.variance}), errc::shape_mismatch, "must be (D)");
  fails(dice_average(here, good, 1.5F, good), errc::invalid_value, "momentum must be in [0, 1]");
  for (const matrix* m : {&got.y, &got.to_x, &wrong}) {
    for (const float v : m->storage) CHECK(v == matrix::sentinel);
  }
  CHECK((got.mean == floats(3) && got.variance == floats(3) && none == floats(3) && two == floats(2)));
}

TEST_CASE("dice: the examples of its documentation") {
  thread_pool pool(2);
  const floats values{1, 10, 3, 10, 5, 10}, ones(6, 1.0F);
  floats result(6);
  const matrix_view<const float> x(values.data(), 3, 2), y_gradient(ones.data(), 3, 2);
  const matrix_view<float> y(result.data(), 3, 2);
  //! [dice]
  const std::vector<float> alpha{0.25F, 0};  // learnt
  std::vector<float> mean(2), variance(2), running_mean(2), running_variance(2, 1);
  const dice_statistics<> batch{mean, variance}, running{running_mean, running_variance};
  // Training: mean becomes 3 10, variance 8/3 0
  dice_forward(pool, x, alpha, batch, y).or_throw();
  dice_average(pool, batch, 0.1F, running).or_throw();
  // Inference
  dice_forward(pool, x, alpha, running, y, {.mode = dice_mode::fixed}).or_throw();
  //! [dice]
  CHECK(mean == floats{3, 10});
  CHECK(variance[0] == doctest::Approx(8.0 / 3));
  CHECK(variance[1] == 0);
  CHECK(running_mean[1] == doctest::Approx(1));
  CHECK(running_variance[1] == doctest::Approx(0.9));
  const double p = 1 / (1 + std::exp(-(5 - 0.3) / std::sqrt(1 + (8.0 / 3 - 1) / 10)));
  CHECK(result[4] == doctest::Approx(5 * (p + (1 - p) / 4)));
  //! [dice_backward]
  std::vector<float> of_x(6), of_alpha(2);
  dice_backward(pool, x, alpha, batch, y_gradient, matrix_view<float>(of_x.data(), 3, 2), of_alpha)
      .or_throw();
  //! [dice_backward]
  CHECK(of_alpha[1] == doctest::Approx(15));  // p is 1/2 in a column of one value
}
