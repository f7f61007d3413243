// The in-batch softmax against loops in double: every ISA, batches around the vectors and their pieces.

#include <deeprec/dense/losses/in_batch_softmax.hpp>
#include <deeprec/exec/inline_executor.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
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

struct batch_of {
  index_t size;
  matrix scores;
  std::vector<double> exact;  // the scores in double, which central differences change
  std::vector<float> weights;
  std::vector<std::int64_t> items;

  batch_of(index_t n, float scale, bool weighted, bool with_items, std::mt19937_64& random)
      : size(n), scores(n, n, 3, 1) {
    scores.fill(random, scale);
    for (index_t i = 0; i < n; ++i) {
      for (index_t j = 0; j < n; ++j) exact.push_back(static_cast<double>(scores(i, j)));
      if (weighted) weights.push_back(i % 4 == 1 ? 0.0F : 0.5F + static_cast<float>(random() % 8));
      if (with_items) {
        items.push_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n / 2 + 1)) << 33);
      }
    }
  }
  double score(index_t i, index_t j) const { return exact[static_cast<std::size_t>(i * size + j)]; }
  double weight(index_t i) const {
    return weights.empty() ? 1 : static_cast<double>(weights[static_cast<std::size_t>(i)]);
  }
  bool kept(index_t i, index_t j) const {
    return i == j || items.empty() ||
           items[static_cast<std::size_t>(i)] != items[static_cast<std::size_t>(j)];
  }
  double most(index_t i) const {
    double largest = score(i, i);
    for (index_t j = 0; j < size; ++j) largest = kept(i, j) ? std::max(largest, score(i, j)) : largest;
    return largest;
  }
  double sum(index_t i) const {
    double total = 0;
    const double largest = most(i);
    for (index_t j = 0; j < size; ++j) total += kept(i, j) ? std::exp(score(i, j) - largest) : 0;
    return total;
  }
  double softmax(index_t i, index_t j) const {
    return kept(i, j) ? std::exp(score(i, j) - most(i)) / sum(i) : 0;
  }
  double loss() const {
    double total = 0;
    for (index_t i = 0; i < size; ++i) {
      if (weight(i) != 0) total += weight(i) * (std::log(sum(i)) + most(i) - score(i, i));
    }
    return total / static_cast<double>(size);
  }
};

}  // namespace

TEST_CASE("in-batch softmax: within its bounds of loops in double, on every ISA, in any stride") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  for (const index_t n : {1, 2, 3, 8, 17, 64, 65, 130, 257}) {
    for (const float scale : {1.0F, 20.0F, 1e4F}) {
      for (const int options : {0, 1, 2, 3}) {
        const batch_of b(n, scale, (options & 1) != 0, (options & 2) != 0, random);
        const double expected = b.loss();
        std::vector<double> softmax, distance;
        double weights = 0, largest = 0;
        for (index_t i = 0; i < n; ++i) {
          const double most = b.most(i), sum = b.sum(i);
          weights += std::fabs(b.weight(i));
          for (index_t j = 0; j < n; ++j) {
            softmax.push_back(b.kept(i, j) ? std::exp(b.score(i, j) - most) / sum : 0);
            distance.push_back(b.kept(i, j) ? most - b.score(i, j) : 0);
            largest = std::max(largest, std::fabs(b.score(i, j)));
          }
        }
        const auto size = static_cast<double>(n);
        for (const isa which : runnable_isas()) {
          CAPTURE(n);
          CAPTURE(scale);
          CAPTURE(options);
          CAPTURE(to_string(which));
          double loss = 0;
          matrix gradient(n, n, 2);
          REQUIRE(in_batch_softmax_forward(on(here, which), b.scores.view(), b.weights, b.items, loss).ok());
          REQUIRE(in_batch_softmax_backward(on(here, which), b.scores.view(), b.weights, b.items, 3,
                                            gradient.view())
                      .ok());
          CHECK(std::fabs(loss - expected) <=
                weights / size * ((24 + std::log(size)) * u + 0x1p-50 * largest));
          double worst = 0;  // over the bound
          for (index_t i = 0; i < n; ++i) {
            const double factor = b.weight(i) * 3 / size;
            for (index_t j = 0; j < n; ++j) {
              const auto k = static_cast<std::size_t>(i * n + j);
              const double slope = factor * (softmax[k] - (i == j ? 1 : 0));
              const double allowed =
                  factor * u *
                      ((32 + std::log(size) + std::min(distance[k], 105.0)) * softmax[k] + (i == j ? 1 : 0)) +
                  0x1p-149 * (1 + factor);
              worst = std::max(worst, std::fabs(static_cast<double>(gradient(i, j)) - slope) / allowed);
            }
          }
          CHECK(worst <= 1);
          CHECK(gradient.padding_untouched());
          if (n == 1) CHECK(loss == 0);
          if (n == 1) CHECK(gradient(0, 0) == 0);
          matrix in_place(n, n, 1);
          in_place.copy(b.scores);
          REQUIRE(in_batch_softmax_backward(on(here, which), in_place.view(), b.weights, b.items, 3,
                                            in_place.view())
                      .ok());
          CHECK(same_bits(in_place, gradient));
        }
      }
    }
  }
}

TEST_CASE("in-batch softmax: the gradient agrees with central differences of the loss") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  for (const int options : {0, 1, 2, 3}) {
    batch_of b(9, 1, (options & 1) != 0, (options & 2) != 0, random);
    matrix gradient(9, 9);
    REQUIRE(in_batch_softmax_backward(here, b.scores.view(), b.weights, b.items, 1, gradient.view()).ok());
    const auto error = [&] {
      double worst = 0, scale = 1e-3;
      for (index_t i = 0; i < 9; ++i) {
        for (index_t j = 0; j < 9; ++j) {
          double& at = b.exact[static_cast<std::size_t>(i * 9 + j)];
          const double kept = at;
          at = kept + 1e-6;
          const double up = b.loss();
          at = kept - 1e-6;
          const double slope = (up - b.loss()) / 2e-6;
          at = kept;
          scale = std::max(scale, std::fabs(slope));
          worst = std::max(worst, std::fabs(static_cast<double>(gradient(i, j)) - slope));
        }
      }
      return worst / scale;
    };
    CHECK(error() < 2e-5);
    // The check can fail: a gradient without the identity.
    for (index_t i = 0; i < 9; ++i) gradient(i, i) += static_cast<float>(b.weight(i) / 9);
    CHECK(error() > 2e-5);
  }
}

TEST_CASE("in-batch softmax: accidental hits that stay in the sum are caught") {
  inline_executor here;
  const std::vector<float> scores{1, 5, 5, 1};
  const std::vector<std::int64_t> same{7, 7}, different{7, 8};
  double left_out = 0, kept = 0;
  REQUIRE(in_batch_softmax_forward(here, matrix_view(scores.data(), 2, 2), {}, same, left_out).ok());
  REQUIRE(in_batch_softmax_forward(here, matrix_view(scores.data(), 2, 2), {}, different, kept).ok());
  CHECK(left_out == 0);
  CHECK(kept == doctest::Approx(std::log1p(std::exp(4.0))));
}

TEST_CASE("in-batch softmax: no overflow; infinities and NaN") {
  inline_executor here;
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  const auto loss_of = [&](std::vector<float> s, isa which, std::vector<float> weights = {},
                           std::vector<std::int64_t> items = {}) {
    double loss = 0;
    matrix gradient(2, 2);
    const matrix_view<const float> scores(s.data(), 2, 2);
    REQUIRE(in_batch_softmax_forward(on(here, which), scores, weights, items, loss).ok());
    REQUIRE(in_batch_softmax_backward(on(here, which), scores, weights, items, 1, gradient.view()).ok());
    const bool finite = std::isfinite(gradient(0, 0)) && std::isfinite(gradient(0, 1));
    CHECK(finite == (std::isfinite(loss) || loss == static_cast<double>(inf)));
    return loss;
  };
  for (const isa which : runnable_isas()) {
    CHECK(loss_of({1e4F, -1e4F, -1e4F, 1e4F}, which) == 0);
    CHECK(loss_of({-1e4F, 1e4F, 1e4F, -1e4F}, which) == 2e4);
    CHECK(loss_of({3e38F, -3e38F, 3e38F, 3e38F}, which) == doctest::Approx(std::log(2.0) / 2));
    CHECK(loss_of({1, -inf, 0, 0}, which) == doctest::Approx(std::log(2.0) / 2));
    CHECK(loss_of({-inf, 1, 0, 0}, which) == static_cast<double>(inf));
    for (const float bad : {nan, inf}) {
      CHECK(std::isnan(loss_of({1, bad, 0, 0}, which)));
      CHECK(std::isnan(loss_of({bad, 1, 0, 0}, which)));
      CHECK(loss_of({1, bad, 0, 0}, which, {0, 1}) == doctest::Approx(std::log(2.0) / 2));
      CHECK(loss_of({1, bad, 0, 0}, which, {}, {5, 5}) == 0);
    }
    CHECK(std::isnan(loss_of({-inf, -inf, 0, 0}, which)));
  }
  double loss = 0;
  REQUIRE(in_batch_softmax_forward(here, matrix_view<const float>(nullptr, 0, 0), {}, {}, loss).ok());
  CHECK(std::isnan(loss));
}

TEST_CASE("in-batch softmax: the same bits for any number of threads") {
  std::mt19937_64 random(deeprec_test::seed());
  const index_t n = 700;
  const batch_of b(n, 5, true, true, random);
  const auto run = [&](auto& executor, double& loss) {
    matrix gradient(n, n);
    REQUIRE(in_batch_softmax_forward(executor, b.scores.view(), b.weights, b.items, loss).ok());
    REQUIRE(
        in_batch_softmax_backward(executor, b.scores.view(), b.weights, b.items, 1, gradient.view()).ok());
    return gradient;
  };
  inline_executor here;
  double expected_loss = 0;
  const matrix expected = run(here, expected_loss);
  for (const int threads : thread_counts) {
    scrambled_threads crew(threads);
    double loss = 0;
    CHECK(same_bits(run(crew, loss), expected));
    CHECK(std::memcmp(&loss, &expected_loss, sizeof loss) == 0);
  }
}

TEST_CASE("in-batch softmax: wrong shapes are named, and nothing is written") {
  inline_executor here;
  matrix s(2, 2), wide(2, 3), out(2, 2);
  s(0, 0) = s(0, 1) = s(1, 0) = s(1, 1) = 0;
  const std::vector<float> few(1);
  const std::vector<std::int64_t> ids(3);
  double loss = -1;
  const auto names = [](const status& got, const char* what) {
    return got.code() == errc::shape_mismatch && got.message().find(what) != std::string::npos;
  };
  CHECK(names(in_batch_softmax_forward(here, wide.view(), {}, {}, loss), "forward: scores must be (B,B)"));
  CHECK(names(in_batch_softmax_forward(here, s.view(), few, {}, loss), "weights must be (B) or empty"));
  CHECK(names(in_batch_softmax_forward(here, s.view(), {}, ids, loss), "items must be (B) or empty"));
  CHECK(names(in_batch_softmax_backward(here, wide.view(), {}, {}, 1, out.view()), "backward: scores must"));
  CHECK(names(in_batch_softmax_backward(here, s.view(), few, {}, 1, out.view()), "weights must"));
  CHECK(names(in_batch_softmax_backward(here, s.view(), {}, ids, 1, out.view()), "items must"));
  CHECK(names(in_batch_softmax_backward(here, s.view(), {}, {}, 1, wide.view()), "gradient must be (B,B)"));
  CHECK(loss == -1);
  CHECK(out(0, 0) == matrix::sentinel);
}

TEST_CASE("in-batch softmax: the example of its documentation") {
  inline_executor here;
  //! [in_batch_softmax]
  const std::vector<float> scores{2, 0, 1,  // query 0 against the items of all queries
                                  0, 3, 0,  //
                                  1, 0, 2};
  const std::vector<std::int64_t> items{7, 9, 7};  // items 0 and 2 are one: no negatives of each other
  double loss = 0;
  in_batch_softmax_forward(here, matrix_view(scores.data(), 3, 3), {}, items, loss).or_throw();
  //! [in_batch_softmax]
  const double of_two = std::log1p(std::exp(-2.0)), of_three = std::log1p(2 * std::exp(-3.0));
  CHECK(loss == doctest::Approx((2 * of_two + of_three) / 3).epsilon(1e-6));
  //! [in_batch_softmax_backward]
  std::vector<float> gradient(9);
  in_batch_softmax_backward(here, matrix_view(scores.data(), 3, 3), {}, items, 1,
                            matrix_view(gradient.data(), 3, 3))
      .or_throw();  // of the scores; its rows add up to 0
  //! [in_batch_softmax_backward]
  CHECK(gradient[2] == 0);
  CHECK(gradient[0] + gradient[1] == doctest::Approx(0).epsilon(1e-6));
}
