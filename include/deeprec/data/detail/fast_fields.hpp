// Fields in their usual form, without a loop: an integer of at most eight digits, a token of eight bytes.
#pragma once

#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/core/hash.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// hash_bytes(token, seed) for a token of eight bytes; start: hash_start(seed).
DEEPREC_INLINE std::uint64_t hash_of_eight(std::uint64_t start, std::uint64_t token) noexcept {
  const std::uint64_t inner = fold_multiply(token ^ hash_key[1], token ^ start);
  return fold_multiply(hash_key[2] ^ 8, inner ^ hash_key[3]);
}

}}}  // namespace deeprec::DEEPREC_ABI::detail

#include <deeprec/simd/begin_portable.hpp>

/// The number of a field of at most eight digits, or of a sign and at most eight; `missing` where it is
/// empty. False: it has another form.
///
/// @pre nine bytes from the field on can be read
DEEPREC_INLINE bool parse_small_integer(const char* field, std::uint32_t size, float missing, float& value) {
  std::uint64_t word = detail::read_u64(field);
  const bool negative = (word & 0xff) == '-';
  std::uint32_t digits = size;
  if (negative) {
    word = detail::read_u64(field + 1);
    --digits;
  }
  const std::uint32_t half = (32 - 4 * digits) & 31;  // 64 - 8 * digits, in two halves
  std::uint64_t v = ((word ^ 0x3030303030303030) << half) << half;
  if (digits == 0) v = 0;
  const bool odd = (((v + 0x7676767676767676) | v) & 0x8080808080808080) != 0;
  if (odd || digits > 8 || (negative && (digits == 0 || size == 0))) [[unlikely]]
    return false;
  v = v * 10 + (v >> 8);
  v = ((v & 0x000000ff000000ff) * 0x000f424000000064 +
       ((v >> 16) & 0x000000ff000000ff) * 0x0000271000000001) >>
      32;
  const auto magnitude = static_cast<float>(static_cast<std::int64_t>(v & 0xffffffff));
  value = size == 0 ? missing : negative ? -magnitude : magnitude;
  return true;
}

#include <deeprec/simd/end_portable.hpp>
