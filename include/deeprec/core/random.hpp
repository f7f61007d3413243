// Counter-based random numbers: number i of stream k is a function of (k, i), so any thread can make
// any of them, in any order, with the same bits.
//
//   seed, stream ─┐
//   counter ──────┴─> philox ─> 4 x 32 random bits ─> uniform, normal
//
// Not here: a stateful engine. Same bits on host and device, except normal() (its logarithm and
// cosine come from the platform).
#pragma once

#include <cmath>
#include <cstdint>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Four random words, w[0] first.
struct random_words {
  std::uint32_t w[4];
};

/// 128 random bits for (key, counter).
///
/// @cost    ten rounds of two 32-bit multiplications: about 10 ns
/// @threads reentrant
/// @error   none
/// @source  Philox4x32-10 (Salmon, Moraes, Dror, Shaw, SC'11)
DEEPREC_HD constexpr random_words philox(std::uint64_t key, random_words counter) noexcept {
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round, k0 += 0x9e3779b9, k1 += 0xbb67ae85) {
    const std::uint64_t p0 = std::uint64_t{0xd2511f53} * counter.w[0];
    const std::uint64_t p1 = std::uint64_t{0xcd9e8d57} * counter.w[2];
    counter = {{static_cast<std::uint32_t>(p1 >> 32) ^ counter.w[1] ^ k0, static_cast<std::uint32_t>(p1),
                static_cast<std::uint32_t>(p0 >> 32) ^ counter.w[3] ^ k1, static_cast<std::uint32_t>(p0)}};
  }
  return counter;
}

/// A seeded family of random streams. Stateless: every member is a pure function of its arguments.
///
/// @cost    one philox() per call
/// @threads reentrant
/// @error   none
class counter_rng {
 public:
  DEEPREC_HD constexpr explicit counter_rng(std::uint64_t seed) noexcept : seed_(seed) {}

  /// Four 32-bit words: block `block` of the stream `stream`.
  [[nodiscard]] DEEPREC_HD constexpr random_words words(std::uint64_t stream,
                                                        std::uint64_t block) const noexcept {
    return philox(seed_, {{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                           static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)}});
  }
  [[nodiscard]] DEEPREC_HD constexpr std::uint64_t bits(std::uint64_t stream,
                                                        std::uint64_t i) const noexcept {
    const random_words r = words(stream, i);
    return (std::uint64_t{r.w[1]} << 32) | r.w[0];
  }
  /// Uniform in [0, 1), 53 bits.
  [[nodiscard]] DEEPREC_HD constexpr double uniform(std::uint64_t stream, std::uint64_t i) const noexcept {
    return static_cast<double>(bits(stream, i) >> 11) * 0x1p-53;
  }
  /// Standard normal, by Box and Muller.
  [[nodiscard]] DEEPREC_HD double normal(std::uint64_t stream, std::uint64_t i) const noexcept {
    const random_words r = words(stream, i);
    const double u = (static_cast<double>(r.w[0]) + 0.5) * 0x1p-32;
    const double v = static_cast<double>(r.w[1]) * 0x1p-32;
    return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v);
  }
  /// Float in [0, 1) from a 32-bit word, 24 bits.
  [[nodiscard]] DEEPREC_HD static constexpr float to_unit(std::uint32_t word) noexcept {
    return static_cast<float>(word >> 8) * 0x1p-24F;
  }

 private:
  std::uint64_t seed_;
};

}}  // namespace deeprec::DEEPREC_ABI
