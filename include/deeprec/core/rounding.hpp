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

#include <deeprec/core/config.hpp>
#include <deeprec/core/detail/random_rounding.hpp>
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

}}  // namespace deeprec::DEEPREC_ABI
