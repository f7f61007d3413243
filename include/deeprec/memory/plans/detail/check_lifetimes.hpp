// What lifetimes must be, for plans and for their check.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/memory/plans/block_lifetime.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Sums of offsets, sizes and alignments below that do not wrap.
inline constexpr std::uint64_t most_planned_bytes = std::uint64_t{1} << 62;

/// What indices of 32 bits can count.
inline constexpr std::size_t most_planned_blocks = (std::numeric_limits<std::int32_t>::max)();

/// Names the first block that is wrong.
inline status check_lifetimes(std::span<const block_lifetime> blocks) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const block_lifetime& b = blocks[i];
    const auto item = static_cast<index_t>(i);
    if (b.end <= b.begin)
      return {errc::invalid_value, "block_lifetime: end must be after begin", {.value = b.end, .item = item}};
    if (!std::has_single_bit(b.alignment)) {
      return {errc::invalid_value,
              "block_lifetime: alignment must be a power of two",
              {.value = static_cast<std::int64_t>(b.alignment), .item = item}};
    }
    const auto most = most_planned_bytes - sum;
    if (b.bytes >= most || b.alignment >= most - b.bytes) {
      return {errc::invalid_value,
              "block_lifetime: the sum of all bytes and alignments must be below 2^62",
              {.value = static_cast<std::int64_t>(b.bytes), .item = item}};
    }
    sum += b.bytes + b.alignment;
  }
  return {};
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
