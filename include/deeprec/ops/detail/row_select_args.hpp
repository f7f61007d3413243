// What the row-select kernels of every region are given: addresses and numbers of bytes, no types.
#pragma once

#include <cstddef>
#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Rows of bytes: `count` of them, each `stride` behind the one before.
template <class Byte>
struct byte_rows {
  Byte* first;
  index_t count;
  index_t stride;
  index_t width;

  DEEPREC_INLINE Byte* row(index_t i) const { return first + i * stride; }
};

/// Past the caches, or through them.
enum class store_kind : unsigned char { cached, streamed };

inline constexpr index_t line_bytes = 64;

/// Outputs of more bytes than this have their chosen rows fetched ahead, into the second-level cache: the
/// hardware can't guess which of two rows comes next. Below it the fetches cost a sixth and gain nothing.
/// (Into the first level they gain little at any size: too few of them are under way at once.)
inline constexpr index_t fetch_above = index_t{1} << 20;

/// How far ahead, in cache lines and in rows; 0: not at all. Rows shorter than a line touch every line of
/// both operands, and long ones are a stream: the hardware does those.
inline constexpr index_t lines_ahead = 64;
inline index_t rows_ahead(index_t width) noexcept {
  const index_t lines = (width + line_bytes - 1) / line_bytes;
  return width < line_bytes ? 0 : lines_ahead / lines;
}

struct select_args {
  const unsigned char* cond;           // one byte for a row
  byte_rows<const std::byte> from[2];  // otherwise, then: cond picks without a branch
  byte_rows<std::byte> out;
  index_t ahead;                       // rows; 0: nothing is fetched ahead
  store_kind stores;
};

/// True where a row of a and a row of b share a byte. Strides are not negative.
inline bool share_bytes(const byte_rows<const std::byte>& a,
                        const byte_rows<const std::byte>& b) noexcept {
  const auto begin_a = reinterpret_cast<std::intptr_t>(a.first);
  const auto begin_b = reinterpret_cast<std::intptr_t>(b.first);
  const index_t last_a = (a.count - 1) * a.stride + a.width;
  const index_t last_b = (b.count - 1) * b.stride + b.width;
  if (begin_a + last_a <= begin_b || begin_b + last_b <= begin_a) return false;
  if (a.stride == b.stride && a.stride >= a.width && a.stride >= b.width) {
    // Two sets of columns of one matrix: the places within a row decide.
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
