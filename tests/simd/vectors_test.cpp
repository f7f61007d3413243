// The vector words of every region that this machine runs, against scalar code.

#include <deeprec/simd/dispatch.hpp>
#include <deeprec/simd/vectors.hpp>

#include "support/guarded.hpp"
#include "support/seed.hpp"
#include "support/with_isa.hpp"

#include <doctest/doctest.h>
#include <algorithm>
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
#include "words_kernels.inl"
#include <deeprec/simd/end_portable.hpp>

#if DEEPREC_X86
#include <deeprec/simd/begin_avx2.hpp>
#include "words_kernels.inl"
#include <deeprec/simd/end_avx2.hpp>

#include <deeprec/simd/begin_avx512.hpp>
#include "words_kernels.inl"
#include <deeprec/simd/end_avx512.hpp>

#include <deeprec/simd/begin_avx512_bf16.hpp>
#include "words_kernels.inl"
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
bool same(float a, float b) { return bits(a) == bits(b) || (std::isnan(a) && std::isnan(b)); }

template <class T>
bool same_bytes(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

template <class T>
T value_of(int i) {
  return static_cast<T>(static_cast<float>(i % 61) * 0.375F - 7.0F);
}

// Floats whose lower halves are edges of rounding; upper halves are all of them.
std::vector<float> edge_floats() {
  std::vector<float> values;
  for (std::uint32_t high = 0; high < 0x10000; ++high) {
    for (const std::uint32_t low : {0x0000U, 0x0001U, 0x0fffU, 0x1000U, 0x1001U, 0x2fffU, 0x3000U, 0x7fffU,
                                    0x8000U, 0x8001U, 0xffffU}) {
      values.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  values.resize((values.size() + 63) / 64 * 64);
  return values;
}

// How many of the values are narrowed otherwise than by T's own constructor.
template <class T, class Narrow>
int narrowing_faults(const std::vector<float>& values, int lanes, Narrow narrow) {
  std::vector<T> stored(values.size());
  for (std::size_t i = 0; i + static_cast<std::size_t>(lanes) <= values.size();
       i += static_cast<std::size_t>(lanes)) {
    narrow(values.data() + i, stored.data() + i);
  }
  int faults = 0;
  for (std::size_t i = 0; i < values.size(); ++i) faults += stored[i].bits != T(values[i]).bits;
  return faults;
}

}  // namespace

TEST_CASE("words: with_isa enters the region that was asked for") {
  for (const isa which : every_isa) {
    if (which > best_isa()) continue;
    const isa entered = with_isa(which, [](auto region) { return decltype(region)::which; });
    const isa limited = with_isa_up_to_avx512(which, [](auto region) { return decltype(region)::which; });
#if DEEPREC_X86
    CHECK(entered == which);
    CHECK(limited == std::min(which, isa::avx512));
#else
    CHECK(entered == isa::portable);
    CHECK(limited == isa::portable);
#endif
  }
}

TEST_CASE_TEMPLATE("words: loads read their elements and nothing else", T, float, bf16, f16) {
  for_every_region([](auto region) {
    const int lanes = lane_count(region);
    for (int n = -1; n <= lanes; ++n) {
      CAPTURE(n);
      const int used = n < 0 ? lanes : n;
      guarded<T> at_end(static_cast<std::size_t>(used));
      guarded<T> at_begin(4096);  // a whole number of pages: guarded before as well
      for (int i = 0; i < used; ++i) {
        at_end[static_cast<std::size_t>(i)] = value_of<T>(i + n);
        at_begin[static_cast<std::size_t>(i)] = value_of<T>(i + n);
      }
      for (const T* from : {at_end.data(), at_begin.data()}) {
        std::vector<float> wide(static_cast<std::size_t>(lanes) + 1, -99.0F);
        widen(region, from, n, wide.data());
        for (int i = 0; i < lanes; ++i) {
          const float expected = i < used ? static_cast<float>(value_of<T>(i + n)) : 0.0F;
          CHECK(bits(wide[static_cast<std::size_t>(i)]) == bits(expected));
        }
        CHECK(wide.back() == -99.0F);
      }
    }
  });
}

TEST_CASE_TEMPLATE("words: stores write their elements and nothing else", T, float, bf16, f16) {
  for_every_region([](auto region) {
    const int lanes = lane_count(region);
    std::vector<float> wide(static_cast<std::size_t>(lanes));
    for (int i = 0; i < lanes; ++i) wide[static_cast<std::size_t>(i)] = value_of<float>(i + 3);
    for (int n = -1; n <= lanes; ++n) {
      CAPTURE(n);
      const auto used = static_cast<std::size_t>(n < 0 ? lanes : n);
      guarded<T> at_end(used);
      narrow(region, wide.data(), n, at_end.data());
      for (std::size_t i = 0; i < used; ++i) CHECK(same_bytes(at_end[i], static_cast<T>(wide[i])));
      std::vector<T> around(static_cast<std::size_t>(lanes) + 8, static_cast<T>(123.0F));
      narrow(region, wide.data(), n, around.data() + 4);
      for (std::size_t i = 0; i < around.size(); ++i) {
        const bool ours = i >= 4 && i < 4 + used;
        CHECK(same_bytes(around[i], ours ? static_cast<T>(wide[i - 4]) : static_cast<T>(123.0F)));
      }
    }
  });
}

TEST_CASE_TEMPLATE("words: a narrowed float has the bits of the scalar conversion in every region", T, bf16,
                   f16) {
  const std::vector<float> values = edge_floats();
  for_every_region([&](auto region) {
    const int lanes = lane_count(region);
    CHECK(narrowing_faults<T>(values, lanes,
                              [&](const float* from, T* to) { narrow(region, from, -1, to); }) == 0);
    CHECK(narrowing_faults<T>(values, lanes, [&](const float* from, T* to) {
            narrow(region, from, lanes - 1, to);
            to[lanes - 1] = T(from[lanes - 1]);
          }) == 0);
    const auto cut_off = [&](const float* from, T* to) {
      for (int i = 0; i < lanes; ++i) to[i] = T(std::bit_cast<float>(bits(from[i]) & 0xffff0000U));
    };
    CHECK(narrowing_faults<T>(values, lanes, cut_off) > 0);
  });
}

TEST_CASE_TEMPLATE("words: every 16-bit pattern is widened as scalar code does it", T, bf16, f16) {
  std::vector<T> stored(0x10000);
  for (std::size_t i = 0; i < stored.size(); ++i) {
    stored[i] = T::from_bits(static_cast<std::uint16_t>(i));
  }
  for_every_region([&](auto region) {
    const int lanes = lane_count(region);
    std::vector<float> wide(stored.size());
    for (std::size_t i = 0; i < stored.size(); i += static_cast<std::size_t>(lanes)) {
      widen(region, stored.data() + i, -1, wide.data() + i);
    }
    int faults = 0;
    for (std::size_t i = 0; i < stored.size(); ++i) {
      faults += bits(wide[i]) != bits(static_cast<float>(stored[i]));
    }
    CHECK(faults == 0);
  });
}

TEST_CASE("words: arithmetic has the bits of scalar arithmetic") {
  std::mt19937_64 random(deeprec_test::seed());
  std::uniform_real_distribution<float> uniform(-4, 4);
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const float special[] = {0.0F,      -0.0F,  1.0F,  infinity,
                           -infinity, 1e-42F, 3e38F, std::numeric_limits<float>::quiet_NaN()};
  for_every_region([&](auto region) {
    const auto lanes = static_cast<std::size_t>(lane_count(region));
    constexpr bool fused = decltype(region)::which != isa::portable;
    int faults = 0;
    for (int trial = 0; trial < 500; ++trial) {
      std::vector<float> a(lanes), b(lanes), c(lanes), to(10 * lanes);
      for (std::size_t i = 0; i < lanes; ++i) {
        a[i] = random() % 8 == 0 ? special[random() % 8] : uniform(random);
        b[i] = random() % 8 == 0 ? special[random() % 8] : uniform(random);
        c[i] = uniform(random);
      }
      arithmetic(region, a.data(), b.data(), c.data(), to.data());
      for (std::size_t i = 0; i < lanes; ++i) {
        const volatile float product = a[i] * b[i];
        faults += !same(to[i], a[i] + b[i]);
        faults += !same(to[lanes + i], a[i] - b[i]);
        faults += !same(to[2 * lanes + i], product);
        faults += !same(to[3 * lanes + i], a[i] / b[i]);
        const bool once = same(to[4 * lanes + i], std::fma(a[i], b[i], c[i]));
        const bool twice = same(to[4 * lanes + i], product + c[i]);
        faults += fused ? !once : !once && !twice;
        if (!std::isnan(a[i]) && !std::isnan(b[i]) && a[i] != b[i]) {
          faults += to[5 * lanes + i] != std::max(a[i], b[i]);
        }
        faults += !same(to[6 * lanes + i], std::sqrt(a[i]));
        faults += bits(to[7 * lanes + i]) != 0;
        faults += !same(to[8 * lanes + i], a[0]);
        faults += !same(to[9 * lanes + i], b[0]);
      }
    }
    CHECK(faults == 0);
  });
}

TEST_CASE("words: lanes are added half to half") {
  std::mt19937_64 random(deeprec_test::seed());
  std::uniform_real_distribution<float> uniform(-1, 1);
  bool order_matters = false;
  for_every_region([&](auto region) {
    const auto lanes = static_cast<std::size_t>(lane_count(region));
    for (int trial = 0; trial < 100; ++trial) {
      std::vector<float> a(lanes);
      for (float& x : a) x = std::ldexp(uniform(random), static_cast<int>(random() % 20));
      std::vector<float> halves = a;
      for (std::size_t n = lanes / 2; n > 0; n /= 2) {
        for (std::size_t i = 0; i < n; ++i) halves[i] += halves[i + n];
      }
      float in_order = a[0];
      for (std::size_t i = 1; i < lanes; ++i) in_order += a[i];
      CHECK(bits(sum_of_lanes(region, a.data())) == bits(halves[0]));
      order_matters |= in_order != halves[0];
    }
  });
  CHECK(order_matters);
}

TEST_CASE_TEMPLATE("words: a row's last vector may overlap the one before", T, float, bf16, f16) {
  for_every_region([](auto region) {
    const int lanes = lane_count(region);
    for (int width = lanes; width <= 3 * lanes; ++width) {
      guarded<T> from(static_cast<std::size_t>(width));
      guarded<T> to(static_cast<std::size_t>(width));
      for (int i = 0; i < width; ++i) from[static_cast<std::size_t>(i)] = value_of<T>(i);
      copy_row(region, from.data(), width, to.data());
      CHECK(std::memcmp(from.data(), to.data(), from.size() * sizeof(T)) == 0);
    }
  });
}

TEST_CASE("words: the last lanes move to the front, and nothing else comes with them") {
  for_every_region([](auto region) {
    const int lanes = lane_count(region);
    std::vector<float> from(static_cast<std::size_t>(lanes)), to(from.size());
    for (int i = 0; i < lanes; ++i) from[static_cast<std::size_t>(i)] = value_of<float>(i + 1);
    for (int n = 0; n <= lanes; ++n) {
      move_to_front(region, from.data(), n, to.data());
      for (int i = 0; i < lanes; ++i) {
        const float expected = i < n ? from[static_cast<std::size_t>(lanes - n + i)] : 0.0F;
        CAPTURE(n);
        CAPTURE(i);
        CHECK(same(to[static_cast<std::size_t>(i)], expected));
      }
    }
  });
}

TEST_CASE("words: the first lanes are kept, and the others become +0, NaN and infinity too") {
  for_every_region([](auto region) {
    const int lanes = lane_count(region);
    const float inf = std::numeric_limits<float>::infinity();
    for (const float x : {1.5F, -0.0F, inf, -inf, std::numeric_limits<float>::quiet_NaN()}) {
      const std::vector<float> from(static_cast<std::size_t>(lanes), x);
      std::vector<float> to(from.size());
      for (int n = 0; n <= lanes; ++n) {
        keep_front(region, from.data(), n, to.data());
        for (int i = 0; i < lanes; ++i) {
          CAPTURE(n);
          CAPTURE(i);
          CHECK(same(to[static_cast<std::size_t>(i)], i < n ? x : 0.0F));
        }
      }
    }
  });
}
