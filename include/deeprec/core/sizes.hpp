// Saturating sums and products of sizes.
//
//   capped_product(bags, hotness)      where it is more than memory can hold: most_size, which every
//                                      allocation and every shape check refuses
#pragma once

#include <cstddef>
#include <limits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {
__extension__ using int128 = __int128;  // quiet with -Wpedantic
}

/// More bytes than an array can have; a multiple of every alignment up to 64.
inline constexpr index_t most_size = (std::numeric_limits<index_t>::max)() / 64 * 64;

namespace detail {
DEEPREC_HD constexpr index_t capped(int128 size) noexcept {
  return size > most_size ? most_size : size < -most_size ? -most_size : static_cast<index_t>(size);
}
}  // namespace detail

/// The sum, or most_size where it is more than memory can hold.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
DEEPREC_HD constexpr index_t capped_sum(index_t a, index_t b) noexcept {
  return detail::capped(static_cast<detail::int128>(a) + b);
}
/// The same, for the product.
DEEPREC_HD constexpr index_t capped_product(index_t a, index_t b) noexcept {
  return detail::capped(static_cast<detail::int128>(a) * b);
}
/// The same, for the next multiple of alignment, a power of two up to 64.
DEEPREC_HD constexpr index_t capped_round_up(index_t size, index_t alignment) noexcept {
  return capped_sum(size, alignment - 1) / alignment * alignment;
}

/// True where an array of `count` elements of `element_bytes` bytes can exist.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
DEEPREC_HD constexpr bool fits_memory(index_t count, std::size_t element_bytes) noexcept {
  return count <= (most_size - 1) / static_cast<index_t>(element_bytes);
}

}}  // namespace deeprec::DEEPREC_ABI
