// Learning rates as functions of the step.

#include <deeprec/optim/schedules.hpp>

#include <doctest/doctest.h>
#include <algorithm>
#include <cmath>
#include <cstdint>

using namespace deeprec;

namespace {

constexpr smooth_exponential_decay smooth{
    .first = 0.001F, .rate = 0.1F, .warmup = 1000, .factor = 0.9F, .every = 500};

// All of them at compile time.
static_assert(constant_rate{0.5F}(123) == 0.5F);
static_assert(step_decay{.rate = 1, .factor = 0.5F, .every = 10}(25) == 0.25F);
static_assert(smooth(0) == 0.001F && smooth(1000) == 0.1F);
static_assert(cosine_decay{.rate = 1, .total = 100}(0) == 1);

// The first step of [0, steps) where f goes down, -1 for none.
template <class F>
std::int64_t first_fall(const F& f, std::int64_t steps) {
  for (std::int64_t s = 1; s < steps; ++s) {
    if (f(s) < f(s - 1)) return s;
  }
  return -1;
}
template <class F>
std::int64_t first_rise(const F& f, std::int64_t from, std::int64_t to) {
  for (std::int64_t s = from + 1; s < to; ++s) {
    if (f(s) > f(s - 1)) return s;
  }
  return -1;
}

}  // namespace

TEST_CASE("schedules: step_decay multiplies once a period") {
  const step_decay f{.rate = 0.3F, .factor = 0.7F, .every = 100};
  for (std::int64_t k = 0; k < 50; ++k) {
    const auto expected = static_cast<float>(static_cast<double>(0.3F) *
                                             std::pow(static_cast<double>(0.7F), static_cast<double>(k)));
    CHECK(f(100 * k) == doctest::Approx(expected).epsilon(1e-6));
    CHECK(f(100 * k) == f(100 * k + 99));
    CHECK(f(100 * k + 99) > f(100 * k + 100));
  }
  CHECK(f(-5) == f(0));
  CHECK(step_decay{.rate = 0.3F, .every = 0}(1'000'000) == 0.3F);
}

TEST_CASE("schedules: smooth_exponential_decay warms up, then decays") {
  SUBCASE("step 0 has the first rate, and the end of the warm-up has the target") {
    CHECK(smooth(0) == 0.001F);
    CHECK(smooth(-3) == 0.001F);
    CHECK(smooth(1000) == 0.1F);
    CHECK(smooth(500) == doctest::Approx((0.001 + 0.1) / 2));
  }
  SUBCASE("it is continuous at the end of the warm-up, and level there and at the start") {
    CHECK(smooth(1000) - smooth(999) < 1e-6F);
    CHECK(smooth(1) - smooth(0) < 1e-6F);
    CHECK(smooth(501) - smooth(500) > 1e-4F);  // a straight line has 1e-4 everywhere
  }
  SUBCASE("it goes up, then only down, at the ends of periods alone") {
    CHECK(first_fall(smooth, 1001) == -1);
    CHECK(first_fall(smooth, 2000) == 1500);
    CHECK(first_rise(smooth, 1000, 20'000) == -1);
    for (std::int64_t s = 1001; s < 6000; ++s) CHECK((smooth(s) < smooth(s - 1)) == (s % 500 == 0));
  }
  SUBCASE("after k periods it is rate * factor^k") {
    for (std::int64_t k = 0; k < 60; ++k) {
      const double expected =
          static_cast<double>(0.1F) * std::pow(static_cast<double>(0.9F), static_cast<double>(k));
      CHECK(std::fabs(static_cast<double>(smooth(1000 + 500 * k)) / expected - 1) < 0x1p-23);
      CHECK(smooth(1000 + 500 * k) == smooth(1000 + 500 * k + 499));
    }
  }
  SUBCASE("a warm-up of 0 is none") {
    smooth_exponential_decay f = smooth;
    f.warmup = 0;
    CHECK(f(0) == 0.1F);
    CHECK(f(499) == 0.1F);
    CHECK(f(500) == doctest::Approx(0.09));
  }
  SUBCASE("long warm-ups stay monotone in float, and periods that never end keep the rate") {
    smooth_exponential_decay f{.first = 1e-8F, .rate = 1e-3F, .warmup = 3'000'000, .every = 0};
    float last = f(0);
    bool rises = true;
    for (std::int64_t s = 1; s <= f.warmup; s += 7) {
      rises = rises && f(s) >= last;
      last = f(s);
    }
    CHECK(rises);
    CHECK(f(std::int64_t{1} << 60) == 1e-3F);
  }
}

TEST_CASE("schedules: cosine_decay warms up in a line and ends at its last rate") {
  const cosine_decay f{.first = 0.01F, .rate = 0.5F, .last = 0.02F, .warmup = 100, .total = 1100};
  CHECK(f(0) == 0.01F);
  CHECK(f(50) == doctest::Approx(0.255));
  CHECK(f(100) == 0.5F);
  CHECK(f(600) == doctest::Approx(0.26));
  CHECK(f(1100) == 0.02F);
  CHECK(f(1'000'000) == 0.02F);
  CHECK(first_fall(f, 101) == -1);
  CHECK(first_rise(f, 100, 2000) == -1);
  double worst = 0, worst_line = 0;
  for (std::int64_t s = 100; s <= 1100; ++s) {
    const double x = static_cast<double>(s - 100) / 1000;
    const double exact = static_cast<double>(0.02F) +
                         static_cast<double>(0.5F - 0.02F) / 2 * (1 + std::cos(3.141592653589793 * x));
    worst = std::max(worst, std::fabs(static_cast<double>(f(s)) - exact));
    worst_line = std::max(worst_line, std::fabs(static_cast<double>(f(s)) - (0.5 - 0.48 * x)));
  }
  CHECK(worst < 1e-7);
  CHECK(worst_line > 0.01);
  const cosine_decay none{.rate = 0.5F, .total = 10};
  CHECK(none(0) == 0.5F);
  CHECK(none(10) == 0);
  CHECK(cosine_decay{.rate = 0.5F, .last = 0.1F, .warmup = 20, .total = 10}(20) == 0.1F);
  double worst_half = 0;
  for (int i = 0; i <= 1000; ++i) {
    const double x = i / 1000.0;
    worst_half =
        std::max(worst_half, std::fabs(detail::half_cosine(x) - (1 + std::cos(3.141592653589793 * x)) / 2));
  }
  CHECK(worst_half < 0x1p-50);
}
