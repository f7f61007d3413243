// What wrappers do to gradients and weights, and norms over several gradients.

#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/optimizers.hpp>

#include "oracles.hpp"
#include "support/seed.hpp"

#include <doctest/doctest.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

using namespace deeprec;
using namespace optim_test;

namespace {

// The same changes by hand, on the gradient and the weights in double, outermost first.
struct by_hand {
  double scale = 1;
  double clip = 0;  // 0: none
  double clip_norm = 0;
  double decay = 0;
  double shrink = 0;  // times the learning rate

  void operator()(row& w, row& g) const {
    for (double& x : g) x *= scale;
    if (clip > 0) {
      for (double& x : g) x = std::clamp(x, -clip, clip);
    }
    if (clip_norm > 0) {
      const double norm = std::sqrt(mean_square(g) * static_cast<double>(g.size()));
      for (double& x : g) x *= std::min(1.0, clip_norm / norm);
    }
    for (std::size_t j = 0; j < g.size(); ++j) g[j] += decay * w[j];
    for (double& x : w) x *= 1 - shrink;
  }
};

// The largest difference of 50 steps with `wrapped` from 50 by hand and by the oracle of the optimizer
// inside.
template <class Inner, class Wrapped>
double worst_error(const Wrapped& wrapped, const by_hand& changes, index_t width, int path) {
  std::mt19937_64 random(deeprec_test::seed() + static_cast<std::uint64_t>(width));
  std::normal_distribution<float> normal;
  const auto d = static_cast<std::size_t>(width);
  const index_t states = Wrapped::row_state + Wrapped::element_state * width;
  std::vector<float> weights(d), gradient(d), state(static_cast<std::size_t>(states));
  row exact(d), exact_state(state.size());
  for (std::size_t j = 0; j < d; ++j) exact[j] = real(weights[j] = normal(random));
  Wrapped optimizer = wrapped;
  const Inner inner = oracle<Inner>::make();
  const inline_executor here;
  context<const inline_executor> ctx(here);
  double worst = 0;
  for (int t = 1; t <= 50; ++t) {
    for (float& g : gradient) g = normal(random);
    row g(gradient.begin(), gradient.end());
    changes(exact, g);
    oracle<Inner>::step(inner, t, exact, g, exact_state);
    if (path < 0) {
      apply_row(optimizer, weights.data(), gradient.data(), state.data(), width);
    } else {
      ctx.instruction_set = static_cast<isa>(path);
      apply_rows(ctx, matrix_view<const float>(gradient.data(), 1, width), optimizer,
                 matrix_view<float>(weights.data(), 1, width), matrix_view<float>(state.data(), 1, states))
          .or_throw();
    }
    next_step(optimizer);
    for (std::size_t j = 0; j < d; ++j) {
      const double bound = t * 16 * 0x1p-24 * std::max(1.0, std::fabs(exact[j]));
      worst = std::max(worst, std::fabs(exact[j] - real(weights[j])) / bound);
    }
  }
  return worst;
}

template <class Inner, class Wrapped>
void check_wrapped(const Wrapped& wrapped, const by_hand& changes) {
  for (int path = -1; path <= static_cast<int>(best_isa()); ++path) {
    CAPTURE(path);
    for (const index_t width : {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 35, 100}) {
      CAPTURE(width);
      CHECK(worst_error<Inner>(wrapped, changes, width, path) < 1);
    }
    CHECK(worst_error<Inner>(wrapped, by_hand{}, 19, path) > 1);  // without the changes
  }
}

// A wrapper of a user's own: a transform on floats that flips the gradient's sign.
template <class O>
struct flipped {
  static constexpr int row_state = O::row_state;
  static constexpr int element_state = O::element_state;
  static constexpr bool needs_mean_square = O::needs_mean_square;
  static constexpr bool needs_norm = false;
  struct transform {
    void operator()(float&, float& gradient) const { gradient = -gradient; }
  };
  O optimizer;
  transform begin_transform(float) const { return {}; }
};

}  // namespace

// Columns of a row can't be stepped apart where these hold.
static_assert(!reads_whole_row<sgd> && !reads_whole_row<adagrad> && !reads_whole_row<adam>);
static_assert(reads_whole_row<rowwise_adagrad> && reads_whole_row<rowwise_adam>);
static_assert(!reads_whole_row<decltype(clipped_by_value(sgd{}, 1.0F))>);
static_assert(reads_whole_row<decltype(clipped_by_norm(sgd{}, 1.0F))>);
static_assert(reads_whole_row<decltype(with_weight_decay(clipped_by_norm(sgd{}, 1.0F), 1.0F))>);

TEST_CASE("wrappers: the gradient is scaled before anything else sees it") {
  check_wrapped<adagrad>(with_gradient_scale{oracle<adagrad>::make(), 0.25F}, {.scale = 0.25});
  check_wrapped<rowwise_adagrad>(with_gradient_scale{oracle<rowwise_adagrad>::make(), 3.0F}, {.scale = 3});
}
TEST_CASE("wrappers: clipped by value, and the mean square is that of the clipped gradient") {
  check_wrapped<sgd>(clipped_by_value{oracle<sgd>::make(), 0.5F}, {.clip = 0.5});
  check_wrapped<rowwise_adagrad>(clipped_by_value{oracle<rowwise_adagrad>::make(), 0.5F}, {.clip = 0.5});
}
TEST_CASE("wrappers: clipped by the norm of the row") {
  check_wrapped<momentum>(clipped_by_norm{oracle<momentum>::make(), 0.75F}, {.clip_norm = 0.75});
  check_wrapped<rowwise_adagrad>(clipped_by_norm{oracle<rowwise_adagrad>::make(), 0.75F},
                                 {.clip_norm = 0.75});
}
TEST_CASE("wrappers: L2 goes into the gradient, decoupled decay into the weights before the step") {
  check_wrapped<adam>(with_weight_decay{oracle<adam>::make(), 0.1F}, {.decay = real(0.1F)});
  check_wrapped<rowwise_adagrad>(with_weight_decay{oracle<rowwise_adagrad>::make(), 0.1F},
                                 {.decay = real(0.1F)});
  check_wrapped<adam>(adamw(oracle<adam>::make(), 0.5F), {.shrink = real(0.01F) * 0.5});
}
TEST_CASE("wrappers: one in another, the outermost first") {
  check_wrapped<adagrad>(
      with_gradient_scale{
          clipped_by_value{clipped_by_norm{with_weight_decay{oracle<adagrad>::make(), 0.1F}, 1.5F}, 1.0F},
          2.0F},
      {.scale = 2, .clip = 1, .clip_norm = 1.5, .decay = real(0.1F)});
  const by_hand decay_then_clip{.clip_norm = 1.5, .decay = real(0.5F)};  // the other order
  CHECK(worst_error<adam>(with_weight_decay{clipped_by_norm{oracle<adam>::make(), 1.5F}, 0.5F},
                          decay_then_clip, 19, -1) > 1);
}

TEST_CASE("wrappers: the learning rate of decoupled decay is found inside of other wrappers") {
  const with_decoupled_decay outer{clipped_by_norm{sgd{.learning_rate = 0.5F}, 1e9F}, 0.25F};
  float weight = 8;
  const float none = 0;
  apply_row(outer, &weight, &none, nullptr, 1);
  CHECK(weight == 8 * (1 - 0.5F * 0.25F));
}

TEST_CASE("wrappers: a user's own transform works on floats in every region") {
  static_assert(RowOptimizer<flipped<adam>>);
  check_wrapped<adam>(flipped<adam>{oracle<adam>::make()}, {.scale = -1});
}

TEST_CASE("wrappers: infinite and undefined gradients, as documented") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  const auto moved = [](const auto& optimizer, std::array<float, 3> gradient) {
    std::array<float, 3> weights{};
    apply_row(optimizer, weights.data(), gradient.data(), nullptr, 3);
    return weights;
  };
  const sgd one{.learning_rate = 1};
  CHECK(moved(clipped_by_value{one, 2.0F}, {1, infinity, -infinity}) == std::array<float, 3>{-1, -2, 2});
  CHECK(std::isnan(moved(clipped_by_value{one, 2.0F}, {1, nan, 3})[1]));
  const auto with_nan = moved(clipped_by_norm{one, 2.0F}, {10, nan, 3});
  CHECK(with_nan[0] == -10);
  CHECK(std::isnan(with_nan[1]));
  const auto with_infinity = moved(clipped_by_norm{one, 2.0F}, {10, infinity, 3});
  CHECK(with_infinity[0] == 0);
  CHECK(std::isnan(with_infinity[1]));
  CHECK(moved(clipped_by_norm{one, 2.0F}, {1e30F, 1, 2}) == std::array<float, 3>{0, 0, 0});
  CHECK(moved(clipped_by_norm{one, 5.0F}, {3, 4, 0}) == std::array<float, 3>{-3, -4, 0});  // at the limit
}

TEST_CASE("global_norm: the root of all squares, the same bits for any number of threads") {
  std::mt19937_64 random(deeprec_test::seed());
  std::normal_distribution<float> normal;
  std::vector<float> values(400'000);
  for (float& x : values) x = normal(random);
  // Tall, wide (longer than a piece), strided, empty.
  const std::vector<matrix_view<const float>> all{{values.data(), 30'000, 5},
                                                  {values.data() + 150'000, 2, 50'000},
                                                  {values.data() + 250'000, 1000, 33, 40},
                                                  {values.data(), 0, 7}};
  double squares = 0;
  for (const auto& m : all) {
    for (index_t r = 0; r < m.extent(0); ++r) {
      for (index_t j = 0; j < m.extent(1); ++j) squares += real(m.row(r)[j]) * real(m.row(r)[j]);
    }
  }
  double first = -1;
  REQUIRE(global_norm(inline_executor{}, all, first).ok());
  CHECK(std::fabs(first / std::sqrt(squares) - 1) < 0x1p-40);
  for (int threads = 1; threads <= 8; ++threads) {
    thread_pool pool(threads);
    double norm = -1;
    REQUIRE(global_norm(pool, all, norm).ok());
    CHECK(std::memcmp(&norm, &first, sizeof norm) == 0);
  }
  // A matrix less is seen; none at all is 0.
  double other = -1;
  REQUIRE(global_norm(inline_executor{}, std::vector{all[0], all[1]}, other).ok());
  CHECK(other < first);
  REQUIRE(global_norm(inline_executor{}, std::vector<matrix_view<const float>>{}, other).ok());
  CHECK(other == 0);
  values[170'000] = std::numeric_limits<float>::quiet_NaN();
  REQUIRE(global_norm(inline_executor{}, all, other).ok());
  CHECK(std::isnan(other));
}

TEST_CASE("global_norm: the factor brings the norm to the limit, and small ones are left alone") {
  const std::vector<float> a{3, 0}, b{0, 4};
  const std::array<matrix_view<const float>, 2> all{{{a.data(), 1, 2}, {b.data(), 2, 1}}};
  double norm = 0;
  REQUIRE(global_norm(inline_executor{}, all, norm).ok());
  CHECK(norm == 5);
  CHECK(clip_factor(norm, 10.0) == 1);
  CHECK(clip_factor(norm, 5.0) == 1);
  CHECK(clip_factor(norm, 1.0) == 0.2F);
  CHECK(clip_factor(0.0, 1.0) == 1);
  CHECK(std::isnan(clip_factor(std::numeric_limits<double>::quiet_NaN(), 1.0)));
  CHECK(clip_factor(std::numeric_limits<double>::infinity(), 1.0) == 0);
  // Scaled together, both gradients have the limit's norm.
  std::vector<float> weights{0, 0};
  apply_row(with_gradient_scale{sgd{.learning_rate = 1}, clip_factor(norm, 1.0)}, weights.data(), a.data(),
            nullptr, 2);
  CHECK(weights[0] == doctest::Approx(-0.6));
}
