// bf16 and f16 against rounding done slowly in double, and against Eigen's types.

#include <deeprec/core/dtypes.hpp>

#include <doctest/doctest.h>
#include <Eigen/Core>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

using namespace deeprec;

namespace {

struct format {
  int fraction_bits;
  int lowest_exponent;   // of a normal number
  int highest_exponent;  // beyond is infinity
};
constexpr format bf16_format{7, -126, 127};
constexpr format f16_format{10, -14, 15};

// The bits of the value nearest to x, ties to even; x is no NaN.
std::uint16_t nearest_bits(double x, const format& f) {
  const int bias = f.highest_exponent;
  const auto sign = static_cast<std::uint16_t>(std::signbit(x) ? 0x8000 : 0);
  const auto infinite = static_cast<std::uint16_t>((2 * bias + 1) << f.fraction_bits);
  x = std::fabs(x);
  if (std::isinf(x)) return static_cast<std::uint16_t>(sign | infinite);
  if (x == 0) return sign;
  const int exponent = std::max(std::ilogb(x), f.lowest_exponent);
  double steps = std::nearbyint(std::ldexp(x, f.fraction_bits - exponent));  // exact but for rounding
  const double next = std::ldexp(1.0, f.fraction_bits + 1);
  int rounded_exponent = exponent;
  if (steps >= next) {
    steps /= 2;
    ++rounded_exponent;
  }
  if (rounded_exponent > f.highest_exponent) return static_cast<std::uint16_t>(sign | infinite);
  const auto fraction = static_cast<int>(steps);
  const int one = 1 << f.fraction_bits;
  const int bits = fraction < one ? fraction  // denormal
                                  : ((rounded_exponent + bias) << f.fraction_bits) + fraction - one;
  return static_cast<std::uint16_t>(sign | bits);
}

double slow_value(std::uint16_t bits, const format& f) {
  const int fraction = bits & ((1 << f.fraction_bits) - 1);
  const int exponent = (bits & 0x7fff) >> f.fraction_bits;
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == 2 * f.highest_exponent + 1) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(fraction, f.lowest_exponent - f.fraction_bits);
  return sign *
         std::ldexp(fraction + (1 << f.fraction_bits), exponent - f.highest_exponent - f.fraction_bits);
}

constexpr std::uint32_t edges[] = {0,      1,      0x0fff, 0x1000, 0x1001, 0x2000, 0x3000,
                                   0x7fff, 0x8000, 0x8001, 0xefff, 0xf000, 0xffff};

// How many of the floats whose lower half is an edge are converted otherwise than by `expected`.
template <class Convert, class Expected>
int faults(Convert convert, Expected expected) {
  int count = 0;
  for (std::uint32_t high = 0; high < 0x10000; ++high) {
    for (const std::uint32_t low : edges) {
      const auto x = std::bit_cast<float>(high << 16 | low);
      if (!std::isnan(x) && convert(x) != expected(x)) ++count;
    }
  }
  return count;
}

template <class T>
bool is_nan(T x) {
  return std::isnan(static_cast<float>(x));
}

}  // namespace

TEST_CASE("dtypes: a float becomes the nearest bf16, ties to even") {
  const auto expected = [](float x) { return nearest_bits(x, bf16_format); };
  CHECK(faults([](float x) { return bf16(x).bits; }, expected) == 0);
  CHECK(faults([](float x) { return std::bit_cast<std::uint16_t>(Eigen::bfloat16(x)); }, expected) == 0);
  const auto truncated = [](float x) {
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);
  };
  CHECK(faults(truncated, expected) > 0);
}

TEST_CASE("dtypes: a float becomes the nearest f16, ties to even, with denormals and overflow") {
  const auto expected = [](float x) { return nearest_bits(x, f16_format); };
  CHECK(faults([](float x) { return f16(x).bits; }, expected) == 0);
  CHECK(faults([](float x) { return std::bit_cast<std::uint16_t>(Eigen::half(x)); }, expected) == 0);
  const auto flushed = [](float x) { return f16(std::fabs(x) < 0x1p-14F ? std::copysign(0.0F, x) : x).bits; };
  CHECK(faults(flushed, expected) > 0);
}

TEST_CASE("dtypes: rounding of f16 around its ends") {
  CHECK(f16(65504.0F).bits == 0x7bff);
  CHECK(f16(65519.996F).bits == 0x7bff);
  CHECK(f16(65520.0F).bits == 0x7c00);
  CHECK(f16(-1e30F).bits == 0xfc00);
  CHECK(f16(0x1p-14F).bits == 0x0400);
  CHECK(f16(0x1p-24F).bits == 0x0001);
  CHECK(f16(0x1p-25F).bits == 0x0000);
  CHECK(f16(std::nextafter(0x1p-25F, 1.0F)).bits == 0x0001);
  CHECK(f16(-0.0F).bits == 0x8000);
  CHECK(bf16(3.4028235e38F).bits == 0x7f80);
  CHECK(bf16(std::numeric_limits<float>::denorm_min()).bits == 0);
  CHECK(bf16(-0.0F).bits == 0x8000);
}

TEST_CASE("dtypes: every 16-bit pattern has the value that IEEE gives it, and comes back") {
  int wrong = 0;
  for (std::uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    const auto bits = static_cast<std::uint16_t>(pattern);
    const auto b = bf16::from_bits(bits);
    const auto h = f16::from_bits(bits);
    const double brain = slow_value(bits, bf16_format);
    const double half = slow_value(bits, f16_format);
    if (std::isnan(brain)) {
      wrong += !is_nan(b) + !is_nan(bf16(static_cast<float>(b)));
    } else {
      wrong += static_cast<double>(static_cast<float>(b)) != brain;
      wrong += bf16(static_cast<float>(b)).bits != bits;
      wrong += std::bit_cast<std::uint32_t>(static_cast<float>(std::bit_cast<Eigen::bfloat16>(bits))) !=
               std::bit_cast<std::uint32_t>(static_cast<float>(b));
    }
    if (std::isnan(half)) {
      wrong += !is_nan(h) + !is_nan(f16(static_cast<float>(h)));
    } else {
      wrong += static_cast<double>(static_cast<float>(h)) != half;
      wrong += f16(static_cast<float>(h)).bits != bits;
      wrong += std::bit_cast<std::uint32_t>(static_cast<float>(std::bit_cast<Eigen::half>(bits))) !=
               std::bit_cast<std::uint32_t>(static_cast<float>(h));
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("dtypes: a NaN stays a quiet NaN with its sign and the top of its payload") {
  int wrong = 0;
  for (std::uint32_t sign = 0; sign < 2; ++sign) {
    for (std::uint32_t high = 0x7f80; high < 0x8000; ++high) {
      for (const std::uint32_t low : edges) {
        const std::uint32_t pattern = sign << 31 | high << 16 | low;
        if ((pattern & 0x7fffff) == 0) continue;
        const auto x = std::bit_cast<float>(pattern);
        const std::uint32_t s = sign << 15;
        wrong += bf16(x).bits != (s | (high & 0x7fff) | 0x40);
        wrong += f16(x).bits != (s | 0x7e00 | (pattern >> 13 & 0x3ff));
      }
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("dtypes: values are made at compile time, and may stand for foreign ones in memory") {
  static_assert(bf16(1.0F).bits == 0x3f80 && f16(1.0F).bits == 0x3c00);
  static_assert(static_cast<float>(f16::from_bits(1)) == 0x1p-24F);
  static_assert(bf16{}.bits == 0 && f16{}.bits == 0);
  static_assert(std::is_trivially_copyable_v<bf16> && std::is_trivially_copyable_v<f16>);
  static_assert(sizeof(bf16) == sizeof(Eigen::bfloat16) && alignof(bf16) == alignof(Eigen::bfloat16));
  static_assert(!std::is_convertible_v<float, bf16> && !std::is_convertible_v<float, f16>);
  static_assert(std::is_same_v<detail::accumulate_t<bf16>, float> &&
                std::is_same_v<detail::accumulate_t<f16>, float>);
  static_assert(Storage<float> && Storage<double> && Storage<bf16> && !Storage<int>);
  static_assert(IdInteger<std::int32_t> && IdInteger<std::uint64_t> && !IdInteger<short> &&
                !IdInteger<float>);
  CHECK(detail::accumulate<bf16>::unit_roundoff == std::ldexp(1.0, -24));
}
