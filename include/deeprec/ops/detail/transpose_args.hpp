// Arguments of the transpose kernels: addresses and byte counts, type-erased; and the blocks they work in.
#pragma once

#include <cstddef>
#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/ops/detail/byte_rows.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// A block of in: a column of it has block_run bytes, which are 8 cache lines of a row of out.
inline constexpr index_t transpose_run = 512;
inline constexpr index_t transpose_columns = 128;

/// Bytes from one row of the staged block to the next: no power of two, or its lines would share few sets of
/// the first-level cache.
inline constexpr index_t transpose_staged_stride = transpose_run + 2 * line_bytes;

/// Elements of more bytes have blocks of few rows, which are not staged.
inline constexpr index_t transpose_stage_element = 16;

/// Elements of a row from p to the next cache line, `most` at most; 0 where none begins there.
inline index_t elements_to_line(const std::byte* p, index_t element, index_t most) noexcept {
  const auto bytes =
      static_cast<index_t>((std::uintptr_t{0} - reinterpret_cast<std::uintptr_t>(p)) & (line_bytes - 1));
  if (bytes % element != 0) return 0;
  return bytes / element < most ? bytes / element : most;
}

struct transpose_args {
  byte_rows<const std::byte> in;
  byte_rows<std::byte> out;
  index_t element;  // bytes of an element
  index_t head;     // rows of in before the first block boundary: row 0 of out reaches a cache line there
  // streamed: tiles are stored to a buffer, whose rows are then copied to out, whole lines at once
  store_kind stores;
};

/// Blocks down and across: a block's number is down * across() + across.
struct transpose_grid {
  index_t down;
  index_t across;
  index_t block_rows;  // of in

  explicit transpose_grid(const transpose_args& args) noexcept
      : block_rows(args.element < transpose_run ? transpose_run / args.element : 1) {
    const index_t rows = args.in.count - args.head;
    down = rows <= 0 ? 1 : (rows + block_rows - 1) / block_rows;
    across = (args.out.count + transpose_columns - 1) / transpose_columns;
  }
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
