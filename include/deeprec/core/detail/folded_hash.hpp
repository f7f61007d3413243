// Folded 128-bit products, and the hash of a byte string by them from any state and with any keys.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

__extension__ using uint128 = unsigned __int128;  // quiet with -Wpedantic

/// XOR of the two halves of a 128-bit product.
DEEPREC_HD constexpr std::uint64_t fold_multiply(std::uint64_t a, std::uint64_t b) noexcept {
  const auto product = static_cast<uint128>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

inline std::uint64_t read_u64(const char* p) noexcept {
  std::uint64_t value;
  std::memcpy(&value, p, 8);
  if constexpr (std::endian::native == std::endian::big) value = __builtin_bswap64(value);
  return value;
}

inline std::uint64_t read_u32(const char* p) noexcept {
  std::uint32_t value;
  std::memcpy(&value, p, 4);
  if constexpr (std::endian::native == std::endian::big) value = __builtin_bswap32(value);
  return value;
}

// Odd 64-bit constants with balanced bits (fractions of pi).
inline constexpr std::uint64_t hash_key[4] = {0x243f6a8885a308d3, 0x13198a2e03707345, 0xa4093822299f31d1,
                                              0x082efa98ec4e6c89};

/// hash_bytes with a given initial state and keys. Where the keys are known, blocks can be chosen that lead
/// to the same state from every earlier one.
inline std::uint64_t hash_bytes_with(std::string_view text, std::uint64_t state,
                                     const std::uint64_t (&key)[4]) noexcept {
  const char* p = text.data();
  const std::size_t size = text.size();
  std::uint64_t a = 0;
  std::uint64_t b = 0;
  if (size >= 8) {
    std::size_t left = size;
    for (; left > 16; left -= 16, p += 16) {
      state = fold_multiply(read_u64(p) ^ key[1], read_u64(p + 8) ^ state);
    }
    const char* end = text.data() + size;
    a = left >= 8 ? read_u64(p) : read_u64(end - 16);
    b = read_u64(end - 8);
  } else if (size >= 4) {
    a = read_u32(p);
    b = read_u32(p + size - 4);
  } else if (size > 0) {
    a = static_cast<unsigned char>(p[0]) |
        static_cast<std::uint64_t>(static_cast<unsigned char>(p[size / 2])) << 8 |
        static_cast<std::uint64_t>(static_cast<unsigned char>(p[size - 1])) << 16;
  }
  return fold_multiply(key[2] ^ size, fold_multiply(a ^ key[1], b ^ state) ^ key[3]);
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
