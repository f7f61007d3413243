// The grouped AUC against its definition: every pair of a positive and a negative of one group.

#include <deeprec/dense/metrics/grouped_auc.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory_resource>
#include <new>
#include <numeric>
#include <random>
#include <vector>

#include <deeprec/dense/metrics/metrics.hpp>

#include "dense/support.hpp"

using namespace dense_test;
using namespace deeprec;

namespace {

struct sample {
  matrix scores, labels;
  std::vector<std::int64_t> groups;
  sample(index_t rows, index_t different, int distinct, std::mt19937_64& random)
      : scores(rows, 1, 2), labels(rows, 1, 1), groups(static_cast<std::size_t>(rows)) {
    std::normal_distribution<float> normal;
    for (index_t i = 0; i < rows; ++i) {
      labels(i, 0) = static_cast<float>(random() % 4 == 0);
      const float score = normal(random) + labels(i, 0);
      scores(i, 0) = distinct == 0 ? score : std::round(score * static_cast<float>(distinct));
      groups[static_cast<std::size_t>(i)] =
          (static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(different)) - 3) << 40;
    }
  }
};

struct expected_value {
  double value = 0;
  index_t groups = 0, left_out = 0;
};
enum class mean_of { impressions, groups };  // the weight of a group: its rows, or one

expected_value by_pairs(const sample& s, mean_of weight = mean_of::impressions) {
  std::map<std::int64_t, std::vector<index_t>> members;
  for (index_t i = 0; i < s.scores.rows; ++i) members[s.groups[static_cast<std::size_t>(i)]].push_back(i);
  expected_value found;
  double sum = 0, weights = 0;
  for (const auto& [group, rows] : members) {
    double wins = 0, pairs = 0;
    for (const index_t i : rows) {
      for (const index_t j : rows) {
        if (s.labels(i, 0) != 1 || s.labels(j, 0) != 0) continue;
        pairs += 1;
        wins += s.scores(i, 0) > s.scores(j, 0) ? 1 : s.scores(i, 0) == s.scores(j, 0) ? 0.5 : 0;
      }
    }
    if (pairs == 0) {
      ++found.left_out;
      continue;
    }
    ++found.groups;
    const double n = weight == mean_of::impressions ? static_cast<double>(rows.size()) : 1;
    sum += n * wins / pairs;
    weights += n;
  }
  found.value = sum / weights;
  return found;
}

}  // namespace

TEST_CASE("grouped auc: the mean over groups of rightly ordered pairs, weighted by rows") {
  std::mt19937_64 random(deeprec_test::seed());
  for (const index_t rows : {10, 100, 700}) {
    for (const index_t different : {1, 3, 40, 1000}) {
      for (const int distinct : {0, 1, 20}) {  // 1: nearly everything is a tie
        const sample s(rows, different, distinct, random);
        grouped_auc metric;
        REQUIRE(metric.add(s.scores.view(), s.labels.view(), s.groups).ok());
        const expected_value expected = by_pairs(s);
        CHECK(metric.groups() == expected.groups);
        CHECK(metric.groups_left_out() == expected.left_out);
        CHECK(metric.rows() == rows);
        if (expected.groups > 0) CHECK(metric.value() == doctest::Approx(expected.value).epsilon(1e-13));
        if (expected.groups == 0) CHECK(std::isnan(metric.value()));
      }
    }
  }
}

TEST_CASE("grouped auc: a mean in which groups count alike is caught") {
  std::mt19937_64 random(20);
  const sample s(300, 30, 0, random);
  grouped_auc metric;
  REQUIRE(metric.add(s.scores.view(), s.labels.view(), s.groups).ok());
  CHECK(std::abs(by_pairs(s, mean_of::groups).value - metric.value()) > 1e-3);
}

TEST_CASE("grouped auc: one group has the value of auc") {
  std::mt19937_64 random(deeprec_test::seed());
  sample s(400, 1, 5, random);
  s.labels(0, 0) = 1;
  s.labels(1, 0) = 0;
  grouped_auc grouped;
  auc whole;
  REQUIRE(grouped.add(s.scores.view(), s.labels.view(), s.groups).ok());
  REQUIRE(whole.add(s.scores.view(), s.labels.view()).ok());
  CHECK(grouped.value() == doctest::Approx(whole.value()).epsilon(1e-15));
}

TEST_CASE("grouped auc: the same bits however the rows are split, ordered and merged") {
  std::mt19937_64 random(deeprec_test::seed());
  const index_t rows = 3000;
  const sample s(rows, 100, 20, random);
  grouped_auc whole;
  REQUIRE(whole.add(s.scores.view(), s.labels.view(), s.groups).ok());
  for (int trial = 0; trial < 10; ++trial) {
    std::vector<index_t> order(static_cast<std::size_t>(rows));
    std::iota(order.begin(), order.end(), index_t{0});
    std::shuffle(order.begin(), order.end(), random);
    matrix scores(rows, 1), labels(rows, 1);
    std::vector<std::int64_t> groups;
    for (index_t i = 0; i < rows; ++i) {
      const index_t from = order[static_cast<std::size_t>(i)];
      scores(i, 0) = s.scores(from, 0);
      labels(i, 0) = s.labels(from, 0);
      groups.push_back(s.groups[static_cast<std::size_t>(from)]);
    }
    grouped_auc parts[3];
    for (index_t begin = 0; begin < rows;) {
      const index_t count = std::min<index_t>(rows - begin, static_cast<index_t>(random() % 400));
      REQUIRE(parts[random() % 3]
                  .add(scores.view().rows(begin, count), labels.view().rows(begin, count),
                       array_view<const std::int64_t>(groups).subview(begin, count))
                  .ok());
      begin += count;
    }
    static_cast<void>(parts[1].value());  // reading in between changes nothing
    parts[1].merge(parts[2]);
    parts[0].merge(parts[1]);
    CHECK(parts[0].value() == whole.value());
    CHECK(parts[0].groups() == whole.groups());
    CHECK(parts[0].groups_left_out() == whole.groups_left_out());
    CHECK(parts[0].rows() == rows);
  }
}

TEST_CASE("grouped auc: with weights, by its definition, as rows repeated, and in any order") {
  std::mt19937_64 random(deeprec_test::seed());
  for (const int distinct : {0, 1, 20}) {
    const index_t rows = 400;
    const sample s(rows, 12, distinct, random);
    matrix weights(rows, 1, 1), ones(rows, 1);
    for (index_t i = 0; i < rows; ++i) {
      weights(i, 0) = static_cast<float>(random() % 4);
      ones(i, 0) = 1;
    }
    grouped_auc weighted, repeated, plain, of_ones, backwards, halved;
    for (index_t i = 0; i < rows; ++i) {
      const auto of = array_view<const std::int64_t>(s.groups).subview(i, 1);
      for (float t = 0; t < weights(i, 0); ++t)
        REQUIRE(repeated.add(s.scores.view().rows(i, 1), s.labels.view().rows(i, 1), of).ok());
      const index_t k = rows - 1 - i;
      const auto of_k = array_view<const std::int64_t>(s.groups).subview(k, 1);
      REQUIRE(
          backwards
              .add(s.scores.view().rows(k, 1), s.labels.view().rows(k, 1), of_k, weights.view().rows(k, 1))
              .ok());
    }
    REQUIRE(weighted.add(s.scores.view(), s.labels.view(), s.groups, weights.view()).ok());
    CHECK(weighted.value() == doctest::Approx(repeated.value()).epsilon(1e-13));
    CHECK(weighted.groups() == repeated.groups());
    CHECK(weighted.groups_left_out() == repeated.groups_left_out());
    CHECK(weighted.value() == backwards.value());
    REQUIRE(plain.add(s.scores.view(), s.labels.view(), s.groups).ok());
    REQUIRE(of_ones.add(s.scores.view(), s.labels.view(), s.groups, ones.view()).ok());
    CHECK(of_ones.value() == plain.value());
    CHECK(weighted.value() != plain.value());  // or the weights do nothing
    // Sums of weights count, not their scale; and a merge keeps them.
    for (index_t i = 0; i < rows; ++i) weights(i, 0) *= 0.5F;
    REQUIRE(halved.add(s.scores.view(), s.labels.view(), s.groups, weights.view()).ok());
    grouped_auc merged;
    merged.merge(halved);
    CHECK(merged.value() == doctest::Approx(weighted.value()).epsilon(1e-13));
    const float bad[] = {-1};
    CHECK(merged
              .add(s.scores.view().rows(0, 1), s.labels.view().rows(0, 1),
                   array_view<const std::int64_t>(s.groups).subview(0, 1), {bad, 1, 1})
              .message() == "invalid value: metric: a weight must be in [0, 2^20]; row 0");
  }
}

TEST_CASE("grouped auc: rows merged into themselves count twice, which changes no area") {
  std::mt19937_64 random(deeprec_test::seed());
  const sample s(200, 4, 3, random);
  grouped_auc once, twice;
  REQUIRE(once.add(s.scores.view(), s.labels.view(), s.groups).ok());
  REQUIRE(twice.add(s.scores.view(), s.labels.view(), s.groups).ok());
  twice.merge(twice);
  CHECK(twice.rows() == 400);
  CHECK(twice.value() == doctest::Approx(once.value()).epsilon(1e-14));
}

TEST_CASE("grouped auc: infinite scores, both zeros as one, and groups of one class") {
  const float inf = std::numeric_limits<float>::infinity();
  const float z[] = {-inf, -0.0F, 0.0F, inf, 1, 2, 3};
  const float y[] = {0, 1, 0, 1, 1, 1, 0};
  const std::vector<std::int64_t> groups{7, 7, 7, 7, -1, -1, 1};
  grouped_auc metric;
  REQUIRE(metric.add({z, 7, 1}, {y, 7, 1}, groups).ok());
  CHECK(metric.value() == 0.875);
  CHECK(metric.groups() == 1);
  CHECK(metric.groups_left_out() == 2);
}

TEST_CASE("grouped auc: NaN while no group has both classes") {
  grouped_auc metric;
  CHECK(std::isnan(metric.value()));
  CHECK(metric.groups() == 0);
  REQUIRE(metric.add({}, {}, {}).code() == errc::shape_mismatch);  // no column
  REQUIRE(metric.add({nullptr, 0, 1}, {nullptr, 0, 1}, {}).ok());
  CHECK(std::isnan(metric.value()));
  const float z[] = {1, 2}, y[] = {1, 0};
  const std::vector<std::int64_t> groups{5, 6};
  REQUIRE(metric.add({z, 2, 1}, {y, 2, 1}, groups).ok());
  CHECK(std::isnan(metric.value()));
  CHECK(metric.groups_left_out() == 2);
}

TEST_CASE("grouped auc: bad values are reported with their row, and nothing is added") {
  matrix scores(3, 1), labels(3, 1);
  for (index_t i = 0; i < 3; ++i) scores(i, 0) = labels(i, 0) = 0;
  const std::vector<std::int64_t> groups{1, 2, 3}, few{1, 2};
  grouped_auc metric;
  scores(2, 0) = std::nanf("");
  CHECK(metric.add(scores.view(), labels.view(), groups).message() ==
        "invalid value: metric: a score must not be NaN; row 2");
  scores(2, 0) = 0;
  labels(1, 0) = 0.5F;
  CHECK(metric.add(scores.view(), labels.view(), groups).message() ==
        "invalid value: grouped_auc: a label must be 0 or 1; row 1");
  labels(1, 0) = 0;
  const status s = metric.add(scores.view(), labels.view(), few);
  CHECK(s.code() == errc::shape_mismatch);
  CHECK(s.message().find("groups.size() must be scores.extent(0) (is 2, must be 3)") != std::string::npos);
  CHECK(metric.add(scores.view(), labels.view(), array_view<const std::int64_t>(nullptr, 3)).code() ==
        errc::shape_mismatch);
  CHECK(metric.add(scores.view(), labels.view().rows(0, 2), groups).code() == errc::shape_mismatch);
  CHECK(metric.rows() == 0);
  CHECK(metric.groups_left_out() == 0);
#if DEEPREC_EXCEPTIONS
  grouped_auc refused(std::pmr::null_memory_resource());
  CHECK(refused.add(scores.view(), labels.view(), groups).code() == errc::out_of_memory);
  CHECK(refused.rows() == 0);
#endif
}

TEST_CASE("grouped auc: the example of its documentation") {
  //! [grouped_auc]
  const std::vector<float> scores{0.9F, 0.2F, 0.4F, 0.6F, 0.7F, 0.1F};
  const std::vector<float> labels{1, 0, 1, 0, 0, 1};
  const std::vector<std::int64_t> users{7, 7, 8, 8, 8, 9};
  grouped_auc area;
  area.add(matrix_view(scores.data(), 6, 1), matrix_view(labels.data(), 6, 1), users).or_throw();
  const double gauc = area.value();  // (2 * 1 + 3 * 0) / 5: user 9 has no negative, and is left out
  //! [grouped_auc]
  CHECK(gauc == doctest::Approx(0.4));
  CHECK(area.groups_left_out() == 1);
}
