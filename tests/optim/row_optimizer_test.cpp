// Every optimizer against its law in double, step by step: in scalar code and by the vectors of every ISA.

#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/optimizers.hpp>

#include "oracles.hpp"
#include "support/guarded.hpp"
#include "support/seed.hpp"

#include <doctest/doctest.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

using namespace deeprec;
using namespace optim_test;
using deeprec_test::guarded;

namespace {

template <class T>
constexpr double roundoff = 0x1p-24;
template <>
constexpr double roundoff<f16> = 0x1p-11;
template <>
constexpr double roundoff<bf16> = 0x1p-8;

// Rows in memory that ends at a guard page, and the same rows in double.
template <class O, class T>
struct training {
  static constexpr index_t rows = 2;

  training(const O& o, index_t d, std::uint64_t seed)
      : optimizer(o),
        width(d),
        states(O::row_state + O::element_state * d),
        random(seed),
        weights(static_cast<std::size_t>(rows * d)),
        state(static_cast<std::size_t>(rows * states)),
        gradient(weights.size()),
        exact(static_cast<std::size_t>(rows), row(static_cast<std::size_t>(d))),
        exact_state(static_cast<std::size_t>(rows), row(static_cast<std::size_t>(states))),
        largest(exact),
        largest_state(exact_state) {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      weights[i] = static_cast<T>(normal(random));
      exact[i / static_cast<std::size_t>(d)][i % static_cast<std::size_t>(d)] =
          static_cast<double>(static_cast<float>(weights[i]));
    }
  }

  void draw_gradient() {
    for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = normal(random);
  }
  template <class Oracle>
  void step_oracle() {
    const auto d = static_cast<std::size_t>(width);
    for (std::size_t r = 0; r < exact.size(); ++r) {
      const row g(gradient.data() + r * d, gradient.data() + (r + 1) * d);
      Oracle::step(optimizer, t, exact[r], g, exact_state[r]);
    }
  }
  void step_scalar() {
    for (index_t r = 0; r < rows; ++r) {
      apply_row(optimizer, weights.data() + r * width, gradient.data() + r * width, state.data() + r * states,
                width);
    }
  }
  void step_vector(isa which) {
    inline_executor here;
    context<inline_executor> ctx(here);
    ctx.instruction_set = which;
    apply_rows(ctx, matrix_view<const float>(gradient.data(), rows, width), optimizer,
               matrix_view<T>(weights.data(), rows, width), matrix_view<float>(state.data(), rows, states))
        .or_throw();
  }
  void end_step() {
    next_step(optimizer);
    ++t;
  }

  // In units of what so many steps may lose, of the largest value so far: sums cancel.
  double error() {
    double worst = 0;
    const auto unit = static_cast<double>(t);
    for (std::size_t r = 0; r < exact.size(); ++r) {
      for (std::size_t j = 0; j < exact[r].size(); ++j) {
        const double got = static_cast<double>(static_cast<float>(weights[r * exact[r].size() + j]));
        const double scale = largest[r][j] = std::max({1.0, largest[r][j], std::fabs(exact[r][j])});
        const double bound = unit * scale * (32 * 0x1p-24 + (std::is_same_v<T, float> ? 0 : roundoff<T>));
        worst = std::max(worst, std::fabs(got - exact[r][j]) / bound);
        if (std::isnan(got)) return std::numeric_limits<double>::infinity();
      }
      for (std::size_t j = 0; j < exact_state[r].size(); ++j) {
        const double got = static_cast<double>(state[r * exact_state[r].size() + j]);
        largest_state[r][j] = std::max(largest_state[r][j], std::fabs(exact_state[r][j]));
        const double bound = unit * (1 + largest_state[r][j]) * 64 * 0x1p-24;
        if (std::is_same_v<T, float>) worst = std::max(worst, std::fabs(got - exact_state[r][j]) / bound);
      }
    }
    return worst;
  }

  O optimizer;
  index_t width;
  index_t states;
  int t = 1;
  std::mt19937_64 random;
  std::normal_distribution<float> normal;
  guarded<T> weights;
  guarded<float> state;
  guarded<float> gradient;
  std::vector<row> exact;
  std::vector<row> exact_state;
  std::vector<row> largest;
  std::vector<row> largest_state;
};

constexpr int scalar_code = -1;

// The largest error over `steps` steps, by scalar code or by the vectors of an ISA.
template <class Oracle, class O, class T = float>
double worst_error(const O& optimizer, index_t width, int steps, int path) {
  training<O, T> run(optimizer, width, deeprec_test::seed() + static_cast<std::uint64_t>(width));
  double worst = 0;
  for (int k = 0; k < steps; ++k) {
    run.draw_gradient();
    run.template step_oracle<Oracle>();
    if (path == scalar_code) {
      run.step_scalar();
    } else {
      run.step_vector(static_cast<isa>(path));
    }
    worst = std::max(worst, run.error());
    run.end_step();
  }
  return worst;
}

template <class O>
void check_optimizer(const O& optimizer) {
  std::vector<int> paths{scalar_code};
  for (const isa which : every_isa) {
    if (which <= best_isa()) paths.push_back(static_cast<int>(which));
  }
  for (const int path : paths) {
    CAPTURE(path);
    double worst = 0;
    for (index_t width = 1; width <= 35; ++width) {
      worst = std::max(worst, worst_error<oracle<O>>(optimizer, width, 60, path));
    }
    worst = std::max(worst, worst_error<oracle<O>>(optimizer, 200, 60, path));
    CHECK(worst < 1);
    CHECK(worst_error<oracle<O, true>>(optimizer, 19, 60, path) > 1);
    CHECK(worst_error<oracle<O, true>>(optimizer, 1, 60, path) > 1);
  }
}

template <class O>
void check_optimizer() {
  check_optimizer(oracle<O>::make());
}

// A user's own optimizer, with two floats per element: momentum and a count of steps.
struct own_momentum {
  static constexpr int row_state = 0;
  static constexpr int element_state = 2;
  static constexpr bool needs_mean_square = false;
  struct step {
    float operator()(float weight, float gradient, float& velocity, float& count) const {
      velocity = 0.5F * velocity + gradient;
      count += 1;
      return weight - 0.25F * velocity;
    }
  };
  step begin_row(float*, float) const { return {}; }
};
struct no_step {
  static constexpr int row_state = 0;
  static constexpr int element_state = 0;
  static constexpr bool needs_mean_square = false;
};

template <class... O>
constexpr bool all_ready = ((RowOptimizer<O> && std::is_trivially_copyable_v<O> &&
                             std::is_trivially_copyable_v<detail::prepared_t<O>>) &&
                            ...);
static_assert(all_ready<sgd, momentum, adagrad, rowwise_adagrad, adagrad_decay, rmsprop, centered_rmsprop,
                        adam, rowwise_adam, with_decoupled_decay<adam>, adam_async, adam_async_rmsprop, ftrl,
                        clipped_by_norm<with_weight_decay<ftrl>>>);
static_assert(RowOptimizer<own_momentum> && !RowOptimizer<no_step>);
static_assert(RowOptimizer<clipped_by_value<own_momentum>>);

}  // namespace

TEST_CASE("row_optimizer: SGD follows its law") { check_optimizer<sgd>(); }
TEST_CASE("row_optimizer: momentum follows its law, classical and of Nesterov") {
  check_optimizer<momentum>();
  momentum ahead = oracle<momentum>::make();
  ahead.kind = momentum_kind::nesterov;
  check_optimizer(ahead);
}
TEST_CASE("row_optimizer: Adagrad follows its law") { check_optimizer<adagrad>(); }
TEST_CASE("row_optimizer: rowwise Adagrad follows its law") { check_optimizer<rowwise_adagrad>(); }
TEST_CASE("row_optimizer: AdagradDecay follows its law") { check_optimizer<adagrad_decay>(); }
TEST_CASE("row_optimizer: RMSprop follows its law") { check_optimizer<rmsprop>(); }
TEST_CASE("row_optimizer: centered RMSprop follows its law") { check_optimizer<centered_rmsprop>(); }
TEST_CASE("row_optimizer: Adam follows its law") { check_optimizer<adam>(); }
TEST_CASE("row_optimizer: rowwise Adam follows its law") { check_optimizer<rowwise_adam>(); }
TEST_CASE("row_optimizer: Adam and rowwise Adam follow their laws with SparseAdam's place of epsilon") {
  adam sparse = oracle<adam>::make();
  rowwise_adam rowwise = oracle<rowwise_adam>::make();
  sparse.epsilon_at = rowwise.epsilon_at = epsilon_place::before_correction;
  check_optimizer(sparse);
  check_optimizer(rowwise);
}
TEST_CASE("row_optimizer: AdamAsync follows its law, with Nesterov's momentum too") {
  check_optimizer<adam_async>();
  adam_async ahead = oracle<adam_async>::make();
  ahead.kind = momentum_kind::nesterov;
  check_optimizer(ahead);
}
TEST_CASE("row_optimizer: AdamAsync's RMSprop follows its law") {
  check_optimizer<adam_async_rmsprop>();
  adam_async_rmsprop without = oracle<adam_async_rmsprop>::make();
  without.beta1 = 0;
  check_optimizer(without);
}
TEST_CASE("row_optimizer: FTRL follows its law, with powers other than a root too") {
  check_optimizer<ftrl>();
  ftrl other = oracle<ftrl>::make();
  other.learning_rate_power = -0.7F;
  check_optimizer(other);
}

TEST_CASE_TEMPLATE("row_optimizer: rows of 16 bits follow the law up to their rounding", T, f16, bf16) {
  const auto check = [](auto optimizer) {
    using O = decltype(optimizer);
    for (const index_t width : {1, 7, 16, 33, 67}) {
      CHECK(worst_error<oracle<O>, O, T>(optimizer, width, 8, scalar_code) < 1);
      for (const isa which : every_isa) {
        if (which > best_isa()) continue;
        CHECK(worst_error<oracle<O>, O, T>(optimizer, width, 8, static_cast<int>(which)) < 1);
      }
    }
  };
  check(oracle<sgd>::make());
  check(oracle<rowwise_adagrad>::make());
  check(oracle<adam>::make());
  CHECK(worst_error<oracle<adagrad, true>, adagrad, T>(oracle<adagrad>::make(), 9, 20, scalar_code) > 1);
}

TEST_CASE("row_optimizer: one step by hand") {
  float weights[2] = {1, 2};
  const float gradient[2] = {3, 4};
  SUBCASE("sgd") {
    apply_row(sgd{.learning_rate = 0.5F}, weights, gradient, nullptr, 2);
    CHECK(weights[0] == -0.5F);
    CHECK(weights[1] == 0);
  }
  SUBCASE("rowwise_adagrad: the mean of the squares is 12.5") {
    float state = 0;
    apply_row(rowwise_adagrad{.learning_rate = 1, .epsilon = 0}, weights, gradient, &state, 2);
    CHECK(state == 12.5F);
    CHECK(weights[0] == doctest::Approx(1 - 3 / std::sqrt(12.5)));
    CHECK(weights[1] == doctest::Approx(2 - 4 / std::sqrt(12.5)));
  }
  SUBCASE("adagrad: the first step is the sign of the gradient") {
    float state[2] = {};
    apply_row(adagrad{.learning_rate = 1, .epsilon = 0}, weights, gradient, state, 2);
    CHECK(state[0] == 9);
    CHECK(state[1] == 16);
    CHECK(weights[0] == 0);
    CHECK(weights[1] == 1);
  }
  SUBCASE("adam: the first step is the rate, whatever the gradient") {
    float state[4] = {};
    apply_row(adam{.learning_rate = 0.5F, .epsilon = 0}, weights, gradient, state, 2);
    CHECK(weights[0] == doctest::Approx(0.5));
    CHECK(weights[1] == doctest::Approx(1.5));
    CHECK(state[0] == doctest::Approx(0.3));  // m, then v
    CHECK(state[2] == doctest::Approx(0.009));
  }
  SUBCASE("ftrl: a small gradient stays inside of l1, and the weight is 0") {
    float state[4] = {};
    const float small[2] = {0.25F, -4};
    apply_row(ftrl{.learning_rate = 1, .l1 = 3.25F}, weights, small, state, 2);
    CHECK(weights[0] == 0);  // z = 0.25 - 0.25 * 1
    CHECK(state[3] == -12);  // z = -4 - 4 * 2
    CHECK(weights[1] == (12 - 3.25F) / 4);
  }
}

TEST_CASE("row_optimizer: no gradient, no step, even with no state yet") {
  const auto check = [](const auto& optimizer) {
    const float gradient[3] = {};
    float state[7] = {};
    float weights[3] = {1, -2, 3};
    apply_row(optimizer, weights, gradient, state, 3);
    CHECK(weights[0] == 1);
    CHECK(weights[1] == -2);
    CHECK(weights[2] == 3);
  };
  check(sgd{});
  check(momentum{});
  check(adagrad{});
  check(rowwise_adagrad{});
  check(adagrad_decay{});
  check(rmsprop{});
  check(centered_rmsprop{});
  check(adam{});
  check(rowwise_adam{});
  check(adam_async{});
  check(adam_async_rmsprop{});
  float weight = 1;  // FTRL forgets weights that no gradient has backed
  const float none = 0;
  float state[2] = {};
  apply_row(ftrl{}, &weight, &none, state, 1);
  CHECK(weight == 0);
}

TEST_CASE("row_optimizer: an optimizer of a user's own may keep two floats per element") {
  for (const isa which : every_isa) {
    if (which > best_isa()) continue;
    training<own_momentum, float> run(own_momentum{}, 19, 1);
    for (std::size_t i = 0; i < run.weights.size(); ++i) {
      run.weights[i] = 1;
      run.gradient[i] = static_cast<float>(i);
    }
    run.step_vector(which);
    run.step_scalar();  // the same state in both
    for (std::size_t i = 0; i < run.weights.size(); ++i) {
      const std::size_t of_row = i / 19 * 38 + i % 19;
      CHECK(run.state[of_row] == 1.5F * run.gradient[i]);
      CHECK(run.state[of_row + 19] == 2);
      CHECK(run.weights[i] == 1 - 0.25F * 2.5F * run.gradient[i]);
    }
  }
}

TEST_CASE("row_optimizer: a 16-bit weight is rounded once per step") {
  bf16 weight(1.0F);
  const float gradient = 0x1p-9F;
  for (int k = 0; k < 100; ++k) apply_row(sgd{.learning_rate = 1}, &weight, &gradient, nullptr, 1);
  CHECK(static_cast<float>(weight) == 1.0F);  // half a step each time, to even: lost, never added up
  f16 half(1.0F);
  apply_row(sgd{.learning_rate = 1}, &half, &gradient, nullptr, 1);
  CHECK(static_cast<float>(half) == 1.0F - 0x1p-9F);
}

TEST_CASE("row_optimizer: NaN stays in its element, or in its row where the row has a state") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  const auto check = [](const auto& optimizer, bool whole_row) {
    using O = std::remove_cvref_t<decltype(optimizer)>;
    for (int path = scalar_code; path <= static_cast<int>(best_isa()); ++path) {
      training<O, float> run(optimizer, 21, 3);
      for (int k = 0; k < 2; ++k) {
        run.draw_gradient();
        if (k == 0) run.gradient[5] = nan;
        path == scalar_code ? run.step_scalar() : run.step_vector(static_cast<isa>(path));
        for (std::size_t i = 0; i < run.weights.size(); ++i) {
          CHECK(std::isnan(run.weights[i]) == (whole_row ? i < 21 : i == 5));
        }
        next_step(run.optimizer);
      }
    }
  };
  check(sgd{}, false);
  check(momentum{}, false);
  check(adagrad{}, false);
  check(adagrad_decay{}, false);
  check(rmsprop{}, false);
  check(centered_rmsprop{}, false);
  check(adam{}, false);
  check(adam_async{}, false);
  check(adam_async_rmsprop{}, false);
  check(ftrl{.l1 = 0.5F}, false);
  check(clipped_by_value{sgd{}, 1.0F}, false);
  check(clipped_by_norm{adam{}, 1.0F}, false);
  check(rowwise_adagrad{}, true);
  check(rowwise_adam{}, true);
}

TEST_CASE("apply_rows: the same bits for any number of threads, and nothing between the rows is touched") {
  constexpr index_t rows = 1000, width = 37, stride = 40;
  const auto trained = [](int threads) {
    thread_pool pool(threads);
    std::mt19937_64 random(deeprec_test::seed());
    std::normal_distribution<float> normal;
    std::vector<float> weights(rows * stride, 7.0F), gradient(rows * stride), state(rows * 80, 0.0F);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (i % stride < width) weights[i] = normal(random);
      gradient[i] = normal(random);
    }
    clipped_by_norm optimizer{rowwise_adam{}, 1.0F};
    for (int k = 0; k < 3; ++k) {
      apply_rows(pool, matrix_view<const float>(gradient.data(), rows, width, stride), optimizer,
                 matrix_view<float>(weights.data(), rows, width, stride),
                 matrix_view<float>(state.data(), rows, 1 + width, 80))
          .or_throw();
      next_step(optimizer);
    }
    for (index_t r = 0; r < rows; ++r) {
      for (index_t j = width; j < stride; ++j) {
        REQUIRE(weights[static_cast<std::size_t>(r * stride + j)] == 7.0F);
      }
      for (index_t j = 1 + width; j < 80; ++j) {
        REQUIRE(state[static_cast<std::size_t>(r * 80 + j)] == 0.0F);
      }
    }
    return weights;
  };
  const std::vector<float> one = trained(1);
  for (const int threads : {2, 5, 8}) {
    const std::vector<float> many = trained(threads);
    CHECK(std::memcmp(one.data(), many.data(), one.size() * sizeof(float)) == 0);
  }
}

TEST_CASE("apply_rows: shapes that do not fit are refused, and nothing is written") {
  const inline_executor here;
  std::vector<float> weights(12, 1.0F), gradient(12, 1.0F), state(24, 0.0F);
  const auto answer = [&](index_t g_rows, index_t g_cols, index_t s_rows, index_t s_cols) {
    return apply_rows(here, matrix_view<const float>(gradient.data(), g_rows, g_cols), adam{},
                      matrix_view<float>(weights.data(), 3, 4),
                      matrix_view<float>(state.data(), s_rows, s_cols));
  };
  CHECK(answer(3, 3, 3, 8).code() == errc::shape_mismatch);
  CHECK(answer(2, 4, 3, 8).code() == errc::shape_mismatch);
  CHECK(answer(3, 4, 3, 7).code() == errc::shape_mismatch);
  CHECK(answer(3, 4, 2, 8).message() ==
        "shape mismatch: apply_rows: state must have a row for each row of weights, with the floats that the "
        "optimizer needs");
  CHECK(weights == std::vector<float>(12, 1.0F));
  CHECK(state == std::vector<float>(24, 0.0F));
  CHECK(answer(3, 4, 3, 8).ok());
  CHECK(weights != std::vector<float>(12, 1.0F));
  CHECK(apply_rows(here, matrix_view<const float>(gradient.data(), 3, 4), sgd{},
                   matrix_view<float>(weights.data(), 3, 4), matrix_view<float>())
            .ok());
}
