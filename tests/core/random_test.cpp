// The counter-based generator: published vectors, and moments.

#include <deeprec/core/random.hpp>

#include <doctest/doctest.h>
#include <cmath>
#include <cstdint>
#include <set>

using namespace deeprec;

namespace {
constexpr bool same(const random_words& a, const random_words& b) {
  return a.w[0] == b.w[0] && a.w[1] == b.w[1] && a.w[2] == b.w[2] && a.w[3] == b.w[3];
}
}  // namespace

TEST_CASE("random: philox gives the published test vectors") {
  static_assert(same(philox(0, {{0, 0, 0, 0}}), {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}));
  CHECK(same(philox(~std::uint64_t{0}, {{~0U, ~0U, ~0U, ~0U}}),
             {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}));
  CHECK(same(philox(0x299f31d0a4093822, {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}),
             {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}));
}

TEST_CASE("random: a stream's numbers are functions of seed, stream and position") {
  const counter_rng rng(7);
  CHECK(same(rng.words(3, 5), philox(7, {{5, 0, 3, 0}})));
  CHECK(same(rng.words(std::uint64_t{1} << 40, std::uint64_t{1} << 33), philox(7, {{0, 2, 0, 256}})));
  CHECK(rng.bits(3, 5) == counter_rng(7).bits(3, 5));
  std::set<std::uint64_t> seen;
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    for (std::uint64_t stream = 0; stream < 16; ++stream) {
      for (std::uint64_t i = 0; i < 16; ++i) seen.insert(counter_rng(seed).bits(stream, i));
    }
  }
  CHECK(seen.size() == 16 * 16 * 16);
}

TEST_CASE("random: uniform numbers are below 1 and spread evenly") {
  const counter_rng rng(11);
  constexpr int count = 200000;
  constexpr int cells = 100;
  int hits[cells] = {};
  double sum = 0;
  for (int i = 0; i < count; ++i) {
    const double u = rng.uniform(2, static_cast<std::uint64_t>(i));
    REQUIRE((u >= 0 && u < 1));
    ++hits[static_cast<int>(u * cells)];
    sum += u;
  }
  CHECK(std::fabs(sum / count - 0.5) < 6 / std::sqrt(12.0 * count));
  double chi_square = 0;
  for (const int hit : hits) {
    chi_square += (hit - count / cells) * static_cast<double>(hit - count / cells) / (count / cells);
  }
  CHECK(std::fabs(chi_square - (cells - 1)) < 6 * std::sqrt(2.0 * (cells - 1)));
  static_assert(counter_rng::to_unit(0) == 0.0F && counter_rng::to_unit(~0U) < 1.0F);
}

TEST_CASE("random: normal numbers have the moments of the normal distribution") {
  const counter_rng rng(13);
  constexpr int count = 200000;
  double moments[5] = {};
  int beyond_two = 0;
  for (int i = 0; i < count; ++i) {
    const double x = rng.normal(1, static_cast<std::uint64_t>(i));
    REQUIRE(std::isfinite(x));
    for (int k = 1; k <= 4; ++k) moments[k] += std::pow(x, k) / count;
    beyond_two += std::fabs(x) > 2;
  }
  const double error = 6 / std::sqrt(static_cast<double>(count));
  CHECK(std::fabs(moments[1]) < error);
  CHECK(std::fabs(moments[2] - 1) < error * std::sqrt(2.0));
  CHECK(std::fabs(moments[3]) < error * std::sqrt(15.0));
  CHECK(std::fabs(moments[4] - 3) < error * std::sqrt(96.0));
  CHECK(std::fabs(static_cast<double>(beyond_two) / count - 0.0455) < 0.005);
}
