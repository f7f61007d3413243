// The laws of the optimizers as papers and manuals print them, in double: oracle<O> for the optimizer O, and
// oracle<O, true>, which is wrong in one place that a test must see. State as apply_row lays it out; `t` is
// the number of the step, from 1.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include <deeprec/optim/optimizers.hpp>

namespace optim_test {

using namespace deeprec;
using row = std::vector<double>;

template <class O, bool Wrong = false>
struct oracle;

inline double real(float x) { return static_cast<double>(x); }
inline double mean_square(const row& g) {
  double total = 0;
  for (const double x : g) total += x * x;
  return total / static_cast<double>(g.size());
}

template <bool Wrong>
struct oracle<sgd, Wrong> {
  static sgd make() { return {.learning_rate = 0.125F}; }
  static void step(const sgd& o, int, row& w, const row& g, row&) {
    for (std::size_t j = 0; j < w.size(); ++j) {
      w[j] -= real(o.learning_rate) * g[j] * (Wrong && j == w.size() - 1 ? 0.999 : 1.0);  // its last element
    }
  }
};

template <bool Wrong>
struct oracle<momentum, Wrong> {
  static momentum make() { return {.learning_rate = 0.05F, .decay = 0.8F}; }
  static void step(const momentum& o, int, row& w, const row& g, row& v) {
    const bool ahead = (o.kind == momentum_kind::nesterov) != Wrong;
    for (std::size_t j = 0; j < w.size(); ++j) {
      v[j] = real(o.decay) * v[j] + g[j];
      w[j] -= real(o.learning_rate) * (ahead ? g[j] + real(o.decay) * v[j] : v[j]);
    }
  }
};

template <bool Wrong>
struct oracle<adagrad, Wrong> {
  static adagrad make() { return {.learning_rate = 0.1F, .epsilon = 1e-3F, .initial_squares = 0.1F}; }
  static void step(const adagrad& o, int t, row& w, const row& g, row& s) {
    for (std::size_t j = 0; j < w.size(); ++j) {
      if (t == 1 || Wrong) s[j] = real(o.initial_squares);  // wrong: forgets the steps before
      s[j] += g[j] * g[j];
      w[j] -= real(o.learning_rate) * g[j] / (std::sqrt(s[j]) + real(o.epsilon));
    }
  }
};

template <bool Wrong>
struct oracle<rowwise_adagrad, Wrong> {
  static rowwise_adagrad make() { return {.learning_rate = 0.1F, .epsilon = 1e-3F}; }
  static void step(const rowwise_adagrad& o, int, row& w, const row& g, row& s) {
    s[0] += mean_square(g) * (Wrong ? static_cast<double>(g.size() + 1) : 1.0);  // wrong: about the sum
    for (std::size_t j = 0; j < w.size(); ++j) {
      w[j] -= real(o.learning_rate) * g[j] / (std::sqrt(s[0]) + real(o.epsilon));
    }
  }
};

// State: the decays that were applied, then the sums. Eager: the oracle decays when a period ends.
template <bool Wrong>
struct oracle<adagrad_decay, Wrong> {
  static adagrad_decay make() {
    return {.learning_rate = 0.1F, .initial_squares = 2, .decay = 0.5F, .decay_every = 2};
  }
  static void step(const adagrad_decay& o, int t, row& w, const row& g, row& s) {
    const double base = real(o.initial_squares);
    if (t % o.decay_every == 0) s[0] += 1;
    for (std::size_t j = 0; j < w.size(); ++j) {
      double& a = s[1 + j];
      if (t == 1) a = base;
      if (t % o.decay_every == 0) a = Wrong ? a * real(o.decay) : std::max(a * real(o.decay), base);
      a += g[j] * g[j];
      w[j] -= real(o.learning_rate) * g[j] / std::sqrt(a);
    }
  }
};

template <bool Wrong>
struct oracle<rmsprop, Wrong> {
  static rmsprop make() { return {.learning_rate = 0.01F, .decay = 0.9F, .epsilon = 1e-2F}; }
  static void step(const rmsprop& o, int, row& w, const row& g, row& s) {
    const double e = real(o.epsilon);
    for (std::size_t j = 0; j < w.size(); ++j) {
      s[j] = real(o.decay) * s[j] + (1 - real(o.decay)) * g[j] * g[j];
      w[j] -= real(o.learning_rate) * g[j] / (Wrong ? std::sqrt(s[j] + e) : std::sqrt(s[j]) + e);
    }
  }
};

template <bool Wrong>
struct oracle<centered_rmsprop, Wrong> {
  static centered_rmsprop make() { return {.learning_rate = 0.01F, .decay = 0.9F, .epsilon = 1e-2F}; }
  static void step(const centered_rmsprop& o, int, row& w, const row& g, row& s) {
    const std::size_t d = w.size();
    const double keep = real(o.decay);
    for (std::size_t j = 0; j < d; ++j) {
      s[j] = keep * s[j] + (1 - keep) * g[j] * g[j];
      s[d + j] = keep * s[d + j] + (1 - keep) * g[j];
      const double variance = s[j] - (Wrong ? 0.0 : s[d + j] * s[d + j]);
      w[j] -= real(o.learning_rate) * g[j] / (std::sqrt(variance) + real(o.epsilon));
    }
  }
};

template <bool Wrong>
struct oracle<adam, Wrong> {
  static adam make() { return {.learning_rate = 0.01F, .beta1 = 0.8F, .beta2 = 0.95F, .epsilon = 1e-3F}; }
  static void step(const adam& o, int t, row& w, const row& g, row& s) {
    const std::size_t d = w.size();
    const double b1 = real(o.beta1), b2 = real(o.beta2);
    for (std::size_t j = 0; j < d; ++j) {
      s[j] = b1 * s[j] + (1 - b1) * g[j];
      s[d + j] = b2 * s[d + j] + (1 - b2) * g[j] * g[j];
      const double bias1 = 1 - std::pow(b1, Wrong ? t + 1 : t), bias2 = 1 - std::pow(b2, t);
      if (o.epsilon_at == epsilon_place::before_correction) {  // as torch.optim.SparseAdam prints it
        const double rate = real(o.learning_rate) * std::sqrt(bias2) / bias1;
        w[j] -= rate * s[j] / (std::sqrt(s[d + j]) + real(o.epsilon));
      } else {
        w[j] -= real(o.learning_rate) * (s[j] / bias1) / (std::sqrt(s[d + j] / bias2) + real(o.epsilon));
      }
    }
  }
};

template <bool Wrong>
struct oracle<rowwise_adam, Wrong> {
  static rowwise_adam make() {
    return {.learning_rate = 0.01F, .beta1 = 0.8F, .beta2 = 0.95F, .epsilon = 1e-3F};
  }
  static void step(const rowwise_adam& o, int t, row& w, const row& g, row& s) {
    const double b1 = real(o.beta1), b2 = real(o.beta2);
    s[0] = b2 * s[0] + (1 - b2) * mean_square(g);
    const double bias2 = Wrong ? 1 : 1 - std::pow(b2, t);
    const bool before = o.epsilon_at == epsilon_place::before_correction;
    const double epsilon = before ? real(o.epsilon) / std::sqrt(bias2) : real(o.epsilon);
    for (std::size_t j = 0; j < w.size(); ++j) {
      s[1 + j] = b1 * s[1 + j] + (1 - b1) * g[j];
      const double m = s[1 + j] / (1 - std::pow(b1, t));
      w[j] -= real(o.learning_rate) * m / (std::sqrt(s[0] / bias2) + epsilon);
    }
  }
};

template <bool Wrong>
struct oracle<adam_async, Wrong> {
  static adam_async make() {
    return {.learning_rate = 0.01F, .beta1 = 0.8F, .beta2 = 0.95F, .epsilon = 1e-3F};
  }
  static void step(const adam_async& o, int t, row& w, const row& g, row& s) {
    const std::size_t d = w.size();
    const double b1 = real(o.beta1), b2 = real(o.beta2);
    const int count = Wrong ? t + 1 : t;  // wrong: powers go on before the step
    const double alpha =
        real(o.learning_rate) * std::sqrt(1 - std::pow(b2, count)) / (1 - std::pow(b1, count));
    for (std::size_t j = 0; j < d; ++j) {
      s[j] = b1 * s[j] + (1 - b1) * g[j];
      s[d + j] = b2 * s[d + j] + (1 - b2) * g[j] * g[j];
      const double direction = o.kind == momentum_kind::nesterov ? g[j] * (1 - b1) + b1 * s[j] : s[j];
      w[j] -= direction * alpha / (std::sqrt(s[d + j]) + real(o.epsilon));
    }
  }
};

template <bool Wrong>
struct oracle<adam_async_rmsprop, Wrong> {
  static adam_async_rmsprop make() {
    return {.learning_rate = 0.01F, .beta1 = 0.8F, .beta2 = 0.95F, .epsilon = 1e-3F};
  }
  static void step(const adam_async_rmsprop& o, int, row& w, const row& g, row& s) {
    const std::size_t d = w.size();
    const double b1 = real(o.beta1), b2 = real(o.beta2), e = real(o.epsilon);
    for (std::size_t j = 0; j < d; ++j) {
      s[d + j] = b2 * s[d + j] + (1 - b2) * g[j] * g[j];
      const double root = Wrong ? std::sqrt(s[d + j]) + e : std::sqrt(s[d + j] + e);
      s[j] = b1 * s[j] + real(o.learning_rate) * g[j] / root;
      w[j] -= s[j];
    }
  }
};

template <bool Wrong>
struct oracle<ftrl, Wrong> {
  static ftrl make() {
    return {.learning_rate = 0.1F, .l1 = 0.3F, .l2 = 0.2F, .l2_shrinkage = 0.1F, .initial_squares = 0.1F};
  }
  static void step(const ftrl& o, int t, row& w, const row& g, row& s) {
    const std::size_t d = w.size();
    const double p = -real(o.learning_rate_power), rate = real(o.learning_rate), l1 = real(o.l1);
    for (std::size_t j = 0; j < d; ++j) {
      const double before = t == 1 ? std::max(s[j], real(o.initial_squares)) : s[j];
      s[j] = before + g[j] * g[j];
      double& z = s[d + j];
      z += g[j] + 2 * real(o.l2_shrinkage) * w[j] - (std::pow(s[j], p) - std::pow(before, p)) / rate * w[j];
      const double curve = std::pow(s[j], p) / rate + (Wrong ? 1 : 2) * real(o.l2);
      w[j] = std::fabs(z) > l1 ? ((z > 0 ? l1 : -l1) - z) / curve : 0.0;
    }
  }
};

}  // namespace optim_test
