// Optimizer state in a matrix of its own: the bits of state beside the rows.
#include <deeprec/embedding/state_apart.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include <deeprec/embedding/dense_table.hpp>
#include <deeprec/embedding/lookup.hpp>
#include <deeprec/embedding/update.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/adagrad.hpp>
#include <deeprec/optim/adam.hpp>

#include "support/batches.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

constexpr index_t rows = 50, bags = 40;

/// Three steps with state beside the rows and apart from them: rows and states have the same bits.
template <class T, class Optimizer>
void compare(Optimizer optimizer, index_t width) {
  CAPTURE(width);
  constexpr index_t room = Optimizer::row_state;
  const index_t floats = room + Optimizer::element_state * width;
  thread_pool pool(3);
  dense_table<plain_rows<T>> beside(rows, plain_rows<T>(width, {.state_floats = floats}));
  dense_table<plain_rows<T>> weights(rows, plain_rows<T>(width));
  beside.initialize(pool, uniform_rows{.seed = 4, .bound = 1.0F});
  weights.initialize(pool, uniform_rows{.seed = 4, .bound = 1.0F});
  const index_t stride = floats + 3;
  std::vector<float> state(static_cast<std::size_t>(rows * stride), 0.0F);
  const auto apart = with_state(weights.view(), matrix_view<float>(state.data(), rows, floats, stride));
  std::mt19937_64 random(seed());
  std::normal_distribution<float> normal;
  for (int step = 0; step < 3; ++step) {
    const auto made = make_batch(random, shape_of_batch::skewed, bags, rows, 4);
    std::vector<float> gradient(static_cast<std::size_t>(bags * width));
    for (float& g : gradient) g = normal(random);
    const matrix_view<const float> g(gradient.data(), bags, width);
    REQUIRE(update(pool, made.view(), g, mean, optimizer, beside.view()).ok());
    REQUIRE(update(pool, made.view(), g, mean, optimizer, apart).ok());
    advance(optimizer);
  }
  bool changed = false;
  for (index_t r = 0; r < rows; ++r) {
    CHECK(std::memcmp(beside.view().row(r), weights.view().row(r), static_cast<std::size_t>(width) * sizeof(T)) == 0);
    const float* const expected = beside.view().format().state(beside.view().row(r));
    const float* const got = state.data() + r * stride;
    CHECK(std::memcmp(expected, got, static_cast<std::size_t>(floats) * sizeof(float)) == 0);
    CHECK(apart.format().state(apart.row(r)) == got);
    for (index_t c = 0; c < floats; ++c) changed |= got[c] != 0.0F;
    CHECK(std::all_of(got + floats, got + stride, [](float x) { return x == 0.0F; }));
  }
  CHECK(changed);
}

}  // namespace

TEST_CASE("state_apart: rows and states have the bits of state beside the rows") {
  for (const index_t width : {3, 16, 37}) {
    compare<float>(rowwise_adagrad{.learning_rate = 0.1F}, width);
    compare<float>(adam{.learning_rate = 0.1F}, width);
    compare<bf16>(adam{.learning_rate = 0.1F}, width);
  }
}

TEST_CASE("state_apart: state of another size is refused and nothing is written") {
  inline_executor here;
  dense_table<f32_rows> weights(rows, f32_rows(4));
  weights.initialize(here, uniform_rows{.seed = 4});
  std::vector<float> state(static_cast<std::size_t>(rows * 8));
  const std::int64_t id = 7;
  const std::vector<float> gradient(4, 1.0F);
  const fixed_view<> batch(&id, 1, 1);
  const matrix_view<const float> g(gradient.data(), 1, 4);
  const std::vector<std::byte> before(weights.view().row(0), weights.view().row(0) + rows * 16);
  const auto refused = [&](matrix_view<float> given) {
    return update(here, batch, g, sum, adam{}, with_state(weights.view(), given)).code() == errc::shape_mismatch;
  };
  CHECK(refused({state.data(), rows - 1, 8}));
  CHECK(refused({state.data(), rows, 7}));
  CHECK(refused({nullptr, 0, 0}));
  CHECK(refused({nullptr, rows, 8}));
  CHECK(refused({state.data(), rows, 8, 7}));
  CHECK(refused({state.data(), rows, index_t{1} << 61}));
  CHECK(std::memcmp(before.data(), weights.view().row(0), before.size()) == 0);
}

TEST_CASE("state_apart: the example of its documentation") {
  inline_executor here;
  std::vector<float> weights(100 * 8, 0.5F), moments(100 * 16, 0.0F);
  const std::vector<std::int64_t> ids{7, 9};
  const std::vector<float> gradient(8, 1.0F);
  //! [with_state]
  const auto table = as_table(matrix_view(weights.data(), 100, 8));
  const status s = update(here, fixed_view<>(ids.data(), 1, 2), matrix_view(gradient.data(), 1, 8), sum,
                          adam{.learning_rate = 0.1F}, with_state(table, matrix_view(moments.data(), 100, 16)));
  //! [with_state]
  REQUIRE_MESSAGE(s.ok(), s.message());
  CHECK(weights[7 * 8] == doctest::Approx(0.4F));
  CHECK(moments[9 * 16] != 0.0F);
  CHECK(moments[8 * 16] == 0.0F);
}
