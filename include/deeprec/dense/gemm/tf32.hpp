// TF32: a float with 10 bits of mantissa, the factors of an NVIDIA tensor core's product.
//
//   float   s eeeeeeee mmmmmmmmmm mmmmmmmmmmmmm        round to nearest, ties to even
//   TF32    s eeeeeeee mmmmmmmmmm 0000000000000        error at most 2^-11 |x|
//
// Not a storage type: a rounded value is a float. gemm() with gemm_math::forced_tf32 rounds its operands like
// this on any CPU; a tensor core may truncate instead. No CPU multiplies TF32 faster than float, so a
// permission (gemm_math::tf32) is not used there.
#pragma once

#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The nearest TF32, ties to even.
///
/// @numerics |x - result| <= 2^-11 |x| where x is normal, 2^-137 where it is denormal; too large becomes
///           infinity; infinity, zero and sign stay; NaN stays NaN, quiet, with its payload's top bits
/// @cost     O(1)
/// @threads  reentrant
/// @error    none
DEEPREC_HD constexpr float tf32_round(float x) noexcept {
  const auto bits = detail::bit_cast_to<std::uint32_t>(x);
  const bool nan = (bits & 0x7fffffffU) > 0x7f800000U;
  const std::uint32_t rounded = (bits + 0xfffU + ((bits >> 13) & 1U)) & 0xffffe000U;
  const std::uint32_t quiet = (bits | 0x00400000U) & 0xffffe000U;
  return detail::bit_cast_to<float>(nan ? quiet : rounded);
}

}}  // namespace deeprec::DEEPREC_ABI
