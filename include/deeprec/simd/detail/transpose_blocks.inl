// Transposes of blocks by tiles, compiled once for each region behind its tiles. No include guard: see
// transpose_tiles.hpp.

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
