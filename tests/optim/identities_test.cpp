// What optimizers have in common: one is another at some setting, lazy decay is eager decay, training goes on
// from what was saved, and published steps come out.

#include <deeprec/core/random.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/optim/optimizers.hpp>

#include "oracles.hpp"
#include "support/seed.hpp"

#include <doctest/doctest.h>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string_view>
#include <type_traits>
#include <vector>

using namespace deeprec;

namespace {

// A row stepped with the same gradients whatever the optimizer, by scalar code or by an ISA's vectors.
template <class O>
struct trained {
  O optimizer;
  std::vector<float> weights;
  std::vector<float> state;
  std::mt19937_64 random{deeprec_test::seed()};
  std::normal_distribution<float> normal;

  explicit trained(const O& o, index_t width = 37)
      : optimizer(o),
        weights(static_cast<std::size_t>(width)),
        state(static_cast<std::size_t>(O::row_state + O::element_state * width)) {
    for (float& w : weights) w = normal(random);
  }
  index_t width() const { return static_cast<index_t>(weights.size()); }
  void step(const float* gradient, int path) {
    if (path < 0) {
      apply_row(optimizer, weights.data(), gradient, state.data(), width());
    } else {
      context<const inline_executor> ctx(here);
      ctx.instruction_set = static_cast<isa>(path);
      const auto states = static_cast<index_t>(state.size());
      apply_rows(ctx, matrix_view<const float>(gradient, 1, width()), optimizer,
                 matrix_view<float>(weights.data(), 1, width()), matrix_view<float>(state.data(), 1, states))
          .or_throw();
    }
    next_step(optimizer);
  }
  trained& run(int steps, int path = -1) {
    std::vector<float> gradient(weights.size());
    for (int k = 0; k < steps; ++k) {
      for (float& g : gradient) g = normal(random);
      step(gradient.data(), path);
    }
    return *this;
  }
  static constexpr inline_executor here{};
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0;
  for (std::size_t j = 0; j < a.size(); ++j) {
    worst = std::max(worst, std::fabs(static_cast<double>(a[j]) - static_cast<double>(b[j])));
  }
  return worst;
}

template <class F>
void on_every_path(F f) {
  for (int path = -1; path <= static_cast<int>(best_isa()); ++path) {
    CAPTURE(path);
    f(path);
  }
}

}  // namespace

TEST_CASE("identities: momentum of 0 is SGD, bit for bit") {
  on_every_path([](int path) {
    const auto plain = trained(sgd{.learning_rate = 0.1F}).run(50, path);
    CHECK(same_bits(plain.weights, trained(momentum{0.1F, 0}).run(50, path).weights));
    CHECK(
        same_bits(plain.weights, trained(momentum{0.1F, 0, momentum_kind::nesterov}).run(50, path).weights));
    CHECK_FALSE(same_bits(plain.weights, trained(momentum{0.1F, 0.01F}).run(50, path).weights));
  });
}

TEST_CASE("identities: wrappers that do nothing change no bit") {
  on_every_path([](int path) {
    const auto bare = trained(adam{}).run(50, path);
    CHECK(same_bits(bare.weights, trained(adamw(adam{}, 0)).run(50, path).weights));
    CHECK(same_bits(bare.weights, trained(with_weight_decay{adam{}, 0.0F}).run(50, path).weights));
    CHECK(same_bits(bare.weights, trained(with_gradient_scale{adam{}, 1.0F}).run(50, path).weights));
    CHECK(same_bits(bare.weights, trained(clipped_by_value{adam{}, 100.0F}).run(50, path).weights));
    CHECK(same_bits(bare.weights, trained(clipped_by_norm{adam{}, 1000.0F}).run(50, path).weights));
    CHECK_FALSE(same_bits(bare.weights, trained(adamw(adam{}, 0.01F)).run(50, path).weights));
    CHECK_FALSE(same_bits(bare.weights, trained(clipped_by_norm{adam{}, 1.0F}).run(50, path).weights));
  });
}

TEST_CASE("identities: Adam without its first moment is RMSprop whose mean is unbiased") {
  // v / (1 - beta2^t) is the mean of t squares when beta2 is almost 1: Adagrad's step times sqrt(t).
  auto of_adam = trained(adam{.learning_rate = 0.01F, .beta1 = 0, .beta2 = 0.999999F, .epsilon = 0});
  std::vector<double> weights(of_adam.weights.begin(), of_adam.weights.end());
  std::vector<double> squares(weights.size());
  std::vector<float> gradient(weights.size());
  for (int t = 1; t <= 50; ++t) {
    for (float& g : gradient) g = of_adam.normal(of_adam.random);
    of_adam.step(gradient.data(), static_cast<int>(best_isa()));
    double worst = 0, worst_without_root = 0;
    for (std::size_t j = 0; j < weights.size(); ++j) {
      const double g = static_cast<double>(gradient[j]);
      squares[j] += g * g;
      const double from = weights[j];
      weights[j] = from - 0.01 * g / std::sqrt(squares[j] / t);
      worst = std::max(worst, std::fabs(weights[j] - static_cast<double>(of_adam.weights[j])));
      worst_without_root = std::max(worst_without_root, std::fabs(from - 0.01 * g / std::sqrt(squares[j]) -
                                                                  static_cast<double>(of_adam.weights[j])));
    }
    CHECK(worst < 1e-4);
    if (t > 1) CHECK(worst_without_root > 1e-4);
  }
  // And with any beta2, once the bias is gone, RMSprop's.
  adam late{.learning_rate = 0.01F, .beta1 = 0, .beta2 = 0.9F, .epsilon = 1e-3F, .step = 10'000};
  const rmsprop other{.learning_rate = 0.01F, .decay = 0.9F, .epsilon = 1e-3F};
  CHECK(distance(trained(late).run(50).weights, trained(other).run(50).weights) < 1e-5);
  late.step = 1;
  CHECK(distance(trained(late).run(50).weights, trained(other).run(50).weights) > 1e-3);
}

TEST_CASE("identities: FTRL without its penalties is Adagrad without epsilon") {
  on_every_path([](int path) {
    const auto of_ftrl = trained(ftrl{.learning_rate = 0.1F}).run(60, path);
    const auto of_adagrad = trained(adagrad{.learning_rate = 0.1F, .epsilon = 0}).run(60, path);
    CHECK(distance(of_ftrl.weights, of_adagrad.weights) < 1e-4);
    const auto penalised = trained(ftrl{.learning_rate = 0.1F, .l2 = 0.1F}).run(60, path);
    CHECK(distance(penalised.weights, of_adagrad.weights) > 1e-2);
  });
}

TEST_CASE("identities: FTRL's l1 makes weights of exactly 0, and its l2 shrinks them") {
  const auto free = trained(ftrl{.learning_rate = 0.1F}, 200).run(40);
  const auto sparse = trained(ftrl{.learning_rate = 0.1F, .l1 = 20}, 200).run(40);
  const auto small = trained(ftrl{.learning_rate = 0.1F, .l2 = 100}, 200).run(40);
  int zeros_free = 0, zeros = 0;
  double size_free = 0, size = 0;
  for (std::size_t j = 0; j < 200; ++j) {
    zeros_free += free.weights[j] == 0;
    zeros += sparse.weights[j] == 0;
    size_free += std::fabs(static_cast<double>(free.weights[j]));
    size += std::fabs(static_cast<double>(small.weights[j]));
  }
  CHECK(zeros_free == 0);
  CHECK(zeros > 20);
  CHECK(zeros < 200);
  CHECK(size < 0.5 * size_free);
}

TEST_CASE("identities: rowwise optimizers of rows of one element are those of elements") {
  CHECK(distance(trained(rowwise_adagrad{.epsilon = 1e-3F}, 1).run(50).weights,
                 trained(adagrad{.epsilon = 1e-3F}, 1).run(50).weights) < 1e-5);
  CHECK(distance(trained(rowwise_adam{.learning_rate = 0.1F}, 1).run(50).weights,
                 trained(adam{.learning_rate = 0.1F}, 1).run(50).weights) < 1e-5);
  CHECK(distance(trained(rowwise_adam{.learning_rate = 0.1F}, 2).run(50).weights,
                 trained(adam{.learning_rate = 0.1F}, 2).run(50).weights) > 1e-3);
}

TEST_CASE("identities: AdamAsync is Adam with TensorFlow's epsilon, and its first step is known") {
  // alpha / (sqrt(v) + e) = rate / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + e / sqrt(1 - b2^t))
  on_every_path([](int path) {
    const auto a = trained(adam{.learning_rate = 0.01F, .epsilon = 0}).run(60, path);
    const auto b = trained(adam_async{.learning_rate = 0.01F, .epsilon = 0}).run(60, path);
    CHECK(distance(a.weights, b.weights) < 2e-5);
    CHECK(same_bits(a.state, b.state));
  });
  // Step 1: m = (1 - b1) g, v = (1 - b2) g^2, alpha = rate sqrt(1 - b2) / (1 - b1): rate * sign(g).
  float weight = 1, state[2] = {};
  const float gradient = -3;
  adam_async first{.learning_rate = 0.25F, .epsilon = 0};
  apply_row(first, &weight, &gradient, state, 1);
  CHECK(weight == doctest::Approx(1.25));
  CHECK(first.beta1_power == 0.9F);  // a power goes on after the step
  next_step(first);
  CHECK(first.beta1_power == 0.9F * 0.9F);
  CHECK(first.beta2_power == 0.999F * 0.999F);
}

TEST_CASE("identities: AdamAsync's powers never make NaN, however long") {
  trained run(adam_async{.learning_rate = 1e-3F, .beta1 = 0.9F, .beta2 = 0.99999994F}, 5);
  for (int k = 0; k < 200'000; ++k) next_step(run.optimizer);
  run.run(3);
  CHECK(run.optimizer.beta1_power < 1e-40F);
  for (const float w : run.weights) CHECK(std::isfinite(w));
}

TEST_CASE("identities: AdamAsync's RMSprop takes over the rows of AdamAsync") {
  // The same layout: a table may be stepped by one law and then by the other.
  auto run = trained(adam_async{}).run(5);
  const std::vector<float> v(run.state.begin() + 37, run.state.end());
  trained other(adam_async_rmsprop{.learning_rate = 0.5F, .epsilon = 1e-3F});
  other.state = run.state;
  const std::vector<float> from = other.weights;
  const std::vector<float> gradient(37, 2.0F);
  other.step(gradient.data(), -1);
  for (std::size_t j = 0; j < 37; ++j) {
    const double squares = 0.999 * static_cast<double>(v[j]) + 0.001 * 4;
    CHECK(other.weights[j] ==
          doctest::Approx(static_cast<double>(from[j]) - 0.5 * 2 / std::sqrt(squares + 1e-3)).epsilon(1e-4));
  }
}

TEST_CASE("identities: decays that a row slept through are those that it would have had awake") {
  // Awake: a gradient of zero at every step lets each decay happen at its time.
  on_every_path([](int path) {
    for (const std::int64_t every : {1, 3, 10}) {
      for (const float decay : {0.5F, 0.9F, 0.99F}) {
        CAPTURE(every);
        const adagrad_decay law{
            .learning_rate = 0.1F, .initial_squares = 0.25F, .decay = decay, .decay_every = every};
        trained asleep(law), awake(law), forgetful(law);
        std::mt19937_64 random(deeprec_test::seed() + static_cast<std::uint64_t>(every));
        std::normal_distribution<float> normal;
        const std::vector<float> none(37, 0.0F);
        std::vector<float> gradient(37);
        int used = 0;
        for (int t = 1; t <= 400; ++t) {
          if (random() % 40 == 0 || t == 400) {  // gaps of many periods, and down to the floor
            for (float& g : gradient) g = 3 * normal(random);
            asleep.step(gradient.data(), path);
            awake.step(gradient.data(), path);
            forgetful.state[0] = static_cast<float>(t / every);  // wrong: as if nothing was missed
            forgetful.step(gradient.data(), path);
            ++used;
          } else {
            awake.step(none.data(), path);
            next_step(asleep.optimizer);
            next_step(forgetful.optimizer);
          }
        }
        CHECK(used > 3);
        CHECK(asleep.state[0] == awake.state[0]);
        double worst = 0;
        for (std::size_t j = 1; j < asleep.state.size(); ++j) {
          worst = std::max(worst, static_cast<double>(std::fabs(asleep.state[j] / awake.state[j] - 1)));
        }
        CHECK(worst < 400 * 0x1p-24);  // a rounding for each decay
        CHECK(distance(asleep.weights, awake.weights) < 1e-5);
        CHECK(distance(forgetful.weights, awake.weights) > 1e-5);
      }
    }
  });
}

TEST_CASE("identities: an AdagradDecay that never decays is Adagrad from its baseline") {
  const adagrad_decay law{.learning_rate = 0.1F, .decay_every = 0};
  const adagrad plain{.learning_rate = 0.1F, .epsilon = 0, .initial_squares = 0.1F};
  CHECK(same_bits(trained(law).run(50).weights, trained(plain).run(50).weights));
}

TEST_CASE("identities: the first accumulated square of DeepRec's own test comes out") {
  // Four steps, a decay at the third: 0.1 + 0.01 + 0.01, times 0.9, + 0.01 ...
  float weight = 1, state[2] = {};
  const float gradient = 0.1F;
  adagrad_decay law{.learning_rate = 1, .decay = 0.9F, .decay_every = 3};
  double sum_of = 0.1, expected = 1;
  for (int t = 1; t <= 4; ++t, next_step(law)) {
    apply_row(law, &weight, &gradient, state, 1);
    if (t == 3) sum_of = std::max(sum_of * 0.9, 0.1);
    sum_of += 0.01;
    expected -= 0.1 / std::sqrt(sum_of);
    CHECK(state[1] == doctest::Approx(sum_of));
    CHECK(weight == doctest::Approx(expected));
  }
  CHECK(state[0] == 1);
}

TEST_CASE("identities: of a constant gradient the variance is 0, never less") {
  on_every_path([](int path) {
    trained run(centered_rmsprop{.decay = 0.9F, .epsilon = 1e-3F});
    const std::vector<float> gradient(37, 0.7F);
    for (int k = 0; k < 300; ++k) run.step(gradient.data(), path);
    for (const float w : run.weights) CHECK(std::isfinite(w));
  });
}

TEST_CASE("identities: training goes on from what was saved, bit for bit") {
  const auto check = [](const auto& optimizer) {
    using O = std::remove_cvref_t<decltype(optimizer)>;
    trained through(optimizer);
    through.run(20);
    trained saved = through;  // rows, state and functor
    unsigned char bytes[sizeof(O)];
    std::memcpy(bytes, &through.optimizer, sizeof(O));
    saved.optimizer = optimizer;
    std::memcpy(static_cast<void*>(&saved.optimizer), bytes, sizeof(O));
    trained restarted = through;
    restarted.optimizer = optimizer;  // wrong: time begins again
    through.run(30);
    saved.run(30);
    restarted.run(30);
    CHECK(same_bits(saved.weights, through.weights));
    CHECK(same_bits(saved.state, through.state));
    return same_bits(restarted.weights, through.weights);
  };
  CHECK(check(momentum{}));
  CHECK(check(adagrad{}));
  CHECK(check(rmsprop{}));
  CHECK(check(ftrl{.l1 = 0.1F}));
  CHECK_FALSE(check(adam{}));  // these keep time
  CHECK_FALSE(check(rowwise_adam{}));
  CHECK_FALSE(check(adam_async{}));
  CHECK_FALSE(check(clipped_by_norm{adamw(adam{}, 0.1F), 1.0F}));
  CHECK_FALSE(check(adagrad_decay{.decay = 0.5F, .decay_every = 5}));
}

TEST_CASE("identities: optimizers find the minimum of a bowl") {
  // sum of (j + 1) * (w - target)^2: what is wrong in sign or scale does not arrive.
  const auto lost = [](const auto& optimizer, int steps) {
    trained run(optimizer, 20);
    std::vector<float> gradient(20);
    double loss = 0;
    for (int k = 0; k < steps; ++k) {
      loss = 0;
      for (std::size_t j = 0; j < 20; ++j) {
        const float off = run.weights[j] - 0.5F;
        gradient[j] = 2.0F * static_cast<float>(j + 1) * off;
        loss += static_cast<double>(j + 1) * static_cast<double>(off) * static_cast<double>(off);
      }
      run.step(gradient.data(), static_cast<int>(best_isa()));
    }
    return loss;
  };
  CHECK(lost(sgd{.learning_rate = 0.02F}, 500) < 1e-6);
  CHECK(lost(momentum{.learning_rate = 0.005F}, 500) < 1e-6);
  CHECK(lost(momentum{0.005F, 0.9F, momentum_kind::nesterov}, 500) < 1e-6);
  CHECK(lost(adagrad{.learning_rate = 0.5F}, 500) < 1e-6);
  CHECK(lost(rowwise_adagrad{.learning_rate = 1}, 2000) < 1e-4);
  CHECK(lost(adagrad_decay{.learning_rate = 0.5F}, 500) < 1e-6);
  CHECK(lost(rmsprop{.learning_rate = 0.003F}, 2000) < 1e-2);
  CHECK(lost(adam{.learning_rate = 0.02F}, 2000) < 1e-6);
  CHECK(lost(rowwise_adam{.learning_rate = 0.02F}, 2000) < 1e-3);
  CHECK(lost(adam_async{.learning_rate = 0.02F}, 2000) < 1e-6);
  CHECK(lost(ftrl{.learning_rate = 0.5F}, 500) < 1e-6);
  CHECK(lost(sgd{.learning_rate = -0.001F}, 100) > 1);
}

TEST_CASE("optimizers: each has a name of its own; a wrapper has that of what it wraps") {
  const std::string_view names[] = {sgd::name,
                                    momentum::name,
                                    adagrad::name,
                                    rowwise_adagrad::name,
                                    adagrad_decay::name,
                                    rmsprop::name,
                                    centered_rmsprop::name,
                                    adam::name,
                                    rowwise_adam::name,
                                    adam_async::name,
                                    adam_async_rmsprop::name,
                                    ftrl::name};
  for (const std::string_view& one : names) {
    CHECK_FALSE(one.empty());
    for (const std::string_view& other : names) CHECK((&one == &other || one != other));
  }
  CHECK(optimizer_name<adam> == "adam");
  CHECK(optimizer_name<decltype(adamw({}, 0.1F))> == "adam");
  CHECK(optimizer_name<clipped_by_norm<with_gradient_scale<clipped_by_value<with_weight_decay<ftrl>>>>> ==
        "ftrl");
  struct nameless : sgd {
    int name = 0;
  };
  CHECK(optimizer_name<nameless>.empty());
  CHECK(optimizer_name<clipped_by_norm<nameless>>.empty());
}
