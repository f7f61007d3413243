// Learning rates as functions of the step: optimizer.learning_rate = schedule(step) before each batch.
//
//   constant_rate              ─────────
//   step_decay                 ──┐__┐__       rate * factor^(step / every)
//   cosine_decay               ╱‾╲_           linear warm-up, then half a cosine down to `last`
//   smooth_exponential_decay   ╭──┐__┐__      smooth warm-up, then one factor for each period
//
// Pure functions: no state, the same float on every machine, usable at compile time. Steps count from 0; a
// negative step is step 0. A period of 0 or less never ends.
#pragma once

#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/optim/detail/integer_power.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {

/// Whole periods in `steps`.
DEEPREC_HD constexpr std::int64_t periods_in(std::int64_t steps, std::int64_t every) noexcept {
  return steps > 0 && every > 0 ? steps / every : 0;
}

DEEPREC_HD constexpr float after_periods(float rate, float factor, std::int64_t periods) noexcept {
  return static_cast<float>(static_cast<double>(rate) * integer_power(static_cast<double>(factor), periods));
}

/// (1 + cos(pi * x)) / 2 for 0 <= x <= 1, by the series of the sine: within 2^-50.
DEEPREC_HD constexpr double half_cosine(double x) noexcept {
  const double right = x > 0.5 ? 1.0 - x : x;  // by symmetry: at most 0.5
  const double angle = 1.5707963267948966 * right;
  double term = angle;
  double sine = term;
  for (int k = 1; k < 10; ++k) {
    term *= -angle * angle / ((2.0 * k) * (2.0 * k + 1.0));
    sine += term;
  }
  const double squared = sine * sine;  // (1 - cos(2 * angle)) / 2
  return x > 0.5 ? squared : 1.0 - squared;
}

}  // namespace detail

struct constant_rate {
  float rate = 0.01F;

  DEEPREC_HD constexpr float operator()(std::int64_t) const noexcept { return rate; }
};

/// rate * factor^k, where k is the number of whole periods.
struct step_decay {
  float rate = 0.01F;
  float factor = 0.1F;
  std::int64_t every = 100'000;

  DEEPREC_HD constexpr float operator()(std::int64_t step) const noexcept {
    return detail::after_periods(rate, factor, detail::periods_in(step, every));
  }
};

/// From `first` linearly to `rate` in `warmup` steps, then by a half cosine to `last` at step `total`, and
/// `last` from then on.
struct cosine_decay {
  float first = 0;
  float rate = 0.01F;
  float last = 0;
  std::int64_t warmup = 0;
  std::int64_t total = 100'000;  ///< warm-up included

  DEEPREC_HD constexpr float operator()(std::int64_t step) const noexcept {
    if (step < 0) step = 0;
    if (step < warmup) {
      const double done = static_cast<double>(step) / static_cast<double>(warmup);
      return static_cast<float>(first + (static_cast<double>(rate) - first) * done);
    }
    if (step >= total) return last;
    const std::int64_t begin = warmup > 0 ? warmup : 0;
    const double done = static_cast<double>(step - begin) / static_cast<double>(total - begin);
    return static_cast<float>(last + (static_cast<double>(rate) - last) * detail::half_cosine(done));
  }
};

/// PAISoar's schedule: from `first` to `rate` in `warmup` steps along 3x^2 - 2x^3, which is level at both
/// ends; then rate * factor^k after k whole periods.
struct smooth_exponential_decay {
  float first = 0;
  float rate = 0.01F;
  std::int64_t warmup = 0;  ///< 0: none, and step 0 has `rate`
  float factor = 0.9F;
  std::int64_t every = 100'000;

  DEEPREC_HD constexpr float operator()(std::int64_t step) const noexcept {
    if (step < 0) step = 0;
    if (step < warmup) {
      const double done = static_cast<double>(step) / static_cast<double>(warmup);
      const double along = done * done * (3.0 - 2.0 * done);
      return static_cast<float>(first + (static_cast<double>(rate) - first) * along);
    }
    const std::int64_t after = step - (warmup > 0 ? warmup : 0);
    return detail::after_periods(rate, factor, detail::periods_in(after, every));
  }
};

}}  // namespace deeprec::DEEPREC_ABI
