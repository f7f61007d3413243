// Stochastic rounding to 16 bits: between the neighbours, right on average, and reproducible.

#include <deeprec/core/random.hpp>
#include <deeprec/core/rounding.hpp>

#include "support/seed.hpp"

#include <doctest/doctest.h>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

using namespace deeprec;

namespace {

template <class T>
float wide(std::uint32_t bits) {
  return static_cast<float>(T::from_bits(static_cast<std::uint16_t>(bits)));
}

template <class T>
T truncated(float x) {  // toward zero
  T t(x);
  if (std::fabs(static_cast<float>(t)) <= std::fabs(x)) return t;
  return T::from_bits(static_cast<std::uint16_t>(t.bits - 1));
}

// The mean of many roundings of x, as distance from x in standard errors.
template <class T, class Round>
double bias(float x, int draws, Round round) {
  const T below = truncated<T>(x);
  const auto low = static_cast<double>(static_cast<float>(below));
  const double step = static_cast<double>(wide<T>(below.bits + 1U)) - low;
  const double f = (static_cast<double>(x) - low) / step;
  double total = 0;
  for (int i = 0; i < draws; ++i) {
    total += static_cast<double>(static_cast<float>(round(x, i))) - static_cast<double>(x);
  }
  const double deviation = std::fabs(step) * std::sqrt(f * (1 - f) / draws);
  return std::fabs(total / draws) / deviation;
}

const std::uint32_t some_words[] = {0, 1, 0x7fffffffU, 0x80000000U, 0xffff0000U, 0xffffffffU, 0x12345678U};

}  // namespace

static_assert(RoundingPolicy<rounding::nearest_t> && RoundingPolicy<rounding::stochastic> &&
              !RoundingPolicy<int>);
static_assert(detail::round_with<bf16>(1.0F, 0xffffffffU).bits == 0x3f80);  // usable at compile time
static_assert(detail::round_with<f16>(0x1p-24F, 0U).bits == 1);

TEST_CASE_TEMPLATE("rounding: a value that is there already stays, whatever the word", T, bf16, f16) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float x = wide<T>(bits);
    for (const std::uint32_t word : some_words) {
      const T rounded = detail::round_with<T>(x, word);
      if (std::isnan(x)) {
        REQUIRE(std::isnan(static_cast<float>(rounded)));
        REQUIRE(rounded.bits == T(x).bits);
      } else {
        REQUIRE(rounded.bits == bits);
      }
    }
  }
  CHECK(detail::round_with<float>(0.1F, 77) == 0.1F);
}

TEST_CASE_TEMPLATE("rounding: the answer is one of the two neighbours", T, bf16, f16) {
  const counter_rng rng(deeprec_test::seed());
  int ups = 0, downs = 0;
  for (std::uint64_t i = 0; i < 200'000; ++i) {
    const random_words r = rng.words(0, i);
    const float x = std::bit_cast<float>(r.w[0]);
    if (std::isnan(x) || std::fabs(x) >= 65504.0F) continue;  // the largest are below
    const T below = truncated<T>(x);
    const T rounded = detail::round_with<T>(x, r.w[1]);
    const bool up = rounded.bits == below.bits + 1;
    REQUIRE((up || rounded.bits == below.bits));
    (up ? ups : downs) += 1;
  }
  CHECK(ups > 1000);
  CHECK(downs > 1000);
}

TEST_CASE("rounding: bf16 goes up for exactly as many words as its fraction says") {
  for (const std::uint32_t low : {1U, 2U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
    for (const std::uint32_t high : {0x3f80U, 0xbf80U, 0x0000U, 0x0001U, 0x8000U, 0x7f00U, 0x4123U}) {
      const float x = std::bit_cast<float>(high << 16 | low);
      std::uint32_t up = 0;
      for (std::uint32_t half = 0; half < 0x10000; ++half) {
        up += detail::round_with<bf16>(x, half << 16 | (half * 40503U & 0xffffU)).bits == high + 1;
      }
      CHECK(up == low);
    }
  }
}

TEST_CASE("rounding: f16 goes up below its fraction of 2^31, halves and denormal halves alike") {
  const auto check = [](float x, double fraction) {
    CAPTURE(x);
    const auto cut = static_cast<std::uint32_t>(fraction * 0x1p31);
    const f16 below = truncated<f16>(x);
    REQUIRE(cut > 0);
    CHECK(detail::round_with<f16>(x, (cut - 1) << 1 | 1).bits == below.bits + 1);
    CHECK(detail::round_with<f16>(x, cut << 1).bits == below.bits);
    CHECK(detail::round_with<f16>(x, 0).bits == below.bits + 1);
    CHECK(detail::round_with<f16>(x, ~0U).bits == below.bits);
  };
  check(1.0F + 0x1p-11F, 0.5);
  check(-(1.0F + 0x1p-12F), 0.25);
  check(1.0F + 0x1p-23F, 0x1p-13);
  check(0x1p-14F + 0x1p-26F, 0.25);  // the smallest normal half
  check(0x1p-15F + 0x1p-25F, 0.5);   // denormal
  check(0x1p-25F, 0.5);              // between 0 and the smallest
  check(-0x1.8p-26F, 0.375);
  check(0x1p-40F, 0x1p-16);
  check(65503.0F, 31.0 / 32);
  CHECK(detail::round_with<f16>(0x1p-60F, 0).bits == 0);  // less than 2^-31 of the distance: never
}

TEST_CASE_TEMPLATE("rounding: right on average, which rounding to nearest is not", T, bf16, f16) {
  const rounding::stochastic how{.seed = deeprec_test::seed(), .step = 3};
  const int draws = 20'000;
  for (const float x : {1.0F + 0x1.5p-12F, -3.1415926F, 1000.1F, 0x1.23456p-20F, 1e-6F}) {
    CAPTURE(x);
    const auto at_random = [&](float v, int draw) {
      const auto i = static_cast<std::uint64_t>(draw);
      return detail::round_with<T>(v, how.word(i / 50, i % 50));
    };
    CHECK(bias<T>(x, draws, at_random) < 5);
    CHECK(bias<T>(x, draws, [](float v, int) { return T(v); }) > 5);             // to nearest
    CHECK(bias<T>(x, draws, [](float v, int) { return truncated<T>(v); }) > 5);  // toward zero
  }
}

TEST_CASE("rounding: nothing finite below the next power of two becomes infinite") {
  for (const std::uint32_t word : some_words) {
    CHECK(detail::round_with<bf16>(0x1.fep127F, word).bits == 0x7f7f);
    CHECK(detail::round_with<bf16>(std::numeric_limits<float>::max(), word).bits == 0x7f7f);
    CHECK(detail::round_with<bf16>(-std::numeric_limits<float>::max(), word).bits == 0xff7f);
    CHECK(detail::round_with<f16>(65504.0F, word).bits == 0x7bff);
    CHECK(detail::round_with<f16>(65519.9F, word).bits == 0x7bff);
    CHECK(detail::round_with<f16>(-65535.9F, word).bits == 0xfbff);
    CHECK(detail::round_with<f16>(65536.0F, word).bits == 0x7c00);  // too large, as to nearest
    CHECK(detail::round_with<f16>(-1e30F, word).bits == 0xfc00);
    CHECK(detail::round_with<bf16>(std::numeric_limits<float>::infinity(), word).bits == 0x7f80);
    CHECK(detail::round_with<f16>(-std::numeric_limits<float>::infinity(), word).bits == 0xfc00);
    CHECK(std::isnan(static_cast<float>(detail::round_with<bf16>(std::bit_cast<float>(0x7fffffffU), word))));
    CHECK(std::isnan(static_cast<float>(detail::round_with<bf16>(std::bit_cast<float>(0x7f800001U), word))));
    CHECK(std::isnan(static_cast<float>(detail::round_with<f16>(std::bit_cast<float>(0xff800001U), word))));
  }
}

TEST_CASE("rounding: a word is a function of seed, step, row and column, and of all of them") {
  constexpr rounding::stochastic how{.seed = 42, .step = 7};
  static_assert(how.of_table(0).seed == 42 && how.of_table(3).step == 7);
  static_assert(how.of_table(3).seed == counter_rng(42).bits(~std::uint64_t{0}, 3));
  static_assert(how.word(3, 5) == counter_rng(42).words(3, (std::uint64_t{7} << 32) + 5).w[0]);
  CHECK(how.word(3, 16 + 5) == counter_rng(42).words(3, (std::uint64_t{7} << 32) + 5).w[1]);
  CHECK(how.word(3, 64 + 48 + 5) == counter_rng(42).words(3, (std::uint64_t{7} << 32) + 16 + 5).w[3]);
  std::set<std::uint32_t> words;
  for (std::uint64_t row = 0; row < 8; ++row) {
    for (std::uint64_t column = 0; column < 300; ++column) {
      words.insert(how.word(row, column));
      words.insert(rounding::stochastic{.seed = 43, .step = 7}.word(row, column));
      words.insert(rounding::stochastic{.seed = 42, .step = 8}.word(row, column));
      words.insert(how.of_table(1).word(row, column));
      words.insert(how.of_table(2).word(row, column));
    }
  }
  CHECK(words.size() >= 12000 - 8);  // chance repeats a word once in a while, structure never
}
