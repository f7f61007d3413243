#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include <deeprec/dense/losses/logistic_loss.hpp>
#include <deeprec/dense/metrics/exact_sums.hpp>
#include <deeprec/dense/metrics/metrics.hpp>

#include "dense/support.hpp"

using namespace dense_test;
using namespace deeprec;

namespace {

/// By definition: every pair of a positive and a negative.
double pairwise_auc(const matrix& scores, const matrix& labels) {
  double wins = 0;
  double pairs = 0;
  for (index_t i = 0; i < scores.rows; ++i) {
    for (index_t j = 0; j < scores.rows; ++j) {
      if (labels(i, 0) != 1 || labels(j, 0) != 0) continue;
      pairs += 1;
      wins += scores(i, 0) > scores(j, 0) ? 1 : scores(i, 0) == scores(j, 0) ? 0.5 : 0;
    }
  }
  return wins / pairs;
}

struct sample {
  matrix scores, labels;
  sample(index_t rows, int distinct, std::mt19937_64& random) : scores(rows, 1, 2), labels(rows, 1) {
    std::normal_distribution<float> normal;
    for (index_t i = 0; i < rows; ++i) {
      labels(i, 0) = static_cast<float>(random() % 4 == 0);
      const float score = normal(random) + labels(i, 0);
      scores(i, 0) = distinct == 0 ? score : std::round(score * static_cast<float>(distinct));
    }
    labels(0, 0) = 1;
    labels(rows - 1, 0) = 0;
  }
};

double area(const sample& s) {
  auc metric;
  REQUIRE(metric.add(s.scores.view(), s.labels.view()).ok());
  return metric.value();
}

}  // namespace

TEST_CASE("auc: equals the share of rightly ordered pairs, ties counting one half") {
  std::mt19937_64 random(deeprec_test::seed());
  for (const index_t rows : {2, 3, 10, 100, 700}) {
    for (const int distinct : {0, 1, 2, 20}) {  // 1: nearly everything is a tie
      const sample s(rows, distinct, random);
      CHECK(area(s) == doctest::Approx(pairwise_auc(s.scores, s.labels)).epsilon(1e-14));
    }
  }
}

TEST_CASE("auc: a count that ignores ties is caught") {
  std::mt19937_64 random(deeprec_test::seed());
  const sample s(300, 1, random);
  double wins = 0;
  for (index_t i = 0; i < 300; ++i) {
    for (index_t j = 0; j < 300; ++j) {
      wins += s.labels(i, 0) == 1 && s.labels(j, 0) == 0 && s.scores(i, 0) > s.scores(j, 0) ? 1 : 0;
    }
  }
  auc metric;
  REQUIRE(metric.add(s.scores.view(), s.labels.view()).ok());
  const double pairs = static_cast<double>(metric.positives() * metric.negatives());
  CHECK(std::abs(wins / pairs - metric.value()) > 1e-3);
}

TEST_CASE("auc and log loss: the same bits however the rows are split, ordered and merged") {
  std::mt19937_64 random(deeprec_test::seed());
  const sample s(5000, 20, random);
  auc whole;
  log_loss loss;
  REQUIRE(whole.add(s.scores.view(), s.labels.view()).ok());
  REQUIRE(loss.add(s.scores.view(), s.labels.view()).ok());
  for (int trial = 0; trial < 20; ++trial) {
    auc parts[3];
    log_loss losses[3];
    for (index_t begin = 0; begin < 5000;) {
      const index_t count = std::min<index_t>(5000 - begin, static_cast<index_t>(random() % 400));
      const auto part = random() % 3;
      REQUIRE(parts[part].add(s.scores.view().rows(begin, count), s.labels.view().rows(begin, count)).ok());
      REQUIRE(losses[part].add(s.scores.view().rows(begin, count), s.labels.view().rows(begin, count)).ok());
      begin += count;
    }
    static_cast<void>(parts[1].value());  // reading in between changes nothing
    parts[1].merge(parts[2]);
    parts[0].merge(parts[1]);
    losses[2].merge(losses[1]);
    losses[2].merge(losses[0]);
    CHECK(parts[0].value() == whole.value());
    CHECK(losses[2].value() == loss.value());
    CHECK(losses[2].rows() == 5000);
  }
  // A plain sum of doubles would not pass: backwards it has other bits.
  double forwards = 0;
  double backwards = 0;
  for (index_t i = 0; i < 5000; ++i) {
    forwards += detail::logistic_loss_of(s.scores(i, 0), s.labels(i, 0));
    backwards += detail::logistic_loss_of(s.scores(4999 - i, 0), s.labels(4999 - i, 0));
  }
  CHECK(forwards != backwards);
  CHECK(loss.value() == doctest::Approx(forwards / 5000).epsilon(1e-12));
}

TEST_CASE("auc: known values, infinite scores, and both zeros as one") {
  matrix scores(4, 1), labels(4, 1);
  const float inf = std::numeric_limits<float>::infinity();
  const float z[4] = {-inf, -0.0F, 0.0F, inf};
  const float y[4] = {0, 1, 0, 1};
  for (index_t i = 0; i < 4; ++i) {
    scores(i, 0) = z[i];
    labels(i, 0) = y[i];
  }
  auc metric;
  REQUIRE(metric.add(scores.view(), labels.view()).ok());
  CHECK(metric.value() == 0.875);
}

TEST_CASE("auc: NaN while one class is absent") {
  matrix scores(2, 1), labels(2, 1);
  auc metric;
  CHECK(std::isnan(metric.value()));
  scores(0, 0) = scores(1, 0) = labels(0, 0) = labels(1, 0) = 1;
  REQUIRE(metric.add(scores.view(), labels.view()).ok());
  CHECK(std::isnan(metric.value()));
  CHECK(std::isnan(log_loss{}.value()));
}

TEST_CASE("auc and log loss: bad values are reported with their row, and nothing is added") {
  matrix scores(3, 1), labels(3, 1);
  for (index_t i = 0; i < 3; ++i) scores(i, 0) = labels(i, 0) = 0;
  auc metric;
  log_loss loss;
  scores(2, 0) = std::nanf("");
  for (const status& s : {metric.add(scores.view(), labels.view()), loss.add(scores.view(), labels.view())}) {
    CHECK(s.code() == errc::invalid_value);
    CHECK(s.place().row == 2);
    CHECK(s.place().position == -1);
    CHECK(s.message() == "invalid value: metric: a score must not be NaN; row 2");
  }
  scores(2, 0) = 0;
  labels(1, 0) = 0.5F;
  CHECK(metric.add(scores.view(), labels.view()).place().row == 1);
  CHECK(metric.negatives() == 0);
  CHECK(loss.rows() == 0);
  CHECK(loss.add(scores.view(), labels.view()).ok());  // soft labels have a cross entropy
  labels(1, 0) = 2;
  CHECK(loss.add(scores.view(), labels.view()).code() == errc::invalid_value);
  CHECK(metric.add(scores.view(), labels.view().rows(0, 2)).code() == errc::shape_mismatch);
}

TEST_CASE("log loss: confident mistakes stay finite and count with their size") {
  matrix logits(2, 1), labels(2, 1);
  logits(0, 0) = std::numeric_limits<float>::infinity();
  logits(1, 0) = -100;
  labels(0, 0) = 1;
  labels(1, 0) = 1;
  log_loss loss;
  REQUIRE(loss.add(logits.view(), labels.view()).ok());
  CHECK(loss.value() == doctest::Approx(50).epsilon(1e-12));
}

TEST_CASE(
    "log loss with weights: agrees with a plain sum; the same bits however the rows are split and merged") {
  std::mt19937_64 random(deeprec_test::seed());
  const sample s(2000, 20, random);
  matrix weights(2000, 1);
  std::uniform_real_distribution<float> some(0, 3);
  double sum = 0, all = 0;
  for (index_t i = 0; i < 2000; ++i) {
    weights(i, 0) = i % 5 == 0 ? 0.0F : some(random);
    sum += static_cast<double>(weights(i, 0)) * detail::logistic_loss_of(s.scores(i, 0), s.labels(i, 0));
    all += static_cast<double>(weights(i, 0));
  }
  log_loss whole;
  REQUIRE(whole.add(s.scores.view(), s.labels.view(), weights.view()).ok());
  CHECK(whole.value() == doctest::Approx(sum / all).epsilon(1e-12));
  CHECK(whole.rows() == 2000);
  log_loss parts[2];
  for (index_t begin = 0; begin < 2000;) {
    const index_t count = std::min<index_t>(2000 - begin, static_cast<index_t>(random() % 300));
    REQUIRE(parts[random() % 2]
                .add(s.scores.view().rows(begin, count), s.labels.view().rows(begin, count),
                     weights.view().rows(begin, count))
                .ok());
    begin += count;
  }
  parts[1].merge(parts[0]);
  CHECK(parts[1].value() == whole.value());

  log_loss ones, plain, nothing;
  for (index_t i = 0; i < 2000; ++i) weights(i, 0) = 1;
  REQUIRE(ones.add(s.scores.view(), s.labels.view(), weights.view()).ok());
  REQUIRE(plain.add(s.scores.view(), s.labels.view()).ok());
  CHECK(ones.value() == plain.value());
  for (index_t i = 0; i < 2000; ++i) weights(i, 0) = 0;
  REQUIRE(nothing.add(s.scores.view(), s.labels.view(), weights.view()).ok());
  CHECK(std::isnan(nothing.value()));

  weights(3, 0) = -1;
  CHECK(nothing.add(s.scores.view(), s.labels.view(), weights.view()).place().row == 3);
  weights(3, 0) = std::nanf("");
  CHECK(nothing.add(s.scores.view(), s.labels.view(), weights.view()).code() == errc::invalid_value);
  CHECK(nothing.add(s.scores.view(), s.labels.view(), weights.view().rows(0, 3)).code() ==
        errc::shape_mismatch);
  CHECK(nothing.rows() == 2000);
}

namespace {

//! [exact_sums]
class brier_score : public exact_sums<brier_score> {
 public:
  double value() const noexcept { return first() / second(); }

 private:
  friend exact_sums;
  static terms terms_of(double logit, double label) noexcept {
    const double off = sigmoid(logit) - label;
    return {off * off, 1};
  }
};
//! [exact_sums]

}  // namespace

TEST_CASE("exact_sums: a metric of a user has the same bits however the rows are split and merged") {
  std::mt19937_64 random(deeprec_test::seed());
  const sample s(3000, 0, random);
  double forwards = 0, backwards = 0;
  for (index_t i = 0; i < 3000; ++i) {
    const auto squared = [&](index_t row) {
      const double off =
          sigmoid(static_cast<double>(s.scores(row, 0))) - static_cast<double>(s.labels(row, 0));
      return off * off;
    };
    forwards += squared(i);
    backwards += squared(2999 - i);
  }
  CHECK(forwards != backwards);  // a plain sum of doubles would not pass
  brier_score whole, parts[3];
  REQUIRE(whole.add(s.scores.view(), s.labels.view()).ok());
  CHECK(whole.value() == doctest::Approx(forwards / 3000).epsilon(1e-12));
  for (index_t begin = 0; begin < 3000;) {
    const index_t count = std::min<index_t>(3000 - begin, static_cast<index_t>(random() % 200));
    REQUIRE(
        parts[random() % 3].add(s.scores.view().rows(begin, count), s.labels.view().rows(begin, count)).ok());
    begin += count;
  }
  parts[2].merge(parts[0]);
  parts[2].merge(parts[1]);
  CHECK(parts[2].rows() == 3000);
  CHECK(parts[2].value() == whole.value());
}

TEST_CASE("auc: with weights a pair counts their product, whatever the order of rows") {
  std::mt19937_64 random(deeprec_test::seed());
  for (const index_t rows : {2, 3, 10, 100, 700}) {
    for (const int distinct : {0, 1, 2, 20}) {
      const sample s(rows, distinct, random);
      matrix weights(rows, 1, 3), ones(rows, 1);
      const float some[] = {0, 1, 0.125F, 3.7F, 1e-3F, 0x1p20F};
      for (index_t i = 0; i < rows; ++i) {
        ones(i, 0) = 1;
        weights(i, 0) = some[random() % 6];
      }
      weights(0, 0) = 0.5F;
      weights(rows - 1, 0) = 1;
      double wins = 0, pairs = 0;
      index_t positives = 0;
      for (index_t i = 0; i < rows; ++i) {
        positives += s.labels(i, 0) == 1 && weights(i, 0) > 0 ? 1 : 0;
        for (index_t j = 0; j < rows; ++j) {
          if (s.labels(i, 0) != 1 || s.labels(j, 0) != 0) continue;
          const double pair = static_cast<double>(weights(i, 0)) * static_cast<double>(weights(j, 0));
          pairs += pair;
          wins += pair * (s.scores(i, 0) > s.scores(j, 0) ? 1 : s.scores(i, 0) == s.scores(j, 0) ? 0.5 : 0);
        }
      }
      auc metric, of_ones;
      REQUIRE(metric.add(s.scores.view(), s.labels.view(), weights.view()).ok());
      CHECK(metric.value() == doctest::Approx(wins / pairs).epsilon(1e-13));
      CHECK(metric.positives() == positives);
      REQUIRE(of_ones.add(s.scores.view(), s.labels.view(), ones.view()).ok());
      CHECK(of_ones.value() == area(s));
      auc parts[3];
      for (index_t i = rows - 1; i >= 0; --i) {
        REQUIRE(parts[random() % 3]
                    .add(s.scores.view().rows(i, 1), s.labels.view().rows(i, 1), weights.view().rows(i, 1))
                    .ok());
      }
      parts[0].merge(parts[1]);
      parts[0].merge(parts[2]);
      CHECK(parts[0].value() == metric.value());
    }
  }
}

TEST_CASE("auc: a row of weight 3 is as three rows") {
  std::mt19937_64 random(deeprec_test::seed());
  const sample s(300, 7, random);
  auc weighted, repeated;
  for (index_t i = 0; i < 300; ++i) {
    const float times[] = {static_cast<float>(random() % 4)};
    const auto score = s.scores.view().rows(i, 1), label = s.labels.view().rows(i, 1);
    REQUIRE(weighted.add(score, label, {times, 1, 1}).ok());
    for (float t = 0; t < times[0]; ++t) REQUIRE(repeated.add(score, label).ok());
  }
  CHECK(weighted.value() == doctest::Approx(repeated.value()).epsilon(1e-14));
}

TEST_CASE("auc: bad weights are reported with their row, and weights of 0 leave a class absent") {
  const float z[] = {1, 2, 3}, y[] = {1, 0, 0};
  auc metric;
  for (const float bad : {-1.0F, std::nanf(""), std::numeric_limits<float>::infinity(), 0x1.1p20F}) {
    const float w[] = {1, bad, 1};
    CHECK(metric.add({z, 3, 1}, {y, 3, 1}, {w, 3, 1}).message() ==
          "invalid value: metric: a weight must be in [0, 2^20]; row 1");
  }
  const float two[] = {1, 1};
  CHECK(metric.add({z, 3, 1}, {y, 3, 1}, {two, 2, 1}).code() == errc::shape_mismatch);
  CHECK(metric.negatives() == 0);
  const float w[] = {0, 1, 2};
  REQUIRE(metric.add({z, 3, 1}, {y, 3, 1}, {w, 3, 1}).ok());
  CHECK(metric.positives() == 0);
  CHECK(metric.negatives() == 2);
  CHECK(std::isnan(metric.value()));
}
