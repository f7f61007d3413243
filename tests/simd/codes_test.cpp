// The words that read codes, in every region that this machine runs, against scalar code.

#include <deeprec/simd/vectors.hpp>

#include "support/guarded.hpp"
#include "support/seed.hpp"
#include "support/with_isa.hpp"

#include <doctest/doctest.h>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

// clang-format off: the order of these is what they mean
#include <deeprec/simd/begin_portable.hpp>
#include "codes_kernels.inl"
#include <deeprec/simd/end_portable.hpp>

#if DEEPREC_X86
#include <deeprec/simd/begin_avx2.hpp>
#include "codes_kernels.inl"
#include <deeprec/simd/end_avx2.hpp>

#include <deeprec/simd/begin_avx512.hpp>
#include "codes_kernels.inl"
#include <deeprec/simd/end_avx512.hpp>

#include <deeprec/simd/begin_avx512_bf16.hpp>
#include "codes_kernels.inl"
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

std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

// Random bytes that end at a guard page, and once more behind one (in a whole number of pages).
struct both_ends {
  both_ends(std::mt19937_64& random, std::size_t bytes) : at_end(bytes), at_begin(4096) {
    for (std::size_t i = 0; i < bytes; ++i) {
      at_end[i] = at_begin[i] = static_cast<std::byte>(random());
    }
  }
  guarded<std::byte> at_end;
  guarded<std::byte> at_begin;
};

unsigned nibble(const std::byte* bytes, int column) {
  const auto both = static_cast<unsigned>(bytes[column / 2]);
  return column % 2 == 0 ? both % 16 : both / 16;
}

}  // namespace

TEST_CASE_TEMPLATE("codes: every fp8 pattern is widened to the bits of the scalar conversion", T, e4m3,
                   e5m2) {
  std::vector<T> stored(256);
  for (std::size_t i = 0; i < 256; ++i) stored[i] = T::from_bits(static_cast<std::uint8_t>(i));
  for_every_region([&](auto region) {
    const auto lanes = static_cast<std::size_t>(lane_count(region));
    std::vector<float> wide(256);
    for (std::size_t i = 0; i < 256; i += lanes) widen(region, stored.data() + i, -1, wide.data() + i);
    for (std::size_t i = 0; i < 256; ++i) CHECK(bits(wide[i]) == bits(static_cast<float>(stored[i])));
  });
}

TEST_CASE_TEMPLATE("codes: loads of fp8 read their elements and nothing else", T, e4m3, e5m2) {
  std::mt19937_64 random(deeprec_test::seed());
  for_every_region([&](auto region) {
    const int lanes = lane_count(region);
    for (int n = -1; n <= lanes; ++n) {
      const int used = n < 0 ? lanes : n;
      const both_ends bytes(random, static_cast<std::size_t>(used));
      for (const std::byte* from : {bytes.at_end.data(), bytes.at_begin.data()}) {
        const T* const typed = static_cast<const T*>(static_cast<const void*>(from));
        std::vector<float> wide(static_cast<std::size_t>(lanes), -99.0F);
        widen(region, typed, n, wide.data());
        for (int i = 0; i < lanes; ++i) {
          const float expected = i < used ? static_cast<float>(typed[i]) : 0.0F;
          CHECK(bits(wide[static_cast<std::size_t>(i)]) == bits(expected));
        }
      }
    }
  });
}

TEST_CASE("codes: codes of 8 and 4 bits become their numbers, and nothing else is read") {
  std::mt19937_64 random(deeprec_test::seed() + 1);
  for_every_region([&](auto region) {
    const int lanes = lane_count(region);
    for (int n = -1; n <= lanes; ++n) {
      CAPTURE(n);
      const int used = n < 0 ? lanes : n;
      for (int trial = 0; trial < 8; ++trial) {
        const both_ends codes(random, static_cast<std::size_t>(used));
        const both_ends nibbles(random, static_cast<std::size_t>(used + 1) / 2);
        std::vector<float> wide(static_cast<std::size_t>(lanes) + 1, -99.0F);
        for (const std::byte* from : {codes.at_end.data(), codes.at_begin.data()}) {
          widen_codes(region, from, n, wide.data());
          for (int i = 0; i < lanes; ++i) {
            const float expected = i < used ? static_cast<float>(static_cast<int>(from[i])) : 0.0F;
            CHECK(wide[static_cast<std::size_t>(i)] == expected);
          }
        }
        for (const std::byte* from : {nibbles.at_end.data(), nibbles.at_begin.data()}) {
          widen_nibbles(region, from, n, wide.data());
          for (int i = 0; i < lanes; ++i) {
            const float expected = i < used ? static_cast<float>(nibble(from, i)) : 0.0F;
            CHECK(wide[static_cast<std::size_t>(i)] == expected);
          }
        }
        CHECK(wide.back() == -99.0F);
      }
    }
  });
}

TEST_CASE("codes: pairs of vectors of nibbles hold even and odd columns, and interleave puts them in order") {
  std::mt19937_64 random(deeprec_test::seed() + 2);
  bool order_matters = false;
  for_every_region([&](auto region) {
    const int lanes = lane_count(region);
    const both_ends codes(random, static_cast<std::size_t>(lanes));
    for (const std::byte* from : {codes.at_end.data(), codes.at_begin.data()}) {
      std::vector<float> apart(static_cast<std::size_t>(2 * lanes)), in_order(apart.size());
      widen_nibble_pairs(region, from, apart.data(), in_order.data());
      for (int i = 0; i < 2 * lanes; ++i) {
        const auto expected = static_cast<float>(nibble(from, i));
        CHECK(in_order[static_cast<std::size_t>(i)] == expected);
        CHECK(apart[static_cast<std::size_t>(i % 2 * lanes + i / 2)] == expected);
        order_matters |= apart[static_cast<std::size_t>(i)] != expected;
      }
    }
  });
  CHECK(order_matters);
}

TEST_CASE(
    "codes: pairs of vectors of bf16 hold even and odd columns of every pattern, and nothing else is read") {
  for_every_region([&](auto region) {
    const auto lanes = static_cast<std::size_t>(lane_count(region));
    int wrong = 0;
    for (std::uint32_t first = 0; first < 0x10000; first += static_cast<std::uint32_t>(2 * lanes)) {
      guarded<bf16> stored(2 * lanes,
                           first % 4096 == 0 ? deeprec_test::fence::before : deeprec_test::fence::behind);
      for (std::size_t i = 0; i < 2 * lanes; ++i) {
        stored[i] = bf16::from_bits(static_cast<std::uint16_t>(first + i));
      }
      std::vector<float> apart(2 * lanes), in_order(2 * lanes);
      widen_pairs(region, stored.data(), apart.data(), in_order.data());
      for (std::size_t i = 0; i < 2 * lanes; ++i) {
        const std::uint32_t expected = static_cast<std::uint32_t>(first + i) << 16;
        wrong += bits(in_order[i]) != expected || bits(apart[i % 2 * lanes + i / 2]) != expected ? 1 : 0;
      }
    }
    CHECK(wrong == 0);
  });
}

TEST_CASE("codes: halves join to the float that they were, NaN and infinity too") {
  std::mt19937_64 random(deeprec_test::seed() + 3);
  for_every_region([&](auto region) {
    const int lanes = lane_count(region);
    for (int n = -1; n <= lanes; ++n) {
      const int used = n < 0 ? lanes : n;
      const both_ends high(random, static_cast<std::size_t>(2 * used));
      const both_ends low(random, static_cast<std::size_t>(2 * used));
      std::vector<float> wide(static_cast<std::size_t>(lanes));
      for (const bool end : {false, true}) {
        const std::byte* const top = end ? high.at_end.data() : high.at_begin.data();
        const std::byte* const bottom = end ? low.at_begin.data() : low.at_end.data();
        join_halves(region, top, bottom, n, wide.data());
        for (int i = 0; i < lanes; ++i) {
          std::uint16_t a = 0, b = 0;
          if (i < used) std::memcpy(&a, top + 2 * i, 2);
          if (i < used) std::memcpy(&b, bottom + 2 * i, 2);
          CHECK(bits(wide[static_cast<std::size_t>(i)]) == (static_cast<std::uint32_t>(a) << 16 | b));
        }
      }
    }
  });
}

TEST_CASE("codes: scale and bias are read at any address, as floats and as every half") {
  for_every_region([](auto region) {
    int wrong = 0;
    guarded<std::byte> at_end(5);
    for (std::uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
      const std::uint16_t both[2] = {static_cast<std::uint16_t>(pattern),
                                     static_cast<std::uint16_t>(pattern ^ 0x1234)};
      std::memcpy(at_end.data() + 1, both, 4);
      float wide[2];
      widen_two<f16>(region, at_end.data() + 1, wide);
      for (int i = 0; i < 2; ++i) {
        wrong += bits(wide[i]) != bits(static_cast<float>(f16::from_bits(both[i])));
      }
    }
    CHECK(wrong == 0);
    guarded<std::byte> floats(9);
    const float both[2] = {1.5F, -2.25F};
    std::memcpy(floats.data() + 1, both, 8);
    float wide[2];
    widen_two<float>(region, floats.data() + 1, wide);
    CHECK(wide[0] == 1.5F);
    CHECK(wide[1] == -2.25F);
  });
}
