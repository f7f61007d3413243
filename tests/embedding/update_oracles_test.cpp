// update() against the gradient in double and then the optimizer's law in double, for every optimizer and
// format.
#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <type_traits>
#include <vector>

#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/tables/split_bf16_rows.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/optimizers.hpp>

#include "optim/oracles.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using optim_test::oracle;

namespace {

constexpr index_t rows = 6, width = 19, bags = 12, slots_of_bag = 3;

using numbers = std::vector<double>;

template <class Format>
numbers values_of(const dense_table<Format>& table, index_t r) {
  std::vector<float> values(static_cast<std::size_t>(width));
  table.view().format().decode(table.view().row(r), values.data());
  return {values.begin(), values.end()};
}

/// What the rounding of a row's values adds to the error, relative.
template <class Format>
constexpr double rounding_of() {
  using element = typename Format::element;
  return std::is_same_v<element, bf16> ? 0x1p-8 : std::is_same_v<element, f16> ? 0x1p-11 : 0x1p-24;
}

/// The largest error over its bound in eight steps; every step begins with the rows that the last one left.
template <class O, class Format, bool Wrong>
double worst_error() {
  const O made = oracle<O>::make();
  O optimizer = made;
  dense_table<Format> table(rows, Format(width, {.state_floats = O::row_state + O::element_state * width}));
  thread_pool pool(2);
  table.initialize(pool, row_init::uniform{.seed = 5, .bound = 1.0F});
  std::vector<numbers> state(static_cast<std::size_t>(rows),
                             numbers(static_cast<std::size_t>(O::row_state + O::element_state * width)));
  std::mt19937_64 random(deeprec_test::seed());
  std::normal_distribution<float> normal;
  double worst = 0;
  for (int t = 1; t <= 8; ++t) {
    // Every row is used in every step.
    std::vector<std::int64_t> ids;
    std::vector<float> weights, gradient;
    for (index_t k = 0; k < bags * slots_of_bag; ++k) {
      ids.push_back(k < rows ? k : static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(rows)));
      weights.push_back(0.25F + static_cast<float>(random() % 8) / 4);
    }
    for (index_t i = 0; i < bags * width; ++i) gradient.push_back(normal(random));
    std::vector<numbers> sums(static_cast<std::size_t>(rows), numbers(static_cast<std::size_t>(width)));
    std::vector<numbers> before;
    for (index_t r = 0; r < rows; ++r) before.push_back(values_of(table, r));
    for (std::size_t k = 0; k < ids.size(); ++k) {
      const std::size_t b = k / slots_of_bag;
      double total = 0;
      for (std::size_t j = b * slots_of_bag; j < (b + 1) * slots_of_bag; ++j) {
        total += static_cast<double>(weights[j]);
      }
      for (std::size_t j = 0; j < static_cast<std::size_t>(width); ++j) {
        sums[static_cast<std::size_t>(ids[k])][j] +=
            static_cast<double>(weights[k]) / total *
            static_cast<double>(gradient[b * static_cast<std::size_t>(width) + j]);
      }
    }
    const status s =
        update(pool, table.view(), fixed_hotness_view<>(ids.data(), bags, slots_of_bag, weights.data()),
               combiner::mean(combiner::by_weight), matrix_view<const float>(gradient.data(), bags, width),
               optimizer);
    REQUIRE_MESSAGE(s.ok(), s.message());
    next_step(optimizer);
    for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
      numbers expected = before[r];
      oracle<O, Wrong>::step(made, t, expected, sums[r], state[r]);
      const numbers got = values_of(table, static_cast<index_t>(r));
      for (std::size_t j = 0; j < got.size(); ++j) {
        const double bound = (1e-5 + rounding_of<Format>()) * (1 + std::fabs(expected[j]));
        worst = std::max(worst, std::fabs(got[j] - expected[j]) / bound);
      }
    }
  }
  return worst;
}

template <class O>
void check_formats() {
  CHECK(worst_error<O, f32_rows, false>() < 1);
  CHECK(worst_error<O, f16_rows, false>() < 1);
  CHECK(worst_error<O, bf16_rows, false>() < 1);
  CHECK(worst_error<O, split_bf16_rows, false>() < 1);
  CHECK(worst_error<O, f32_rows, true>() > 1);
}

}  // namespace

TEST_CASE_TEMPLATE("update: the optimizer's law on the summed gradient, every format", O, sgd, momentum,
                   adagrad, rowwise_adagrad, adagrad_decay, rmsprop, centered_rmsprop, adam, rowwise_adam,
                   adam_async, adam_async_rmsprop, ftrl) {
  check_formats<O>();
}
