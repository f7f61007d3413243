// Gradients against central differences, in double, of the forward pass written down as plain loops.
#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <vector>

#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/sgd.hpp>

#include "embedding/support.hpp"

namespace {

using namespace embedding_test;

struct forward_rule {
  pooled_as how = pooled_as::sum;
  double cap = 0;       // max_norm; 0: none
  long long fill = -1;  // default row
  bool prunes = false;  // negative ids and weights not above 0
  long long padding = -1;
};

/// sum over bags and columns of direction * pooled row.
double loss(const std::vector<double>& table, index_t width, const jagged_view<>& bags,
            const std::vector<float>& direction, const forward_rule& rule) {
  double total = 0;
  for (index_t b = 0; b < bags.bags(); ++b) {
    std::vector<double> pooled(static_cast<std::size_t>(width));
    double used = 0;
    double weights = 0;
    double squares = 0;
    const auto add = [&](long long id, double weight) {
      const double* const row = table.data() + id * width;
      double norm = 0;
      for (index_t j = 0; j < width; ++j) norm += row[j] * row[j];
      norm = std::sqrt(norm);
      const double factor = rule.cap > 0 && norm > rule.cap ? rule.cap / norm : 1;
      for (index_t j = 0; j < width; ++j) pooled[static_cast<std::size_t>(j)] += weight * factor * row[j];
      used += 1;
      weights += weight;
      squares += weight * weight;
    };
    for (auto k = bags.offsets()[b]; k < bags.offsets()[b + 1]; ++k) {
      const double weight = bags.weights() == nullptr ? 1.0 : static_cast<double>(bags.weights()[k]);
      if (bags.ids()[k] == rule.padding) continue;
      const bool dropped = bags.ids()[k] < 0 || (rule.how != pooled_as::sum && !(weight > 0));
      if (rule.prunes && dropped) continue;
      add(bags.ids()[k], weight);
    }
    if (used == 0 && rule.fill >= 0) add(rule.fill, 1.0);
    const double by = used == 0 || rule.how == pooled_as::sum ? 1.0
                      : rule.how == pooled_as::mean_by_count  ? used
                      : rule.how == pooled_as::mean_by_weight ? weights
                                                              : std::sqrt(squares);
    for (index_t j = 0; j < width; ++j) {
      total += static_cast<double>(direction[static_cast<std::size_t>(b * width + j)]) *
               pooled[static_cast<std::size_t>(j)] / by;
    }
  }
  return total;
}

struct problem {
  index_t rows = 14;
  index_t width = 19;
  batch<std::int64_t, std::int64_t> made;
  std::vector<float> direction;
  std::vector<double> values;

  problem(std::mt19937_64& random, bool bad)
      : made(make_batch(random, shape_of_batch::uniform, 11, rows, 3)) {
    std::normal_distribution<float> normal(0, 1);
    made.offsets.push_back(made.offsets.back());  // an empty bag
    for (float& w : made.weights) w = std::fabs(w) + 0.25F;
    for (std::size_t k = 0; bad && k < made.ids.size(); ++k) {
      if (k % 4 == 1) made.ids[k] = -3;
      if (k % 5 == 2) made.weights[k] = k % 2 == 0 ? 0.0F : -1.0F;
    }
    for (index_t i = 0; i < 12 * width; ++i) direction.push_back(normal(random));
    for (index_t i = 0; i < rows * width; ++i) values.push_back(static_cast<double>(normal(random)));
  }

  /// What one step of rate 1 upwards adds to the rows: the gradient.
  template <class Executor, class How>
  std::vector<double> by_update(Executor& executor, isa which, const How& how, bool weighted) const {
    dense_table<f32_rows> table(rows, width);
    table.initialize(inline_executor{}, row_init::zeros{});
    auto* const at = static_cast<float*>(static_cast<void*>(table.view().data()));
    const auto stride = static_cast<index_t>(table.view().format().stride_bytes() / 4);
    for (index_t i = 0; i < rows * width; ++i) {
      at[i / width * stride + i % width] = static_cast<float>(values[static_cast<std::size_t>(i)]);
    }
    const status s = update(on(executor, which), table.view(), made.view(weighted), how,
                            matrix_view(direction.data(), 12, width), sgd{.learning_rate = -1.0F});
    REQUIRE_MESSAGE(s.ok(), s.message());
    std::vector<double> gradient;
    for (index_t i = 0; i < rows * width; ++i) {
      gradient.push_back(static_cast<double>(at[i / width * stride + i % width]) -
                         static_cast<double>(static_cast<float>(values[static_cast<std::size_t>(i)])));
    }
    return gradient;
  }

  bool agrees(const std::vector<double>& gradient, bool weighted, const forward_rule& rule) const {
    constexpr double step = 1e-5;
    std::vector<double> moved = values;
    for (std::size_t i = 0; i < moved.size(); ++i) {
      const double kept = moved[i];
      moved[i] = kept + step;
      const double up = loss(moved, width, made.view(weighted), direction, rule);
      moved[i] = kept - step;
      const double down = loss(moved, width, made.view(weighted), direction, rule);
      moved[i] = kept;
      const double expected = (up - down) / (2 * step);
      if (!(std::fabs(gradient[i] - expected) <= 2e-5 * (1 + std::fabs(expected)))) {
        return false;
      }
    }
    return true;
  }
};

}  // namespace

TEST_CASE(
    "update: gradients are central differences, for every combiner, with weights, max_norm, fills and "
    "pruning") {
  std::mt19937_64 random(seed());
  inline_executor here;
  const problem clean(random, false);
  const problem dirty(random, true);
  for (const isa which : runnable_isas()) {
    CAPTURE(to_string(which));
    const auto check = [&](const problem& p, const auto& how, bool weighted, const forward_rule& rule) {
      CHECK(p.agrees(p.by_update(here, which, how, weighted), weighted, rule));
    };
    const max_norm two{2.0F};
    const empty_bag::default_row fill{5};
    for (const bool weighted : {false, true}) {
      check(clean, combiner::sum, weighted, {pooled_as::sum});
      check(clean, combiner::mean, weighted, {pooled_as::mean_by_count});
      check(clean, combiner::mean(combiner::by_weight), weighted, {pooled_as::mean_by_weight});
      check(clean, combiner::sqrtn, weighted, {pooled_as::sqrtn});
      check(clean, pooling(combiner::sqrtn, two), weighted, {pooled_as::sqrtn, 2.0});
      check(clean, pooling(combiner::mean, two, fill), weighted, {pooled_as::mean_by_count, 2.0, 5});
      check(clean, pooling(combiner::sum, padding::id{3}, fill), weighted, {pooled_as::sum, 0, 5, false, 3});
      check(dirty, pooling(combiner::mean(combiner::by_weight), padding::prune, two, fill), weighted,
            {pooled_as::mean_by_weight, 2.0, 5, true});
      check(dirty, pooling(combiner::sum, padding::prune), weighted, {pooled_as::sum, 0, -1, true});
    }
  }
}

TEST_CASE(
    "H6: the gradient of sqrtn is divided by the root, and an empty bag gives none where it became "
    "zeros") {
  std::mt19937_64 random(seed());
  inline_executor here;
  const problem p(random, false);
  const auto gradient = p.by_update(here, best_isa(), combiner::sqrtn, true);
  CHECK(p.agrees(gradient, true, {pooled_as::sqrtn}));
  CHECK_FALSE(p.agrees(gradient, true, {pooled_as::sum}));          // the upstream defect
  CHECK_FALSE(p.agrees(gradient, true, {pooled_as::sqrtn, 0, 5}));  // and the other one: a fill that was not
  CHECK_FALSE(p.agrees(p.by_update(here, best_isa(), pooling(combiner::sqrtn, max_norm{2.0F}), true), true,
                       {pooled_as::sqrtn}));  // a norm that was forgotten
}

TEST_CASE("update: a row with more slots than a chunk has the same bits on 1 to 8 threads") {
  std::mt19937_64 random(seed());
  auto made = make_batch(random, shape_of_batch::uniform, 4000, 50, 4);
  for (std::size_t k = 0; k < made.ids.size(); ++k) made.ids[k] = k % 2 == 0 ? 7 : made.ids[k];
  const index_t width = 33;
  std::vector<float> direction(static_cast<std::size_t>(4000 * width));
  std::normal_distribution<float> normal(0, 1);
  for (float& x : direction) x = normal(random);
  std::vector<double> exact(static_cast<std::size_t>(width));
  for (index_t b = 0; b < 4000; ++b) {
    for (auto k = made.offsets[static_cast<std::size_t>(b)];
         k < made.offsets[static_cast<std::size_t>(b) + 1]; ++k) {
      if (made.ids[static_cast<std::size_t>(k)] != 7) continue;
      for (std::size_t j = 0; j < exact.size(); ++j) {
        exact[j] += static_cast<double>(direction[static_cast<std::size_t>(b * width) + j]);
      }
    }
  }
  std::vector<float> first;
  for (int threads = 1; threads <= 8; ++threads) {
    thread_pool pool(threads);
    dense_table<f32_rows> table(50, width);
    table.initialize(pool, row_init::zeros{});
    REQUIRE(update(pool, table.view(), made.view(), combiner::sum, matrix_view(direction.data(), 4000, width),
                   sgd{.learning_rate = -1.0F})
                .ok());
    std::vector<float> row(static_cast<std::size_t>(width));
    table.view().format().decode(table.view().row(7), row.data());
    if (first.empty()) first = row;
    CHECK(row == first);
    for (std::size_t j = 0; j < row.size(); ++j) {
      CHECK(static_cast<double>(row[j]) == doctest::Approx(exact[j]).epsilon(1e-4).scale(100));
    }
  }
}
