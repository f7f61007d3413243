// 64-bit hashes for tokens and ids, and the map from a hash to a table row.
//
//   token ──hash_bytes(seed)──> 64 bits ──bucket──> [0, rows)
//
// Not cryptographic. The values are part of saved models: they never change within a major version
// and are the same on every machine. Not here: hashes of hash tables in memory, whose seed is secret
// (support/key_hash.hpp).
#pragma once

#include <cstdint>
#include <string_view>

#include <deeprec/core/config.hpp>
#include <deeprec/core/detail/folded_hash.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Mixes all 64 bits of a number: a bijection with full avalanche.
///
/// @cost   two multiplications
/// @threads reentrant
/// @error  none
/// @source the finaliser of splitmix64 (Steele, Lea, Flood 2014)
DEEPREC_HD constexpr std::uint64_t mix64(std::uint64_t x) noexcept {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9;
  x ^= x >> 27;
  x *= 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

namespace detail {

/// Initial state of hash_bytes for a seed, which is mixed over all bits: if seeds were added unmixed, a token
/// with seed 0 would collide with a token that differs in one bit, with seed 1.
constexpr std::uint64_t hash_start(std::uint64_t seed) noexcept { return mix64(seed) ^ hash_key[0]; }

}  // namespace detail

/// Hash of a byte string. Different seeds give independent functions: use the feature as the seed.
///
/// @cost    a few ns up to 16 bytes, then about 8 bytes per ns; reads exactly the string's bytes
/// @threads reentrant
/// @error   none
/// @source  folded 128-bit multiplication, as in wyhash (Wang Yi 2019)
inline std::uint64_t hash_bytes(std::string_view text, std::uint64_t seed = 0) noexcept {
  return detail::hash_bytes_with(text, detail::hash_start(seed), detail::hash_key);
}

/// Row of a 64-bit hash in a table of `rows` rows: the hash as a fraction of 2^64, times rows.
///
/// @pre     rows > 0
/// @cost    one multiplication
/// @threads reentrant
/// @error   none
/// @source  multiply-shift range reduction (Lemire 2019)
DEEPREC_HD constexpr index_t hash_bucket(std::uint64_t hash, index_t rows) noexcept {
  return static_cast<index_t>((static_cast<detail::uint128>(hash) * static_cast<detail::uint128>(rows)) >>
                              64);
}

}}  // namespace deeprec::DEEPREC_ABI
