// Arguments of the row-select kernels: addresses and byte counts, type-erased.
#pragma once

#include <cstddef>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/ops/detail/byte_rows.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Prefetch distance, in cache lines and in rows; 0: none. Where the output is larger than the second-level
/// cache, the chosen rows are prefetched into it: the hardware can't predict which of two rows comes next.
/// Below that size it costs a sixth and gains nothing. (Into the first level it gains little at any size: too
/// few prefetches are in flight at once.) Rows shorter than a line touch every line of both
/// operands, and long rows are sequential: the hardware prefetches those.
inline constexpr index_t lines_ahead = 64;
inline index_t rows_ahead(index_t width) noexcept {
  const index_t lines = (width + line_bytes - 1) / line_bytes;
  return width < line_bytes ? 0 : lines_ahead / lines;
}

struct select_args {
  const unsigned char* cond;           // one byte for a row
  byte_rows<const std::byte> from[2];  // otherwise, then: cond picks without a branch
  byte_rows<std::byte> out;
  index_t ahead;  // prefetch distance in rows; 0: none
  store_kind stores;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
