// The transpose kernel, compiled once for each region over the tiles of simd/transpose_tiles.hpp.
//
//   in      block of 512 bytes down, 128 columns across         a tile is transposed in registers
//             tile tile tile ..                                the last tiles overlap the ones before them;
//             tile tile tile ..                                less than a tile is copied by element

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

// Row by row of tiles, each of which is prefetched while the one before it is transposed: whole
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
  const bool streamed = args.stores == ::deeprec::detail::store_kind::streamed;
  constexpr index_t stride = ::deeprec::detail::transpose_staged_stride;
  alignas(64) std::byte staged_block[::deeprec::detail::transpose_columns * stride];
  for (index_t number = begin; number < end; ++number) {
    const transpose_block b = block_of(args, grid, number);
    const std::byte* const from = args.in.row(b.row) + b.column * Size;
    std::byte* const to = args.out.row(b.column) + b.row * Size;
    if (!streamed) {
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
    for (index_t j = 0; j < b.columns; ++j) {
      stream_row{}(to + j * args.out.stride, staged_block + j * stride, run);
    }
  }
  if (streamed) end_streams();
}
