// The calibration against plain sums.

#include <deeprec/dense/metrics/calibration.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "dense/support.hpp"

using namespace dense_test;
using namespace deeprec;

namespace {

struct sample {
  matrix logits, labels, weights;
  sample(index_t rows, std::mt19937_64& random) : logits(rows, 1, 2), labels(rows, 1), weights(rows, 1, 1) {
    logits.fill(random, 3);
    std::uniform_real_distribution<float> some(0, 3);
    for (index_t i = 0; i < rows; ++i) {
      labels(i, 0) = static_cast<float>(i % 3) / 2;
      weights(i, 0) = i % 5 == 0 ? 0.0F : some(random);
    }
  }
};

double probability(float logit) { return 1 / (1 + std::exp(-static_cast<double>(logit))); }

}  // namespace

TEST_CASE("calibration: the sum of the probabilities over that of the labels, with weights and without") {
  std::mt19937_64 random(deeprec_test::seed());
  const index_t rows = 1000;
  const sample s(rows, random);
  double predicted = 0, observed = 0, weighted = 0, weighted_observed = 0;
  for (index_t i = 0; i < rows; ++i) {
    const double p = probability(s.logits(i, 0)), y = static_cast<double>(s.labels(i, 0));
    const double w = static_cast<double>(s.weights(i, 0));
    predicted += p, observed += y, weighted += w * p, weighted_observed += w * y;
  }
  calibration plain, with_weights, ones;
  REQUIRE(plain.add(s.logits.view(), s.labels.view()).ok());
  REQUIRE(with_weights.add(s.logits.view(), s.labels.view(), s.weights.view()).ok());
  CHECK(plain.predicted() == doctest::Approx(predicted).epsilon(1e-13));
  CHECK(plain.observed() == observed);
  CHECK(plain.value() == doctest::Approx(predicted / observed).epsilon(1e-13));
  CHECK(with_weights.value() == doctest::Approx(weighted / weighted_observed).epsilon(1e-13));
  CHECK(with_weights.observed() == doctest::Approx(weighted_observed).epsilon(1e-13));
  CHECK(plain.rows() == rows);
  CHECK(with_weights.rows() == rows);
  matrix one(rows, 1);
  for (index_t i = 0; i < rows; ++i) one(i, 0) = 1;
  REQUIRE(ones.add(s.logits.view(), s.labels.view(), one.view()).ok());
  CHECK(ones.value() == plain.value());
  CHECK(with_weights.value() != plain.value());  // or the weights do nothing
}

TEST_CASE("calibration: the same bits however the rows are split and merged") {
  std::mt19937_64 random(deeprec_test::seed());
  const index_t rows = 2000;
  const sample s(rows, random);
  calibration whole;
  REQUIRE(whole.add(s.logits.view(), s.labels.view(), s.weights.view()).ok());
  for (int trial = 0; trial < 10; ++trial) {
    calibration parts[3];
    for (index_t begin = 0; begin < rows;) {
      const index_t count = std::min<index_t>(rows - begin, static_cast<index_t>(random() % 300));
      REQUIRE(parts[random() % 3]
                  .add(s.logits.view().rows(begin, count), s.labels.view().rows(begin, count),
                       s.weights.view().rows(begin, count))
                  .ok());
      begin += count;
    }
    parts[2].merge(parts[0]);
    parts[2].merge(parts[1]);
    CHECK(parts[2].value() == whole.value());
    CHECK(parts[2].rows() == rows);
  }
  // A plain sum of doubles would not pass: backwards it has other bits.
  double forwards = 0, backwards = 0;
  for (index_t i = 0; i < rows; ++i) {
    forwards += static_cast<double>(s.weights(i, 0)) * probability(s.logits(i, 0));
    backwards += static_cast<double>(s.weights(rows - 1 - i, 0)) * probability(s.logits(rows - 1 - i, 0));
  }
  CHECK(forwards != backwards);
}

TEST_CASE("calibration: infinite logits, no label above 0, no row") {
  const float inf = std::numeric_limits<float>::infinity();
  const float z[] = {inf, -inf, 0, 1e30F};
  const float y[] = {1, 1, 0, 0}, none[] = {0, 0, 0, 0};
  calibration ratio, no_clicks, empty, nothing_weighs;
  REQUIRE(ratio.add({z, 4, 1}, {y, 4, 1}).ok());
  CHECK(ratio.value() == 1.25);
  REQUIRE(no_clicks.add({z, 4, 1}, {none, 4, 1}).ok());
  CHECK(no_clicks.value() == std::numeric_limits<double>::infinity());
  CHECK(std::isnan(empty.value()));
  REQUIRE(nothing_weighs.add({z, 4, 1}, {y, 4, 1}, {none, 4, 1}).ok());
  CHECK(std::isnan(nothing_weighs.value()));
}

TEST_CASE("calibration: bad values are reported with their row, and nothing is added") {
  matrix logits(3, 1), labels(3, 1), weights(3, 1);
  for (index_t i = 0; i < 3; ++i) logits(i, 0) = labels(i, 0) = weights(i, 0) = 1;
  calibration ratio;
  logits(2, 0) = std::nanf("");
  CHECK(ratio.add(logits.view(), labels.view()).message() ==
        "invalid value: metric: a score must not be NaN; row 2");
  CHECK(ratio.add(logits.view(), labels.view(), weights.view()).place().row == 2);
  logits(2, 0) = 0;
  labels(1, 0) = 2;
  CHECK(ratio.add(logits.view(), labels.view()).place().row == 1);
  labels(1, 0) = 1;
  for (const float bad : {-1.0F, 0x1p21F, std::nanf("")}) {
    weights(1, 0) = bad;
    CHECK(ratio.add(logits.view(), labels.view(), weights.view()).message() ==
          "invalid value: metric: a weight must be in [0, 2^20]; row 1");
  }
  CHECK(ratio.add(logits.view(), labels.view(), weights.view().rows(0, 2)).code() == errc::shape_mismatch);
  CHECK(ratio.add(logits.view(), labels.view().rows(0, 2)).code() == errc::shape_mismatch);
  CHECK(ratio.rows() == 0);
  CHECK(ratio.predicted() == 0);
}

TEST_CASE("calibration: the example of its documentation") {
  //! [calibration]
  const std::vector<float> logits{0, 0, 0, 0}, labels{1, 0, 0, 0};
  calibration ratio;
  ratio.add(matrix_view(logits.data(), 4, 1), matrix_view(labels.data(), 4, 1)).or_throw();
  const double too_many = ratio.value();  // 2: two clicks were predicted, one came
  //! [calibration]
  CHECK(too_many == 2);
}
