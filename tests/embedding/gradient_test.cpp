// Gradients that are handed out: of rows against plain loops, of weights against central differences.
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <span>
#include <vector>

#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/tables/row_format.hpp>
#include <deeprec/embedding/training/gradient.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/adagrad.hpp>

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
        const status s = row_gradients(pool, 40, view, combiner::mean, gradient, out);
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
  const status s = row_gradients(here, 9, bags, combiner::sum, matrix_view<const float>(g.data(), 1, 4), out);
  CHECK(s.code() == errc::id_out_of_range);
  CHECK(s.place().position == 1);
  CHECK(
      row_gradients(here, 10, bags, combiner::sum, matrix_view<const float>(nullptr, 1, 4), out).message() ==
      "shape mismatch: row_gradients: gradient must not be null");
  CHECK(out.rows.size() == 1);
  CHECK(row_gradients(here, 10, bags, combiner::sum, matrix_view<const float>(g.data(), 2, 2), out).code() ==
        errc::shape_mismatch);
  CHECK(row_gradients(here, 10, jagged_view<>(), combiner::sum, matrix_view<const float>(nullptr, 0, 4), out)
            .ok());
  CHECK(out.rows.empty());
}

TEST_CASE("row_gradients: rows without columns are named as others are") {
  std::mt19937_64 random(seed() + 1);
  thread_pool pool(2);
  const auto made = make_batch(random, shape_of_batch::one_huge, 300, 40, 20);
  sparse_gradient wide, none;
  none.rows.assign(1000, -5);
  none.values.assign(1000, -5.0F);
  const std::vector<float> g(300 * 2);
  REQUIRE(
      row_gradients(pool, 40, made.view(), combiner::sum, matrix_view<const float>(g.data(), 300, 2), wide)
          .ok());
  REQUIRE(row_gradients(pool, 40, made.view(), combiner::sum, matrix_view<const float>(nullptr, 300, 0), none)
              .ok());
  CHECK(none.rows == wide.rows);
  CHECK(none.values.empty());
}

TEST_CASE("weight_gradients: what is wrong is said, and nothing is written") {
  inline_executor here;
  std::vector<float> rows(10 * 4, 1.0F), out(3, 7.0F);
  const auto table = as_table(matrix_view(rows.data(), 10, 4));
  const std::vector<float> g(2 * 4, 1.0F), weights{std::nanf(""), 1, 1};
  const std::vector<std::int64_t> offsets{0, 2, 3}, ids{1, 2, 3}, bad{1, 10, 3};
  const jagged_view<> bags(offsets.data(), 2, ids.data(), 3);
  const matrix_view<const float> gradient(g.data(), 2, 4);
  for (const float cap : {0.0F, -1.0F, std::numeric_limits<float>::quiet_NaN()}) {
    CHECK(
        weight_gradients(here, table, bags, pooling{combiner::sum, max_norm{cap}}, gradient, out).message() ==
        "invalid value: weight_gradients: pooling: max_norm must be above 0");
  }
  CHECK(weight_gradients(here, table, jagged_view<>(offsets.data(), 2, bad.data(), 3), combiner::sum,
                         gradient, out)
            .place()
            .position == 1);
  const jagged_view<> weighted(offsets.data(), 2, ids.data(), 3, weights.data());
  CHECK(weight_gradients(here, table, weighted, combiner::sum, gradient, out).code() == errc::weight_is_nan);
  CHECK(weight_gradients(here, table, bags, combiner::sum, matrix_view<const float>(nullptr, 2, 4), out)
            .message() == "shape mismatch: weight_gradients: gradient must not be null");
  CHECK(weight_gradients(here, table, bags, combiner::sum, gradient, std::span<float>(out).first(2)).code() ==
        errc::shape_mismatch);
  CHECK(out == std::vector<float>(3, 7.0F));
  CHECK(weight_gradients(here, table, weighted, pooling{combiner::mean(combiner::by_weight), padding::id{1}},
                         gradient, out)
            .ok());
  CHECK(out == std::vector<float>(3, 0.0F));  // one id in each bag is left
}

TEST_CASE("gradients: one row that serves every bag, by a stride of 0, has the bits of its copies") {
  std::mt19937_64 random(seed() + 2);
  const index_t bags = 200, rows = 40, width = 21;
  auto made = make_batch(random, shape_of_batch::one_huge, bags, rows, 5);
  for (float& w : made.weights) w = std::fabs(w) + 0.25F;
  const auto row = normals(random, width), other = normals(random, width);
  std::vector<float> copies, others;
  for (index_t b = 0; b < bags; ++b) {
    copies.insert(copies.end(), row.begin(), row.end());
    others.insert(others.end(), other.begin(), other.end());
  }
  const matrix_view<const float> repeated(row.data(), bags, width, 0), dense(copies.data(), bags, width),
      of_other(others.data(), bags, width);
  thread_pool pool(3);
  for (const isa which : runnable_isas()) {
    CAPTURE(to_string(which));
    const auto ctx = on(pool, which);
    const auto check = [&](const auto& how, bool weighted) {
      const auto trained = [&](matrix_view<const float> gradient) {
        dense_table<f32_rows> table(rows, f32_rows(width, {.state_floats = 1}));
        table.initialize(pool, row_init::uniform{.seed = 3, .bound = 1.0F});
        const status s = update(ctx, table.view(), made.view(weighted), how, gradient, rowwise_adagrad{});
        REQUIRE_MESSAGE(s.ok(), s.message());
        const std::byte* const first = table.view().data();
        return std::vector<std::byte>(first, first + rows * table.view().format().stride_bytes());
      };
      CHECK(trained(repeated) == trained(dense));
      CHECK(trained(repeated) != trained(of_other));  // or the gradient does nothing
      dense_table<f32_rows> table(rows, f32_rows(width));
      table.initialize(pool, row_init::uniform{.seed = 4, .bound = 1.0F});
      const auto of_weights = [&](matrix_view<const float> gradient) {
        std::vector<float> out(made.ids.size(), 7.0F);
        const status s = weight_gradients(ctx, table.view(), made.view(weighted), how, gradient, out);
        REQUIRE_MESSAGE(s.ok(), s.message());
        return out;
      };
      CHECK(of_weights(repeated) == of_weights(dense));
      CHECK(of_weights(repeated) != of_weights(of_other));
    };
    for (const bool weighted : {false, true}) {
      check(combiner::sum, weighted);
      check(combiner::mean(combiner::by_weight), weighted);
    }
  }
}

namespace {

enum class dot_mistake { none, through_divisor, padding };

/// The largest error over its bound, of what weight_gradients says against the derivative in double.
template <class Bags>
double worst_weight_gradient(const std::vector<std::vector<double>>& table, const Bags& bags,
                             matrix_view<const float> gradient, pooled_as how, bool positive,
                             std::int64_t padding, double cap, const guarded<float>& got,
                             dot_mistake mistake = dot_mistake::none) {
  const index_t width = gradient.extent(1);
  const double u = 0x1p-24;
  const index_t first = bags.first_position();
  double worst = 0;
  for (index_t b = 0; b < bags.bags(); ++b) {
    const index_t begin = bags.ranges().begin(b), end = bags.ranges().end(b);
    const auto slots = static_cast<std::size_t>(end - begin);
    std::vector<double> dot(slots), size(slots), weight(slots, 1.0);
    std::vector<bool> used(slots);
    double n = 0, sum_of_weights = 0, squares = 0, weighted = 0, weighted_size = 0;
    for (std::size_t i = 0; i < slots; ++i) {
      const index_t k = begin + static_cast<index_t>(i);
      const std::int64_t id = bags.ids()[k];
      if (bags.weights() != nullptr) weight[i] = static_cast<double>(bags.weights()[k]);
      used[i] = id >= 0 && id < static_cast<std::int64_t>(table.size()) &&
                (id != padding || mistake == dot_mistake::padding) && !(positive && !(weight[i] > 0));
      if (!used[i]) continue;
      const std::vector<double>& row = table[static_cast<std::size_t>(id)];
      double norm = 0;
      for (std::size_t j = 0; j < row.size(); ++j) {
        const double product = row[j] * static_cast<double>(gradient(b, static_cast<index_t>(j)));
        norm += row[j] * row[j];
        dot[i] += product;
        size[i] += std::fabs(product);
      }
      const double factor = cap > 0 && std::sqrt(norm) > cap ? cap / std::sqrt(norm) : 1.0;
      dot[i] *= factor;
      size[i] *= factor * (cap > 0 ? 2 : 1);  // the norm's own error is D u at most
      n += 1;
      sum_of_weights += weight[i];
      squares += weight[i] * weight[i];
      weighted += weight[i] * dot[i];
      weighted_size += std::fabs(weight[i]) * size[i];
    }
    const double by = how == pooled_as::sum              ? 1.0
                      : how == pooled_as::mean_by_count  ? n
                      : how == pooled_as::mean_by_weight ? sum_of_weights
                                                         : std::sqrt(squares);
    for (std::size_t i = 0; i < slots; ++i) {
      double expected = 0, bound = 1e-30;
      if (used[i] && by != 0) {
        const double through = how == pooled_as::mean_by_weight ? 1 / (by * by)
                               : how == pooled_as::sqrtn        ? weight[i] / (by * by * by)
                                                                : 0.0;
        expected = dot[i] / by - (mistake == dot_mistake::through_divisor ? 0.0 : weighted * through);
        bound += 2 * static_cast<double>(width + 2) * u *
                     (size[i] / std::fabs(by) + weighted_size * std::fabs(through)) +
                 u * std::fabs(expected);
      }
      const double off =
          std::fabs(static_cast<double>(got[static_cast<std::size_t>(begin - first) + i]) - expected) / bound;
      worst = off > worst || std::isnan(off) ? off : worst;
    }
  }
  return worst;
}

}  // namespace

TEST_CASE_TEMPLATE(
    "weight_gradients: the derivative in double, every combiner, policy and ISA, beside guard pages", T,
    float, f16, bf16) {
  std::mt19937_64 random(seed() + 2);
  bool divisor_seen = false, padding_seen = false;
  for (int trial = 0; trial < 40; ++trial) {
    const auto width = static_cast<index_t>(trial < 20 ? trial + 1 : 1 + random() % 140);
    const index_t bags = trial == 0 ? 0 : static_cast<index_t>(random() % 30);
    CAPTURE(width);
    CAPTURE(bags);
    const guarded_table<T> table(random, 40, width);
    auto made = make_batch(random, every_shape[trial % 5], bags, 40, 5);
    const auto g = normals(random, bags * width);
    const auto check = [&](const auto& how, pooled_as as, bool weighted, bool positive = false,
                           std::int64_t padding = -1, double cap = 0) {
      for (const fence side : every_fence) {
        const guarded_batch fenced(made, side);
        const auto view = fenced.view(weighted).slice(bags / 4, bags - bags / 4);
        const auto of_out = guarded<float>::copy_of(g, side);
        const matrix_view<const float> gradient(of_out.data() + bags / 4 * width, view.bags(), width);
        for (const isa which : runnable_isas()) {
          CAPTURE(to_string(which));
          inline_executor here;
          guarded<float> out(static_cast<std::size_t>(view.end_position() - view.first_position()), side);
          for (std::size_t k = 0; k < out.size(); ++k) out[k] = std::nanf("");
          const status s = weight_gradients(on(here, which), table.at(side), view, how, gradient,
                                            std::span<float>(out.data(), out.size()));
          REQUIRE_MESSAGE(s.ok(), s.message());
          CHECK(worst_weight_gradient(table.values, view, gradient, as, positive, padding, cap, out) <= 1);
          divisor_seen |= worst_weight_gradient(table.values, view, gradient, as, positive, padding, cap, out,
                                                dot_mistake::through_divisor) > 1;
          padding_seen |= worst_weight_gradient(table.values, view, gradient, as, positive, padding, cap, out,
                                                dot_mistake::padding) > 1;
        }
      }
    };
    for (const bool weighted : {false, true}) {
      check(combiner::sum, pooled_as::sum, weighted);
      check(combiner::mean, pooled_as::mean_by_count, weighted);
      check(combiner::mean(combiner::by_weight), pooled_as::mean_by_weight, weighted);
      check(combiner::sqrtn, pooled_as::sqrtn, weighted);
      check(pooling{combiner::sqrtn, max_norm{1.5F}}, pooled_as::sqrtn, weighted, false, -1, 1.5);
    }
    for (std::size_t k = 0; k < made.ids.size(); k += 4) {
      made.ids[k] = k % 3 == 0 ? -1 : 7;
      made.weights[k] = std::numeric_limits<float>::quiet_NaN();
    }
    check(pooling{combiner::mean(combiner::by_weight), padding::prune}, pooled_as::mean_by_weight, true,
          true);
    check(pooling{combiner::mean, padding::prune}, pooled_as::mean_by_count, true, true);
    for (auto& id : made.ids) id = id < 0 ? 7 : id;
    for (std::size_t k = 0; k < made.ids.size(); ++k) {
      if (made.ids[k] == 7) made.weights[k] = std::numeric_limits<float>::quiet_NaN();
    }
    check(pooling{combiner::sqrtn, padding::id{7}}, pooled_as::sqrtn, true, false, 7);
    check(pooling{combiner::mean(combiner::by_weight), padding::id{7}}, pooled_as::mean_by_weight, true,
          false, 7);
    check(pooling{combiner::sum, padding::id{7}, max_norm{1.5F}}, pooled_as::sum, false, false, 7, 1.5);
  }
  CHECK(divisor_seen);  // mistakes in the oracle are seen
  CHECK(padding_seen);
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
    const status s = weight_gradients(here, table.view, made.view(true), how, gradient, out);
    //! [weight_gradients]
    REQUIRE_MESSAGE(s.ok(), s.message());
    const auto loss = [&] {
      std::vector<float> pooled(static_cast<std::size_t>(bags * width));
      REQUIRE(lookup(here, table.view, made.view(true), how, matrix_view(pooled.data(), bags, width)).ok());
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
      CHECK(std::fabs(static_cast<double>(out[k]) - (up - down) / 0.03125) <= 4e-3 * (1 + std::fabs(out[k])));
      nonzero |= out[k] != 0;
      if (made.ids[k] < 0) CHECK(out[k] == 0.0F);
    }
    CHECK(nonzero);
    std::vector<float> again(out.size());
    REQUIRE(weight_gradients(pool, table.view, made.view(true), how, gradient, again).ok());
    CHECK(again == out);
    for (const isa which : runnable_isas()) {
      REQUIRE(weight_gradients(on(here, which), table.view, made.view(true), how, gradient, again).ok());
      for (std::size_t k = 0; k < out.size(); ++k) CHECK(std::fabs(again[k] - out[k]) <= 1e-4F);
    }
  };
  check(pooling(combiner::sum, padding::prune));
  check(pooling(combiner::mean, padding::prune));
  check(pooling(combiner::mean(combiner::by_weight), padding::prune));
  check(pooling(combiner::sqrtn, padding::prune));
  check(pooling(combiner::sqrtn, padding::prune, max_norm{3.0F}));
}
