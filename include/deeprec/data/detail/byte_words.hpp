// Operations on text, 64 bytes at a time.
//
//   load_block(p)                   64 bytes
//   equal_bits(block, c)            bit i: byte i is c
//   any_nul(block)                  true when one of them is NUL
//   count_bits(bits)                their number
//   write_places(bits, base, out)   base + the index of each set bit; returns their number
//
// SSE2 where the unit has it (every x86-64), else 64-bit words. There is one region only: AVX2 and AVX-512
// bodies were measured and gain nothing, since a parser spends its time on the fields.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include <deeprec/core/config.hpp>

#if defined(__SSE2__)
#  include <emmintrin.h>
#endif

#include <deeprec/simd/begin_portable.hpp>

struct byte_block {
#if defined(__SSE2__)
  __m128i v[4];
#else
  std::uint64_t v[8];
#endif
};

DEEPREC_INLINE byte_block load_block(const char* p) {
  byte_block block;
  std::memcpy(&block, p, 64);
  return block;
}

#if defined(__SSE2__)
DEEPREC_INLINE std::uint64_t equal_bits(const byte_block& block, char c) {
  const __m128i wanted = _mm_set1_epi8(c);
  std::uint64_t bits = 0;
  for (int i = 0; i < 4; ++i) {
    const int part = _mm_movemask_epi8(_mm_cmpeq_epi8(block.v[i], wanted));
    bits |= static_cast<std::uint64_t>(static_cast<unsigned>(part)) << (16 * i);
  }
  return bits;
}

DEEPREC_INLINE bool any_nul(const byte_block& block) {
  const __m128i least =
      _mm_min_epu8(_mm_min_epu8(block.v[0], block.v[1]), _mm_min_epu8(block.v[2], block.v[3]));
  return _mm_movemask_epi8(_mm_cmpeq_epi8(least, _mm_setzero_si128())) != 0;
}
#else
/// Bit i is set exactly when byte i is zero.
DEEPREC_INLINE std::uint64_t zero_bits(std::uint64_t word) {
  constexpr std::uint64_t low = 0x7f7f7f7f7f7f7f7f;
  const std::uint64_t tops = ~(((word & low) + low) | word) & ~low;
  if constexpr (std::endian::native == std::endian::big) {
    return (((__builtin_bswap64(tops) >> 7) * 0x0102040810204080U) >> 56) & 0xff;
  }
  return (((tops >> 7) * 0x0102040810204080U) >> 56) & 0xff;
}

DEEPREC_INLINE std::uint64_t equal_bits(const byte_block& block, char c) {
  const std::uint64_t wanted = 0x0101010101010101U * static_cast<unsigned char>(c);
  std::uint64_t bits = 0;
  for (int i = 0; i < 8; ++i) bits |= zero_bits(block.v[i] ^ wanted) << (8 * i);
  return bits;
}

DEEPREC_INLINE bool any_nul(const byte_block& block) { return equal_bits(block, '\0') != 0; }
#endif

/// std::popcount, which calls a function where the unit has no such instruction.
DEEPREC_INLINE int count_bits(std::uint64_t bits) {
  bits -= bits >> 1 & 0x5555555555555555;
  bits = (bits & 0x3333333333333333) + (bits >> 2 & 0x3333333333333333);
  return static_cast<int>(((bits + (bits >> 4)) & 0x0f0f0f0f0f0f0f0f) * 0x0101010101010101 >> 56);
}

/// Writes base + the index of each set bit, in order; returns their number, up to 64.
DEEPREC_INLINE int write_places(std::uint64_t bits, std::uint32_t base, std::uint32_t* out) {
  int count = 0;
  while (bits != 0) {
    out[count++] = base + static_cast<std::uint32_t>(std::countr_zero(bits));
    bits &= bits - 1;
  }
  return count;
}

#include <deeprec/simd/end_portable.hpp>
