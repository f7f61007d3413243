// Stochastic rounding in every region that this machine runs, against core/rounding.hpp.

#include <deeprec/simd/rounding_vectors.hpp>

#include "support/guarded.hpp"
#include "support/seed.hpp"
#include "support/with_isa.hpp"

#include <doctest/doctest.h>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

// clang-format off: the order of these is what they mean
#include <deeprec/simd/begin_portable.hpp>
#include "rounding_kernels.inl"
#include <deeprec/simd/end_portable.hpp>

#if DEEPREC_X86
#include <deeprec/simd/begin_avx2.hpp>
#include "rounding_kernels.inl"
#include <deeprec/simd/end_avx2.hpp>

#include <deeprec/simd/begin_avx512.hpp>
#include "rounding_kernels.inl"
#include <deeprec/simd/end_avx512.hpp>

#include <deeprec/simd/begin_avx512_bf16.hpp>
#include "rounding_kernels.inl"
#include <deeprec/simd/end_avx512_bf16.hpp>
#endif
// clang-format on

using namespace deeprec;
using deeprec_test::guarded;
using deeprec_test::with_isa;

namespace {

template <class F>
void for_every_region(F f) {
  for (const isa which : every_isa) {
    if (which > best_isa()) continue;
    CAPTURE(std::string(to_string(which)));
    with_isa(which, [&](auto region) { f(region); });
  }
}

// How many results differ from round_with, over floats of every upper half and random lower halves and words.
template <class T, class Region>
int faults(Region region, std::uint32_t flip) {
  const auto lanes = static_cast<std::size_t>(rounding_lanes(region));
  std::mt19937_64 random(deeprec_test::seed());
  std::vector<float> x(lanes);
  std::vector<std::uint32_t> word(lanes);
  std::vector<T> to(lanes);
  int found = 0;
  std::size_t k = 0;
  const auto check = [&](std::uint32_t bits, std::uint32_t w) {
    x[k] = std::bit_cast<float>(bits);
    word[k] = w;
    if (++k < lanes) return;
    k = 0;
    round_to(region, x.data(), word.data(), -1, to.data());
    for (std::size_t i = 0; i < lanes; ++i) {
      found += to[i].bits != detail::round_with<T>(x[i], word[i] ^ flip).bits;
    }
  };
  for (std::uint32_t high = 0; high < 0x10000; ++high) {
    for (const std::uint32_t low : {0x0000U, 0x0001U, 0x1000U, 0x1fffU, 0x2000U, 0x8000U, 0xe000U, 0xffffU,
                                    static_cast<std::uint32_t>(random() & 0xffffU)}) {
      check(high << 16 | low, static_cast<std::uint32_t>(random()));
    }
  }
  // Words right at the threshold of f16: as many units of 2^-31 as are cut off, and one less.
  for (std::uint32_t bits = 0x33000000U; bits < 0x47900000U; bits += 0x1235U) {
    const float v = std::bit_cast<float>(bits);
    const int exponent = std::max(static_cast<int>(bits >> 23), 113) - 137;
    const double units = std::ldexp(static_cast<double>(v), -exponent);
    const auto cut = static_cast<std::uint32_t>((units - std::floor(units)) * 0x1p31);
    check(bits, cut << 1);
    check(bits | 0x80000000U, (cut << 1) - 1);
  }
  return found;
}

}  // namespace

TEST_CASE_TEMPLATE("rounding_words: the same bits as scalar rounding", T, bf16, f16) {
  for_every_region([](auto region) {
    CHECK(faults<T>(region, 0) == 0);
    CHECK(faults<T>(region, 0x80000000U) > 1000);  // other words round otherwise
  });
}

TEST_CASE("rounding_words: f32 is stored as it is") {
  for_every_region([](auto region) {
    const auto lanes = static_cast<std::size_t>(rounding_lanes(region));
    std::vector<float> x(lanes), to(lanes);
    for (std::size_t i = 0; i < lanes; ++i) x[i] = 0.1F * static_cast<float>(i);
    const std::vector<std::uint32_t> word(lanes, ~0U);
    round_to(region, x.data(), word.data(), -1, to.data());
    CHECK(to == x);
  });
}

TEST_CASE_TEMPLATE("rounding_words: a store of the first lanes writes nothing else", T, float, bf16, f16) {
  for_every_region([](auto region) {
    const int lanes = rounding_lanes(region);
    std::vector<float> x(static_cast<std::size_t>(lanes));
    std::vector<std::uint32_t> word(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = 1.0F + 0.01F * static_cast<float>(i);
      word[i] = static_cast<std::uint32_t>(i) * 0x9e3779b9U;
    }
    for (int n = 0; n <= lanes; ++n) {
      CAPTURE(n);
      guarded<T> at_end(static_cast<std::size_t>(n));
      round_to(region, x.data(), word.data(), n, at_end.data());
      std::vector<T> around(x.size() + 8, static_cast<T>(9.0F));
      round_to(region, x.data(), word.data(), n, around.data() + 4);
      for (std::size_t i = 0; i < around.size(); ++i) {
        const bool ours = i >= 4 && i < 4 + static_cast<std::size_t>(n);
        const T expected = ours ? detail::round_with<T>(x[i - 4], word[i - 4]) : static_cast<T>(9.0F);
        CHECK(std::memcmp(&around[i], &expected, sizeof(T)) == 0);
        if (ours) CHECK(std::memcmp(&at_end[i - 4], &expected, sizeof(T)) == 0);
      }
    }
  });
}

TEST_CASE("rounding_words: drawn words are those of rounding::stochastic::word") {
  const rounding::stochastic hows[] = {{},
                                       {.seed = 0x123456789abcdef0U, .step = 0xfedcba98U},
                                       {~0U, ~0U},
                                       {.seed = 5, .step = (std::uint64_t{1} << 32) + 1}};
  for_every_region([&](auto region) {
    for (const rounding::stochastic& how : hows) {
      for (const std::uint64_t row : {std::uint64_t{0}, std::uint64_t{77}, ~std::uint64_t{0}}) {
        for (const std::uint64_t chunk : {0U, 1U, 9U}) {
          std::uint32_t word[65];
          word[64] = 12345;
          draw(region, word, how, row, chunk);
          int other = 0;
          for (std::uint64_t i = 0; i < 64; ++i) other += word[i] != how.word(row, chunk * 64 + i);
          CHECK(other == 0);
          CHECK(word[64] == 12345);
          CHECK(word[0] != how.word(row + 1, chunk * 64));
        }
      }
    }
  });
}

TEST_CASE("rounding_words: the smaller of two, and NaN when either is") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for_every_region([&](auto region) {
    const auto lanes = static_cast<std::size_t>(rounding_lanes(region));
    for (const float a : {1.0F, -2.0F, 0.0F, infinity, -infinity, nan}) {
      for (const float b : {1.0F, -3.0F, 0.5F, infinity, -infinity, nan}) {
        std::vector<float> to(lanes);
        bounded(region, std::vector<float>(lanes, a).data(), std::vector<float>(lanes, b).data(), to.data());
        for (const float x : to) {
          if (std::isnan(a) || std::isnan(b)) {
            CHECK(std::isnan(x));
          } else {
            CHECK(x == std::min(a, b));
          }
        }
      }
    }
  });
}
