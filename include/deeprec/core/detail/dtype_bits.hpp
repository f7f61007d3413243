// The bits of the storage types: conversions from and to float, to the nearest value, ties to even.
#pragma once

#include <cstdint>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

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

}}}  // namespace deeprec::DEEPREC_ABI::detail
