// Rounding of a float to 16 bits: to the nearest value, or up or down at random, without bias.
//
//   rounding::nearest        a bf16 weight loses every update of 2^-10 of it or less
//   rounding::stochastic     up with probability (x - below) / (above - below): right on average
//
//   word of (row, column) = counter_rng(seed).words(row, step << 32 | column / 64 * 16 + column % 16)
//                                            .w[column / 16 % 4]
//
// The words depend on seed, step, row and column only, so any number of threads, any ISA and the device round
// alike; sixteen adjacent columns are word 0 of sixteen blocks, which suits vectors of any width. Only the
// lower 32 bits of step are used. f32 is not rounded.
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/random.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace rounding {

struct nearest_t {};

/// To the nearest value, ties to even.
inline constexpr nearest_t nearest{};

/// Up or down at random, unbiased. Each table needs a seed of its own, and each update a new step, or their
/// roundings are correlated. An update of a feature_group rounds the rows of its table t by of_table(t).
struct stochastic {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;

  /// The 32 random bits of one element.
  [[nodiscard]] DEEPREC_HD constexpr std::uint32_t word(std::uint64_t row,
                                                        std::uint64_t column) const noexcept {
    return counter_rng(seed).words(row, (step << 32) + column / 64 * 16 + column % 16).w[column / 16 % 4];
  }

  /// The rounding of table t of several that share one: for t = 0 this one, for others with the seed
  /// counter_rng(seed).bits(2^64 - 1, t).
  [[nodiscard]] DEEPREC_HD constexpr stochastic of_table(std::uint64_t t) const noexcept {
    return {t == 0 ? seed : counter_rng(seed).bits(~std::uint64_t{0}, t), step};
  }
};

}  // namespace rounding

template <class R>
concept RoundingPolicy = std::same_as<R, rounding::nearest_t> || std::same_as<R, rounding::stochastic>;

namespace detail {

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

}  // namespace detail

}}  // namespace deeprec::DEEPREC_ABI
