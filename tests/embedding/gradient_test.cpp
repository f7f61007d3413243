// Gradients that are handed out: of rows against plain loops, of weights against central differences.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <span>
#include <vector>

#include <deeprec/embedding/gradient.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "embedding/support.hpp"

namespace {

using namespace embedding_test;

std::vector<float> normals(std::mt19937_64& random, index_t n) {
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& x : values) x = normal(random);
  return values;
}

}  // namespace

TEST_CASE("row_gradients: the sum over the slots of each row, ascending, for any number of threads") {
  std::mt19937_64 random(seed());
  const index_t width = 21;
  for (const shape_of_batch shape : every_shape) {
    auto made = make_batch(random, shape, 300, 40, 5);
    const index_t bags = 300;
    const auto g = normals(random, bags * width);
    const matrix_view<const float> gradient(g.data(), bags, width);
    for (const bool weighted : {false, true}) {
      const auto view = made.view(weighted);
      std::map<std::int64_t, std::vector<double>> expected;
      for (index_t b = 0; b < bags; ++b) {
        const auto n = static_cast<double>(view.offsets()[b + 1] - view.offsets()[b]);
        for (auto k = view.offsets()[b]; k < view.offsets()[b + 1]; ++k) {
          auto& row = expected[view.ids()[k]];
          row.resize(static_cast<std::size_t>(width));
          const double w = weighted ? static_cast<double>(view.weights()[k]) : 1.0;
          for (index_t j = 0; j < width; ++j) {
            row[static_cast<std::size_t>(j)] += w / n * static_cast<double>(gradient(b, j));
          }
        }
      }
      std::vector<float> first;
      for (const int threads : {1, 2, 5}) {
        thread_pool pool(threads);
        sparse_gradient out;
        //! [row_gradients]
        const status s = row_gradients(pool, view, gradient, mean, 40, out);
        //! [row_gradients]
        REQUIRE_MESSAGE(s.ok(), s.message());
        REQUIRE(out.rows.size() == expected.size());
        std::size_t u = 0;
        for (const auto& [id, row] : expected) {
          CHECK(out.rows[u] == id);
          for (std::size_t j = 0; j < row.size(); ++j) {
            const double got = static_cast<double>(out.values[u * static_cast<std::size_t>(width) + j]);
            CHECK(std::fabs(got - row[j]) <= 1e-4 * (1 + std::fabs(row[j])));
          }
          ++u;
        }
        const std::vector<float> values(out.values.begin(), out.values.end());
        if (first.empty()) first = values;
        CHECK(values == first);
      }
    }
  }
}

TEST_CASE("row_gradients: bad input is reported, and out is as before") {
  inline_executor here;
  const std::vector<std::int64_t> offsets{0, 2}, ids{1, 9};
  const std::vector<float> g(4);
  sparse_gradient out;
  out.rows = {77};
  const jagged_view bags(offsets.data(), 1, ids.data(), 2);
  const status s = row_gradients(here, bags, matrix_view<const float>(g.data(), 1, 4), sum, 9, out);
  CHECK(s.code() == errc::id_out_of_range);
  CHECK(s.place().slot == 1);
  CHECK(out.rows.size() == 1);
  CHECK(row_gradients(here, bags, matrix_view<const float>(g.data(), 2, 2), sum, 10, out).code() ==
        errc::shape_mismatch);
  CHECK(row_gradients(here, jagged_view<>(), matrix_view<const float>(nullptr, 0, 4), sum, 10, out).ok());
  CHECK(out.rows.empty());
}

TEST_CASE("weight_gradients: central differences of lookup, for every combiner, clipped and pruned") {
  std::mt19937_64 random(seed());
  inline_executor here;
  thread_pool pool(3);
  const index_t bags = 17;
  const index_t width = 23;
  const guarded_table<float> table(random, 12, width);
  auto made = make_batch(random, shape_of_batch::uniform, bags, 12, 3);
  for (float& w : made.weights) w = std::fabs(w) + 0.5F;
  for (std::size_t k = 0; k < made.ids.size(); k += 6) made.ids[k] = -1;
  const auto direction = normals(random, bags * width);
  const matrix_view<const float> gradient(direction.data(), bags, width);
  const auto check = [&](const auto& how) {
    std::vector<float> out(made.ids.size(), 99.0F);
    //! [weight_gradients]
    const status s = weight_gradients(here, table.view, made.view(true), gradient, how, out);
    //! [weight_gradients]
    REQUIRE_MESSAGE(s.ok(), s.message());
    const auto loss = [&] {
      std::vector<float> pooled(static_cast<std::size_t>(bags * width));
      REQUIRE(
          lookup(here, table.view, made.view(true), how, matrix_view(pooled.data(), bags, width)).ok());
      double total = 0;
      for (std::size_t i = 0; i < pooled.size(); ++i) {
        total += static_cast<double>(pooled[i]) * static_cast<double>(direction[i]);
      }
      return total;
    };
    bool nonzero = false;
    for (std::size_t k = 0; k < out.size(); ++k) {
      const float kept = made.weights[k];
      made.weights[k] = kept + 0.015625F;
      const double up = loss();
      made.weights[k] = kept - 0.015625F;
      const double down = loss();
      made.weights[k] = kept;
      CHECK(std::fabs(static_cast<double>(out[k]) - (up - down) / 0.03125) <=
            4e-3 * (1 + std::fabs(out[k])));
      nonzero |= out[k] != 0;
      if (made.ids[k] < 0) CHECK(out[k] == 0.0F);
    }
    CHECK(nonzero);
    std::vector<float> again(out.size());
    REQUIRE(weight_gradients(pool, table.view, made.view(true), gradient, how, again).ok());
    CHECK(again == out);
    for (const isa which : runnable_isas()) {
      REQUIRE(weight_gradients(on(here, which), table.view, made.view(true), gradient, how, again).ok());
      for (std::size_t k = 0; k < out.size(); ++k) CHECK(std::fabs(again[k] - out[k]) <= 1e-4F);
    }
  };
  check(pooling(sum, prune));
  check(pooling(mean, prune));
  check(pooling(mean(by_weight), prune));
  check(pooling(sqrtn, prune));
  check(pooling(sqrtn, prune, max_norm{3.0F}));
}
