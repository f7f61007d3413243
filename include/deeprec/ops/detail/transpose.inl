// The transpose kernel, compiled once for each region over its tiles (transpose_tiles_*.inl).
//
//   in      block of 512 bytes down, 128 columns across         a tile is transposed in registers
//             tile tile tile ..                                the last tiles overlap the ones before them;
//             tile tile tile ..                                less than a tile is copied by element

// Sizes that have tiles in registers; elements of others are copied one by one.
constexpr bool has_tiles(int size) { return size == 1 || size == 2 || size == 4 || size == 8; }

template <int Size>
DEEPREC_INLINE void transpose_elements(const std::byte* from, index_t from_stride, index_t rows,
                                       index_t columns, std::byte* to, index_t to_stride) {
  for (index_t j = 0; j < columns; ++j) {
    for (index_t i = 0; i < rows; ++i) {
      __builtin_memcpy(to + j * to_stride + i * Size, from + i * from_stride + j * Size, Size);
    }
  }
}

// The last tiles of a row or column overlap the ones before them. Rows and columns: at least those of a tile.
DEEPREC_INLINE index_t next_tile(index_t at, index_t step, index_t last) {
  return at + step < last || at == last ? at + step : last;
}
// `ahead`: prefetched in steps, each with a tile, so that few prefetches wait for each other; or null.
template <class Tile, int Size>
DEEPREC_INLINE void transpose_row_of_tiles(const std::byte* from, index_t from_stride, index_t columns,
                                           std::byte* to, index_t to_stride, const std::byte* ahead) {
  const index_t last = columns - Tile::columns;
  index_t fetched = 0;  // bytes of each row
  for (index_t j = 0; j <= last; j = next_tile(j, Tile::columns, last)) {
    if (ahead != nullptr && fetched <= j * Size) {
      for (index_t i = 0; i < Tile::rows; ++i) __builtin_prefetch(ahead + i * from_stride + fetched, 0, 3);
      fetched += ::deeprec::detail::line_bytes;
    }
    Tile::run(from + j * Size, from_stride, to + j * to_stride, to_stride);
  }
}
template <class Tile, int Size>
DEEPREC_INLINE void transpose_column_of_tiles(const std::byte* from, index_t from_stride, index_t rows,
                                              std::byte* to, index_t to_stride) {
  const index_t last = rows - Tile::rows;
  for (index_t i = 0; i <= last; i = next_tile(i, Tile::rows, last)) {
    Tile::run(from + i * from_stride, from_stride, to + i * Size, to_stride);
  }
}
template <class Tile>
DEEPREC_INLINE bool has_a_tile(index_t rows, index_t columns) {
  return rows >= Tile::rows && columns >= Tile::columns;
}

// A part of in to a part of out, column by column of tiles.
template <class Tile, int Size>
DEEPREC_INLINE void transpose_by_columns(const std::byte* from, index_t from_stride, index_t rows,
                                         index_t columns, std::byte* to, index_t to_stride) {
  const index_t last = columns - Tile::columns;
  for (index_t j = 0; j <= last; j = next_tile(j, Tile::columns, last)) {
    transpose_column_of_tiles<Tile, Size>(from + j * Size, from_stride, rows, to + j * to_stride, to_stride);
  }
}
template <int Size>
DEEPREC_INLINE void transpose_direct(const std::byte* from, index_t from_stride, index_t rows,
                                     index_t columns, std::byte* to, index_t to_stride) {
  if constexpr (has_tiles(Size)) {
    if (has_a_tile<direct_tile<Size>>(rows, columns)) {
      return transpose_by_columns<direct_tile<Size>, Size>(from, from_stride, rows, columns, to, to_stride);
    }
  }
  transpose_elements<Size>(from, from_stride, rows, columns, to, to_stride);
}

// The same, row by row of tiles, each of which is prefetched while the one before it is transposed: whole
// lines of in are read at once. `next` is the block of the same shape that comes after this one, or null.
template <int Size>
DEEPREC_INLINE void transpose_to_staged(const std::byte* from, index_t from_stride, index_t rows,
                                        index_t columns, std::byte* to, index_t to_stride,
                                        const std::byte* next) {
  if constexpr (has_tiles(Size)) {
    using tile = staged_tile<Size>;
    if (has_a_tile<tile>(rows, columns)) {
      const index_t last = rows - tile::rows;
      for (index_t i = 0; i <= last;) {
        const index_t after = next_tile(i, tile::rows, last);
        const std::byte* const ahead = after <= last ? from + after * from_stride : next;
        transpose_row_of_tiles<tile, Size>(from + i * from_stride, from_stride, columns, to + i * Size,
                                           to_stride, ahead);
        i = after;
      }
      return;
    }
  }
  transpose_elements<Size>(from, from_stride, rows, columns, to, to_stride);
}

struct transpose_block {
  index_t row;
  index_t rows;
  index_t column;
  index_t columns;
};
DEEPREC_INLINE transpose_block block_of(const ::deeprec::detail::transpose_args& args,
                                        const ::deeprec::detail::transpose_grid& grid, index_t number) {
  const index_t down = number / grid.across, across = number % grid.across;
  const index_t row = down == 0 ? 0 : args.head + down * grid.block_rows;
  const index_t end = args.head + (down + 1) * grid.block_rows;
  const index_t column = across * ::deeprec::detail::transpose_columns;
  const index_t columns = args.out.count - column;
  return {row, (end < args.in.count ? end : args.in.count) - row, column,
          columns < ::deeprec::detail::transpose_columns ? columns : ::deeprec::detail::transpose_columns};
}

/// Blocks [begin, end).
template <int Size>
void transpose_blocks(region, std::integral_constant<int, Size>,
                      const ::deeprec::detail::transpose_args& args, index_t begin, index_t end) {
  const ::deeprec::detail::transpose_grid grid(args);
  const bool staged_path = args.path == ::deeprec::detail::tile_path::staged;
  constexpr index_t stride = ::deeprec::detail::transpose_staged_stride;
  alignas(64) std::byte staged_block[::deeprec::detail::transpose_columns * stride];
  for (index_t number = begin; number < end; ++number) {
    const transpose_block b = block_of(args, grid, number);
    const std::byte* const from = args.in.row(b.row) + b.column * Size;
    std::byte* const to = args.out.row(b.column) + b.row * Size;
    if (!staged_path) {
      transpose_direct<Size>(from, args.in.stride, b.rows, b.columns, to, args.out.stride);
      continue;
    }
    const std::byte* next = nullptr;
    if (number + 1 < end) {
      const transpose_block n = block_of(args, grid, number + 1);
      if (n.rows == b.rows && n.columns == b.columns) next = args.in.row(n.row) + n.column * Size;
    }
    transpose_to_staged<Size>(from, args.in.stride, b.rows, b.columns, staged_block, stride, next);
    const index_t run = b.rows * Size;
    if (args.stores == ::deeprec::detail::store_kind::streamed) {
      for (index_t j = 0; j < b.columns; ++j) {
        stream_row{}(to + j * args.out.stride, staged_block + j * stride, run);
      }
    } else {
      for (index_t j = 0; j < b.columns; ++j) {
        copy_bytes(to + j * args.out.stride, staged_block + j * stride, run);
      }
    }
  }
  if (args.stores == ::deeprec::detail::store_kind::streamed) end_streams();
}
