// float to bf16 for every float there is: the scalar conversion and the words of every region. With
// sanitizers, unoptimised or under an emulator a seeded part of them.

#include <deeprec/simd/vectors.hpp>

#include "support/sanitizers.hpp"
#include "support/seed.hpp"
#include "support/with_isa.hpp"

#include <doctest/doctest.h>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <string>
#include <thread>

// clang-format off: the order of these is what they mean
#include <deeprec/simd/begin_portable.hpp>
#include "conversions_kernels.inl"
#include <deeprec/simd/end_portable.hpp>

#if DEEPREC_X86
#include <deeprec/simd/begin_avx2.hpp>
#include "conversions_kernels.inl"
#include <deeprec/simd/end_avx2.hpp>

#include <deeprec/simd/begin_avx512.hpp>
#include "conversions_kernels.inl"
#include <deeprec/simd/end_avx512.hpp>

#include <deeprec/simd/begin_avx512_bf16.hpp>
#include "conversions_kernels.inl"
#include <deeprec/simd/end_avx512_bf16.hpp>
#endif
// clang-format on

using namespace deeprec;
using deeprec_test::with_isa;

namespace {

// Where all of them take seconds: optimised, on the machine itself, without a sanitizer.
#if !defined(__OPTIMIZE__) || !DEEPREC_X86 || DEEPREC_TEST_SANITIZED
constexpr bool all_of_them = false;
#elif !defined(__has_feature)
constexpr bool all_of_them = true;
#elif __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool all_of_them = false;
#else
constexpr bool all_of_them = true;
#endif

constexpr std::uint32_t block = 1024;
using floats = std::array<float, block>;
using narrowed = std::array<std::uint16_t, block>;

/// Whether floats with the upper half `high` and the lower halves [low, low + block) go wrong. The oracle is
/// the definition by cases, with no carry: below the middle stay, above it go up, at it to the even one.
template <class Narrow>
std::uint64_t faults_in(std::uint32_t high, std::uint32_t low, Narrow& narrow) {
  floats from;
  narrowed to;
  for (std::uint32_t i = 0; i < block; ++i) from[i] = std::bit_cast<float>(high << 16 | (low + i));
  narrow(from, to);
  const bool exponent_full = (high & 0x7f80) == 0x7f80;
  const bool nan_by_high = exponent_full && (high & 0x7f) != 0;
  const auto expected = [&](std::uint32_t rest) {
    const bool nan = nan_by_high || (exponent_full && rest != 0);
    const bool rises = rest > 0x8000 || (rest == 0x8000 && high % 2 == 1);
    return static_cast<std::uint16_t>(nan ? high | 0x40 : rises ? high + 1 : high);
  };
  // Only the first of a block may differ from the others: 0 (infinity among NaN) and the middle.
  static_assert(0x8000 % block == 0);
  const std::uint16_t others = expected(low + 1);
  std::uint16_t different = 0;
  for (std::uint32_t i = 1; i < block; ++i) different |= static_cast<std::uint16_t>(to[i] ^ others);
  return (to[0] != expected(low) ? 1 : 0) + (different != 0 ? 1 : 0);
}

/// Over all floats, on two threads; or over some blocks of every upper half.
template <class Narrow>
std::uint64_t faults(Narrow narrow) {
  std::atomic<std::uint64_t> wrong{0};
  const auto part = [&](std::uint32_t begin, std::uint32_t end) {
    std::uint64_t here = 0;
    for (std::uint32_t high = begin; high < end; ++high) {
      if constexpr (all_of_them) {
        for (std::uint32_t low = 0; low < 0x10000; low += block) here += faults_in(high, low, narrow);
      } else {
        const auto some = static_cast<std::uint32_t>((deeprec_test::seed() + high * 2654435761U) >> 7);
        if (high % 16 != some % 16) continue;
        for (const std::uint32_t low : {0U, 0x7c00U, 0x8000U, some % 64 * block}) {
          here += faults_in(high, low, narrow);
        }
      }
    }
    wrong += here;
  };
  std::thread other(part, 0x8000U, 0x10000U);
  part(0, 0x8000);
  other.join();
  return wrong;
}

}  // namespace

TEST_CASE("conversions: every float becomes the bf16 nearest to it, in scalar code") {
  CHECK(faults([](const floats& from, narrowed& to) {
          for (std::uint32_t i = 0; i < block; ++i) to[i] = bf16(from[i]).bits;
        }) == 0);
}

TEST_CASE("conversions: every float becomes the bf16 nearest to it, in every region") {
  for (const isa which : every_isa) {
    if (which > best_isa()) continue;
    CAPTURE(std::string(to_string(which)));
    CHECK(faults([which](const floats& from, narrowed& to) {
            with_isa(which, [&](auto region) { narrow_block(region, from.data(), to.data(), block); });
          }) == 0);
  }
}

TEST_CASE("conversions: half up, cut off, and a NaN that carries into infinity are caught") {
  const auto broken = [](auto convert) {
    auto narrow = [&](const floats& from, narrowed& to) {
      for (std::uint32_t i = 0; i < block; ++i) to[i] = convert(std::bit_cast<std::uint32_t>(from[i]));
    };
    std::uint64_t wrong = 0;
    for (const std::uint32_t high : {0x3f80U, 0x3f81U, 0x7f80U, 0x7fffU, 0xffffU}) {
      for (std::uint32_t low = 0; low < 0x10000; low += block) wrong += faults_in(high, low, narrow);
    }
    return wrong;
  };
  const auto right = [](std::uint32_t bits) { return bf16(std::bit_cast<float>(bits)).bits; };
  CHECK(broken(right) == 0);
  CHECK(broken([](std::uint32_t bits) { return static_cast<std::uint16_t>(bits >> 16); }) > 0);
  CHECK(broken([&](std::uint32_t bits) {
          const bool nan = (bits & 0x7fffffffU) > 0x7f800000U;
          return nan ? right(bits) : static_cast<std::uint16_t>((bits + 0x8000U) >> 16);
        }) > 0);
  CHECK(broken([](std::uint32_t bits) {
          return static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
        }) > 0);
}
