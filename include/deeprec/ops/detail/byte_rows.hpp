// Rows of a matrix as addresses and byte counts, for kernels that copy elements of any type.
#pragma once

#include <cstddef>
#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/sizes.hpp>

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

/// True where every row begins and ends at a cache line.
inline bool has_whole_lines(const byte_rows<std::byte>& rows) noexcept {
  const auto places =
      reinterpret_cast<std::uintptr_t>(rows.first) | static_cast<std::uintptr_t>(rows.stride | rows.width);
  return places % static_cast<std::uintptr_t>(line_bytes) == 0;
}

/// Bytes of a piece of parallel work.
inline constexpr index_t copy_piece_bytes = index_t{256} << 10;

template <class T, class Space>
byte_rows<const std::byte> bytes_of(const matrix_view<T, Space>& view) noexcept {
  constexpr auto size = static_cast<index_t>(sizeof(T));
  return {reinterpret_cast<const std::byte*>(view.data_handle()), view.extent(0),
          capped_product(view.stride(0), size), view.extent(1) * size};
}

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
