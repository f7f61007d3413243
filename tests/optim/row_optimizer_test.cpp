// Row optimizers against their formulas in double, and their vector forms against the scalar one.

#include <deeprec/optim/adagrad.hpp>
#include <deeprec/optim/row_optimizer.hpp>
#include <deeprec/optim/sgd.hpp>
#include <deeprec/optim/steps.hpp>
#include <deeprec/simd/dispatch.hpp>

#include "support/guarded.hpp"
#include "support/seed.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <doctest/doctest.h>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include <deeprec/simd/begin_portable.hpp>
#include "steps_kernels.inl"
#include <deeprec/simd/end_portable.hpp>

#if DEEPREC_X86
#include <deeprec/simd/begin_avx2.hpp>
#include "steps_kernels.inl"
#include <deeprec/simd/end_avx2.hpp>

#include <deeprec/simd/begin_avx512.hpp>
#include "steps_kernels.inl"
#include <deeprec/simd/end_avx512.hpp>
#endif

using namespace deeprec;
using deeprec_test::guarded;

namespace {

// The oracles: the formulas as papers print them, in double. State as apply_row lays it out.
struct sgd_oracle {
  using optimizer = sgd;
  static constexpr optimizer make() { return {.learning_rate = 0.125F}; }
  static void step(const optimizer& o, std::vector<double>& w, const std::vector<float>& g,
                   std::vector<double>&) {
    for (std::size_t j = 0; j < w.size(); ++j) w[j] -= double{o.learning_rate} * double{g[j]};
  }
};
struct rowwise_oracle {
  using optimizer = rowwise_adagrad;
  static constexpr optimizer make() { return {.learning_rate = 0.1F, .epsilon = 1e-3F}; }
  static void step(const optimizer& o, std::vector<double>& w, const std::vector<float>& g,
                   std::vector<double>& s) {
    double sum = 0;
    for (const float x : g) sum += double{x} * double{x};
    s[0] += sum / static_cast<double>(g.size());
    for (std::size_t j = 0; j < w.size(); ++j) {
      w[j] -= double{o.learning_rate} * double{g[j]} / (std::sqrt(s[0]) + double{o.epsilon});
    }
  }
};
struct adagrad_oracle {
  using optimizer = adagrad;
  static constexpr optimizer make() { return {.learning_rate = 0.1F, .epsilon = 1e-3F}; }
  static void step(const optimizer& o, std::vector<double>& w, const std::vector<float>& g,
                   std::vector<double>& s) {
    for (std::size_t j = 0; j < w.size(); ++j) {
      s[j] += double{g[j]} * double{g[j]};
      w[j] -= double{o.learning_rate} * double{g[j]} / (std::sqrt(s[j]) + double{o.epsilon});
    }
  }
};
// Deliberately wrong: forgets the state of earlier steps.
struct forgetful_oracle : adagrad_oracle {
  static void step(const optimizer& o, std::vector<double>& w, const std::vector<float>& g,
                   std::vector<double>& s) {
    for (double& x : s) x = 0;
    adagrad_oracle::step(o, w, g, s);
  }
};

template <class T>
constexpr double roundoff = 0x1p-24;
template <>
constexpr double roundoff<f16> = 0x1p-11;
template <>
constexpr double roundoff<bf16> = 0x1p-8;

// The largest error of apply_row, in units of what may be expected after so many steps.
template <class Oracle, class T>
double worst_error(index_t width, int steps, std::uint64_t seed) {
  using optimizer_type = typename Oracle::optimizer;
  constexpr optimizer_type optimizer = Oracle::make();
  const auto size = static_cast<std::size_t>(width);
  const auto states = static_cast<std::size_t>(optimizer_type::row_state) +
                      static_cast<std::size_t>(optimizer_type::element_state) * size;
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  guarded<T> weights(size);
  guarded<float> state(states);
  std::vector<double> exact(size);
  std::vector<double> exact_state(states);
  for (std::size_t j = 0; j < size; ++j) {
    weights[j] = static_cast<T>(normal(random));
    exact[j] = static_cast<double>(static_cast<float>(weights[j]));
  }
  double worst = 0;
  for (int k = 0; k < steps; ++k) {
    std::vector<float> gradient(size);
    for (float& g : gradient) g = normal(random);
    const auto held = guarded<float>::copy_of(gradient);
    apply_row(optimizer, weights.data(), held.data(), state.data(), width);
    Oracle::step(optimizer, exact, gradient, exact_state);
    for (std::size_t j = 0; j < size; ++j) {
      const double bound =
          (k + 1) * (roundoff<T> * std::max(1.0, std::fabs(exact[j])) + 64 * 0x1p-24);
      const double error = std::fabs(static_cast<double>(static_cast<float>(weights[j])) - exact[j]);
      worst = std::max(worst, error / bound);
    }
    for (std::size_t j = 0; j < states; ++j) {
      const double bound = exact_state[j] * (k + 1 + static_cast<double>(size)) * 0x1p-24;
      worst = std::max(worst, std::fabs(double{state[j]} - exact_state[j]) / (bound + 1e-30) / 2);
    }
  }
  return worst;
}

template <class Oracle, class T>
double worst_of_all() {
  double worst = 0;
  for (index_t width = 1; width <= 67; ++width) {
    worst = std::max(worst, worst_error<Oracle, T>(
                                width, 6, deeprec_test::seed() + static_cast<std::uint64_t>(width)));
  }
  return std::max(worst, worst_error<Oracle, T>(256, 20, deeprec_test::seed()));
}

// A user's own optimizer, with two floats per element: momentum and a count of steps.
struct momentum {
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
};

static_assert(RowOptimizer<sgd> && RowOptimizer<adagrad> && RowOptimizer<rowwise_adagrad>);
static_assert(RowOptimizer<momentum> && !RowOptimizer<no_step>);
static_assert(std::is_trivially_copyable_v<scaled_step> && std::is_trivially_copyable_v<adagrad_step>);

}  // namespace

TEST_CASE_TEMPLATE("row_optimizer: a row follows the formula in double, step by step", T, float, f16,
                   bf16) {
  CHECK(worst_of_all<sgd_oracle, T>() < 1);
  CHECK(worst_of_all<rowwise_oracle, T>() < 1);
  CHECK(worst_of_all<adagrad_oracle, T>() < 1);
  CHECK(worst_of_all<forgetful_oracle, T>() > 1);
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
}

TEST_CASE("row_optimizer: no gradient, no step, even with no state yet") {
  const float gradient[3] = {};
  float state[3] = {};
  float weights[3] = {1, -2, 3};
  apply_row(adagrad{}, weights, gradient, state, 3);
  apply_row(rowwise_adagrad{}, weights, gradient, state, 3);
  apply_row(sgd{}, weights, gradient, nullptr, 3);
  CHECK(weights[0] == 1);
  CHECK(weights[1] == -2);
  CHECK(weights[2] == 3);
}

TEST_CASE("row_optimizer: an optimizer of a user's own may keep two floats per element") {
  float weights[3] = {1, 1, 1};
  const float gradient[3] = {1, 2, 4};
  float state[6] = {};
  apply_row(momentum{}, weights, gradient, state, 3);
  apply_row(momentum{}, weights, gradient, state, 3);
  for (int j = 0; j < 3; ++j) {
    CHECK(state[j] == 1.5F * gradient[j]);
    CHECK(state[3 + j] == 2);
    CHECK(weights[j] == 1 - 0.25F * 2.5F * gradient[j]);
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

TEST_CASE("row_optimizer: the vector form of a step gives the scalar result within rounding") {
  std::mt19937_64 random(deeprec_test::seed());
  std::normal_distribution<float> normal;
  const scaled_step scaled{0.3F};
  const adagrad_step rooted{0.3F, 1e-3F};
  const adagrad_step other{0.3F, 1e-1F};
  for (const isa which : every_isa) {
    if (which > best_isa()) continue;
    CAPTURE(std::string(to_string(which)));
    with_isa_up_to_avx512(which, [&](auto region) {
      const auto lanes = static_cast<std::size_t>(lane_count(region));
      double worst = 0;
      double worst_other = 0;  // against another epsilon: must be seen
      for (int trial = 0; trial < 200; ++trial) {
        std::vector<float> weights(lanes), gradient(lanes), state(lanes);
        for (std::size_t j = 0; j < lanes; ++j) {
          weights[j] = normal(random);
          gradient[j] = normal(random);
          state[j] = std::fabs(normal(random));
        }
        const std::vector<float> before = weights;
        const std::vector<float> state_before = state;
        step_once(region, scaled, weights.data(), gradient.data(), nullptr);
        for (std::size_t j = 0; j < lanes; ++j) {
          const double size = std::fabs(before[j]) + std::fabs(0.3 * gradient[j]);
          worst = std::max(worst, std::fabs(double{weights[j]} - scaled(before[j], gradient[j])) / size);
        }
        weights = before;
        step_once(region, rooted, weights.data(), gradient.data(), state.data());
        for (std::size_t j = 0; j < lanes; ++j) {
          float squares = state_before[j];
          float squares_other = state_before[j];
          const float expected = rooted(before[j], gradient[j], squares);
          const float wrong = other(before[j], gradient[j], squares_other);
          const double size = std::fabs(before[j]) + 0.3;
          worst = std::max(worst, std::fabs(double{weights[j]} - expected) / size);
          worst = std::max(worst, std::fabs(double{state[j]} - squares) / squares);
          worst_other = std::max(worst_other, std::fabs(double{weights[j]} - wrong) / size);
        }
      }
      CHECK(worst < 4 * 0x1p-24);
      CHECK(worst_other > 4 * 0x1p-24);
    });
  }
}
