// A float as a value of 16 bits, rounded up or down by 32 random bits (rounding::stochastic).
#pragma once

#include <cstdint>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Rounds up with a probability of exactly c / 2^16, c being the 16 bits cut off.
DEEPREC_HD constexpr std::uint16_t bf16_bits_at_random(float value, std::uint32_t word) noexcept {
  const auto bits = bit_cast_to<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude >= 0x7f800000U) return bf16_bits(value);
  const std::uint32_t rounded = (magnitude + (word >> 16)) >> 16;
  return static_cast<std::uint16_t>(((bits >> 16) & 0x8000U) | (rounded < 0x7f80U ? rounded : 0x7f7fU));
}

/// Rounds up when the upper 31 bits of the word, as a fraction, are below the part cut off.
DEEPREC_HD constexpr std::uint16_t f16_bits_at_random(float value, std::uint32_t word) noexcept {
  const auto bits = bit_cast_to<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude >= 0x47800000U) return f16_bits(value);  // 65536 and more, and NaN
  std::uint32_t below = 0;
  std::uint32_t cut = 0;  // the fraction, times 2^31
  if (magnitude >= 0x38800000U) {
    below = (magnitude - 0x38000000U) >> 13;
    cut = (magnitude & 0x1fffU) << 18;
  } else {  // a denormal half: multiples of 2^-24
    const float units = bit_cast_to<float>(magnitude) * 0x1p24F;
    below = static_cast<std::uint32_t>(units);
    cut = static_cast<std::uint32_t>((units - static_cast<float>(below)) * 0x1p31F);
  }
  const bool up = (word >> 1) < cut && below != 0x7bffU;
  return static_cast<std::uint16_t>(sign | (below + (up ? 1U : 0U)));
}

/// The value as a T, rounded up or down by 32 random bits.
///
/// @dtype    T: float, which is returned as it is · bf16 · f16
/// @numerics a value of T is unchanged; the mean over all words is the value itself (bf16: exactly; f16:
///           within 2^-31 of the spacing). Between the largest finite T and the next power of two the result
///           is the largest finite T; above that, f16 overflows to infinity as in
///           rounding::nearest; NaN stays NaN
/// @cost     O(1)
/// @threads  reentrant
/// @error    none
template <Storage T>
DEEPREC_HD constexpr T round_with(float value, [[maybe_unused]] std::uint32_t word) noexcept {
  if constexpr (std::is_same_v<T, bf16>) {
    return bf16::from_bits(detail::bf16_bits_at_random(value, word));
  } else if constexpr (std::is_same_v<T, f16>) {
    return f16::from_bits(detail::f16_bits_at_random(value, word));
  } else {
    return static_cast<T>(value);
  }
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
