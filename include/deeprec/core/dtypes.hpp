// Storage types of 16 and 8 bits, and the accumulator type of every storage type.
//
//   storage   accumulator   unit roundoff of the sum     range
//   double    double        2^-53                        that of IEEE 754
//   float     float         2^-24
//   f16       float         2^-24 (storage: 2^-11)       +-65504, denormals kept
//   bf16      float         2^-24 (storage: 2^-8)        that of float
//   e4m3      float         2^-24 (storage: 2^-4)        +-448, no infinity: beyond is NaN
//   e5m2      float         2^-24 (storage: 2^-3)        +-57344, infinity
//
// All are bit-compatible with Eigen's, CUDA's and PyTorch's types (e4m3 with float8_e4m3fn). They only store
// values; all arithmetic is in accumulate_t<T>. Not here: tf32, which is a math mode of GEMM.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The type of every size, row number and stride.
using index_t = std::int64_t;

namespace detail {

/// std::bit_cast, callable in device code as well.
template <class To, class From>
DEEPREC_HD constexpr To bit_cast_to(From value) noexcept {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, value);
}

/// float to bf16, round to nearest even; a NaN stays a NaN (quiet, sign and payload's top bits kept).
DEEPREC_HD constexpr std::uint16_t bf16_bits(float value) noexcept {
  const auto bits = bit_cast_to<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

/// float to IEEE half, round to nearest even, overflow to infinity, NaN stays NaN.
DEEPREC_HD constexpr std::uint16_t f16_bits(float value) noexcept {
  const auto bits = bit_cast_to<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) {
    return static_cast<std::uint16_t>(sign | 0x7e00U | ((magnitude >> 13) & 0x3ffU));
  }
#if defined(DEEPREC_PTX)
  if (!__builtin_is_constant_evaluated()) {  // one instruction, but for NaNs
    std::uint16_t half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
  }
#endif
  if (magnitude >= 0x477ff000U) return static_cast<std::uint16_t>(sign | 0x7c00U);
  if (magnitude < 0x38800000U) {  // a denormal half or zero: let float addition do the rounding
    const float shifted = bit_cast_to<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (bit_cast_to<std::uint32_t>(shifted) - 0x3f000000U));
  }
  const std::uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U) - 0x38000000U;
  return static_cast<std::uint16_t>(sign | (rounded >> 13));
}

DEEPREC_HD constexpr float f16_value(std::uint16_t half) noexcept {
#if defined(DEEPREC_PTX)
  if (!__builtin_is_constant_evaluated()) {  // one instruction; the payload of a NaN is the device's
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
  }
#endif
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fU;
  const std::uint32_t mantissa = half & 0x3ffU;
  if (exponent == 0x1fU) {  // a signalling NaN becomes quiet, as in hardware
    const std::uint32_t quiet = mantissa != 0 ? 0x00400000U : 0U;
    return bit_cast_to<float>(sign | 0x7f800000U | quiet | (mantissa << 13));
  }
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return bit_cast_to<float>(sign | bit_cast_to<std::uint32_t>(magnitude));
  }
  return bit_cast_to<float>(sign | ((exponent + 112U) << 23) | (mantissa << 13));
}

/// float to OCP E4M3, round to nearest even; there is no infinity: NaN and values beyond 464 become NaN.
DEEPREC_HD constexpr std::uint8_t e4m3_bits(float value) noexcept {
  const auto bits = bit_cast_to<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 24) & 0x80U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x43e80000U) return static_cast<std::uint8_t>(sign | 0x7fU);
  if (magnitude < 0x3c800000U) {  // a denormal or zero: let float addition do the rounding
    const float shifted = bit_cast_to<float>(magnitude) + 16384.0F;
    return static_cast<std::uint8_t>(sign | (bit_cast_to<std::uint32_t>(shifted) - 0x46800000U));
  }
  const std::uint32_t rounded = magnitude + 0x7ffffU + ((magnitude >> 20) & 1U) - 0x3c000000U;
  return static_cast<std::uint8_t>(sign | (rounded >> 20));
}

/// float to OCP E5M2, round to nearest even, overflow to infinity, NaN stays NaN.
DEEPREC_HD constexpr std::uint8_t e5m2_bits(float value) noexcept {
  const auto bits = bit_cast_to<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 24) & 0x80U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return static_cast<std::uint8_t>(sign | 0x7fU);
  if (magnitude >= 0x47700000U) return static_cast<std::uint8_t>(sign | 0x7cU);
  if (magnitude < 0x38800000U) {
    const float shifted = bit_cast_to<float>(magnitude) + 128.0F;
    return static_cast<std::uint8_t>(sign | (bit_cast_to<std::uint32_t>(shifted) - 0x43000000U));
  }
  const std::uint32_t rounded = magnitude + 0xfffffU + ((magnitude >> 21) & 1U) - 0x38000000U;
  return static_cast<std::uint8_t>(sign | (rounded >> 21));
}

/// An E4M3 has one exponent bit less than a half: its bits, shifted by 7, are a half of 2^-8 times its value.
DEEPREC_HD constexpr float e4m3_value(std::uint8_t bits) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x80U) << 24;
  if ((bits & 0x7fU) == 0x7fU) return bit_cast_to<float>(sign | 0x7ff00000U);
  const float magnitude = f16_value(static_cast<std::uint16_t>((bits & 0x7fU) << 7)) * 256.0F;
  return bit_cast_to<float>(sign | bit_cast_to<std::uint32_t>(magnitude));
}

/// An E5M2 is the upper half of a half.
DEEPREC_HD constexpr float e5m2_value(std::uint8_t bits) noexcept {
  return f16_value(static_cast<std::uint16_t>(bits << 8));
}

/// True for a number that is neither NaN nor infinite. Tests the bits, so -ffast-math can't remove the test.
DEEPREC_HD constexpr bool is_finite(float x) noexcept {
  return (bit_cast_to<std::uint32_t>(x) & 0x7f800000U) != 0x7f800000U;
}

}  // namespace detail

/// bfloat16: the upper half of a float.
struct DEEPREC_MAY_ALIAS bf16 {
  std::uint16_t bits = 0;

  bf16() = default;
  /// Rounds to nearest even; NaN stays NaN.
  DEEPREC_HD constexpr explicit bf16(float value) noexcept : bits(detail::bf16_bits(value)) {}
  DEEPREC_HD constexpr operator float() const noexcept {
    return detail::bit_cast_to<float>(static_cast<std::uint32_t>(bits) << 16);
  }
  DEEPREC_HD static constexpr bf16 from_bits(std::uint16_t bits) noexcept {
    bf16 value;
    value.bits = bits;
    return value;
  }
};

/// IEEE 754 binary16.
struct DEEPREC_MAY_ALIAS f16 {
  std::uint16_t bits = 0;

  f16() = default;
  /// Rounds to nearest even; too large becomes infinity; NaN stays NaN.
  DEEPREC_HD constexpr explicit f16(float value) noexcept : bits(detail::f16_bits(value)) {}
  DEEPREC_HD constexpr operator float() const noexcept { return detail::f16_value(bits); }
  DEEPREC_HD static constexpr f16 from_bits(std::uint16_t bits) noexcept {
    f16 value;
    value.bits = bits;
    return value;
  }
};

/// OCP FP8 E4M3 (float8_e4m3fn): finite up to 448, no infinity, one NaN of each sign.
struct DEEPREC_MAY_ALIAS e4m3 {
  std::uint8_t bits = 0;

  e4m3() = default;
  /// Rounds to nearest even; beyond 464, infinity too, becomes NaN; NaN stays NaN.
  DEEPREC_HD constexpr explicit e4m3(float value) noexcept : bits(detail::e4m3_bits(value)) {}
  DEEPREC_HD constexpr operator float() const noexcept { return detail::e4m3_value(bits); }
  DEEPREC_HD static constexpr e4m3 from_bits(std::uint8_t bits) noexcept {
    e4m3 value;
    value.bits = bits;
    return value;
  }
};

/// OCP FP8 E5M2 (float8_e5m2): finite up to 57344, with infinity and NaN as in IEEE 754.
struct DEEPREC_MAY_ALIAS e5m2 {
  std::uint8_t bits = 0;

  e5m2() = default;
  /// Rounds to nearest even; too large becomes infinity; NaN stays NaN.
  DEEPREC_HD constexpr explicit e5m2(float value) noexcept : bits(detail::e5m2_bits(value)) {}
  DEEPREC_HD constexpr operator float() const noexcept { return detail::e5m2_value(bits); }
  DEEPREC_HD static constexpr e5m2 from_bits(std::uint8_t bits) noexcept {
    e5m2 value;
    value.bits = bits;
    return value;
  }
};

static_assert(sizeof(bf16) == 2 && sizeof(f16) == 2 && sizeof(e4m3) == 1 && sizeof(e5m2) == 1);

namespace detail {

template <class T>
struct accumulate;

template <>
struct accumulate<double> {
  using type = double;
  static constexpr double unit_roundoff = 0x1p-53;
};

template <>
struct accumulate<float> {
  using type = float;
  static constexpr double unit_roundoff = 0x1p-24;
};

template <>
struct accumulate<bf16> : accumulate<float> {};

template <>
struct accumulate<f16> : accumulate<float> {};

template <>
struct accumulate<e4m3> : accumulate<float> {};

template <>
struct accumulate<e5m2> : accumulate<float> {};

/// The type in which values of the storage type T are summed.
template <class T>
using accumulate_t = typename accumulate<T>::type;

}  // namespace detail

template <class T>
concept Storage = requires { typename detail::accumulate<T>::type; };

/// Ids and offsets: 32 or 64 bits.
template <class T>
concept IdInteger = std::integral<T> && (sizeof(T) == 4 || sizeof(T) == 8);

/// Ids of a batch of bags: integers, or a trivially copyable class whose number id_value(id) returns (found
/// by argument-dependent lookup), such as a key with a type of its own.
template <class T>
concept BagId = IdInteger<T> || (std::is_class_v<T> && std::is_trivially_copyable_v<T> &&
                                 requires(const T& id) { requires IdInteger<decltype(id_value(id))>; });

namespace detail {

/// The number of an id; the one place where the library reads an id of a class type.
template <BagId Id>
DEEPREC_HD constexpr auto id_number(const Id& id) noexcept {
  if constexpr (std::integral<Id>) {
    return id;
  } else {
    return id_value(id);
  }
}

}  // namespace detail

}}  // namespace deeprec::DEEPREC_ABI
