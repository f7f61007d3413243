// Arguments of the row-select kernels: addresses and byte counts, type-erased.
#pragma once

#include <cstddef>
#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Rows of bytes: `count` of them, `stride` bytes apart.
template <class Byte>
struct byte_rows {
  Byte* first;
  index_t count;
  index_t stride;
  index_t width;

  DEEPREC_INLINE Byte* row(index_t i) const { return first + i * stride; }
};

/// Through the caches, or non-temporal.
enum class store_kind : unsigned char { cached, streamed };

inline constexpr index_t line_bytes = 64;

/// For outputs of more bytes than this the chosen rows are prefetched into the second-level cache: the
/// hardware can't predict which of two rows comes next. Below it prefetching costs a sixth and gains nothing.
/// (Into the first level it gains little at any size: too few prefetches are in flight at once.)
inline constexpr index_t fetch_above = index_t{1} << 20;

/// Prefetch distance, in cache lines and in rows; 0: none. Rows shorter than a line touch every line of both
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

/// True where a row of a and a row of b share a byte. Strides are not negative.
inline bool share_bytes(const byte_rows<const std::byte>& a, const byte_rows<const std::byte>& b) noexcept {
  const auto begin_a = reinterpret_cast<std::intptr_t>(a.first);
  const auto begin_b = reinterpret_cast<std::intptr_t>(b.first);
  const index_t last_a = (a.count - 1) * a.stride + a.width;
  const index_t last_b = (b.count - 1) * b.stride + b.width;
  if (begin_a + last_a <= begin_b || begin_b + last_b <= begin_a) return false;
  if (a.stride == b.stride && a.stride >= a.width && a.stride >= b.width) {
    // Two ranges of columns of one matrix: their offsets within a row decide.
    const index_t step = (begin_b - begin_a) % a.stride;
    const index_t column = step < 0 ? step + a.stride : step;
    return column < a.width || column > a.stride - b.width;
  }
  for (index_t i = 0, j = 0; i < a.count && j < b.count;) {
    const std::intptr_t at_a = begin_a + i * a.stride;
    const std::intptr_t at_b = begin_b + j * b.stride;
    if (at_a + a.width <= at_b) {
      ++i;
    } else if (at_b + b.width <= at_a) {
      ++j;
    } else {
      return true;
    }
  }
  return false;
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
