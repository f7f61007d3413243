// The tiles of the transpose kernels over AVX-512: pieces of rows in the four lanes of a register, transposed
// within the lanes by interleaving. A tile has 64 / Size rows, so each of its columns is a cache line.

// Masks of all elements: without a mask, the intrinsics of some compilers draw warnings about a register
// that is not initialised.
inline constexpr __mmask64 every_byte = ~__mmask64{0};
inline constexpr __mmask32 every_two = ~__mmask32{0};
inline constexpr __mmask16 every_four = 0xffff;
inline constexpr __mmask8 every_eight = 0xff;

template <int Size>
DEEPREC_INLINE __m512i interleave_low(__m512i a, __m512i b) {
  if constexpr (Size == 1) return _mm512_maskz_unpacklo_epi8(every_byte, a, b);
  if constexpr (Size == 2) return _mm512_maskz_unpacklo_epi16(every_two, a, b);
  if constexpr (Size == 4) return _mm512_maskz_unpacklo_epi32(every_four, a, b);
  if constexpr (Size == 8) return _mm512_maskz_unpacklo_epi64(every_eight, a, b);
}
template <int Size>
DEEPREC_INLINE __m512i interleave_high(__m512i a, __m512i b) {
  if constexpr (Size == 1) return _mm512_maskz_unpackhi_epi8(every_byte, a, b);
  if constexpr (Size == 2) return _mm512_maskz_unpackhi_epi16(every_two, a, b);
  if constexpr (Size == 4) return _mm512_maskz_unpackhi_epi32(every_four, a, b);
  if constexpr (Size == 8) return _mm512_maskz_unpackhi_epi64(every_eight, a, b);
}

template <int Size>
struct lane_block {  // 16 / Size registers
  static constexpr int count = 16 / Size;
  using each = std::make_index_sequence<count>;
  __m512i v[count];
};

// One of log2(16 / Size) equal steps: registers i and i + count / 2 become 2i and 2i + 1.
template <int Size, std::size_t... Row>
DEEPREC_INLINE lane_block<Size> interleave(const lane_block<Size>& x, std::index_sequence<Row...>) {
  constexpr int half = lane_block<Size>::count / 2;
  return {{(Row % 2 == 0 ? interleave_low<Size>(x.v[Row / 2], x.v[Row / 2 + half])
                         : interleave_high<Size>(x.v[Row / 2], x.v[Row / 2 + half]))...}};
}
template <int Size, int Steps = Size>
DEEPREC_INLINE lane_block<Size> transpose_lanes(const lane_block<Size>& x) {
  if constexpr (Steps == 16) {
    return x;
  } else {
    return transpose_lanes<Size, Steps * 2>(interleave<Size>(x, typename lane_block<Size>::each{}));
  }
}

DEEPREC_INLINE __m128i load_piece(const std::byte* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
// 16 bytes of four rows that are `apart` bytes apart.
DEEPREC_INLINE __m512i load_four(const std::byte* from, index_t apart) {
  __m512i x = _mm512_castsi128_si512(load_piece(from));
  x = _mm512_maskz_inserti32x4(every_four, x, load_piece(from + apart), 1);
  x = _mm512_maskz_inserti32x4(every_four, x, load_piece(from + 2 * apart), 2);
  return _mm512_maskz_inserti32x4(every_four, x, load_piece(from + 3 * apart), 3);
}
// 32 bytes of two rows.
DEEPREC_INLINE __m512i load_two_rows(const std::byte* from, index_t apart) {
  const __m512i x = _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  return _mm512_maskz_inserti64x4(every_eight, x,
                                  _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + apart)), 1);
}

template <int Size, std::size_t... Row>
DEEPREC_INLINE lane_block<Size> load_quarter_rows(const std::byte* from, index_t stride,
                                                  std::index_sequence<Row...>) {
  return {{load_four(from + static_cast<index_t>(Row) * stride, lane_block<Size>::count * stride)...}};
}
template <int Size, std::size_t... Row>
DEEPREC_INLINE lane_block<Size> load_half_rows(const std::byte* from, index_t stride,
                                               std::index_sequence<Row...>) {
  return {{load_two_rows(from + static_cast<index_t>(Row) * stride, lane_block<Size>::count * stride)...}};
}
template <int Size, std::size_t... Row>
DEEPREC_INLINE lane_block<Size> load_rows(const std::byte* from, index_t stride,
                                          std::index_sequence<Row...>) {
  return {{_mm512_loadu_si512(from + static_cast<index_t>(Row) * stride)...}};
}

DEEPREC_INLINE void store_column(std::byte* to, __m512i x) { _mm512_storeu_si512(to, x); }

template <int Size, std::size_t... Row>
DEEPREC_INLINE void store_columns(const lane_block<Size>& x, std::byte* to, index_t stride,
                                  std::index_sequence<Row...>) {
  (store_column(to + static_cast<index_t>(Row) * stride, x.v[Row]), ...);
}
// Lanes 0 and 2 of x and y have columns 0 to count - 1, lanes 1 and 3 the next ones.
template <int Size, std::size_t... Row>
DEEPREC_INLINE void store_columns(const lane_block<Size>& x, const lane_block<Size>& y, std::byte* to,
                                  index_t stride, std::index_sequence<Row...>) {
  constexpr index_t count = lane_block<Size>::count;
  (store_column(to + static_cast<index_t>(Row) * stride,
                _mm512_maskz_shuffle_i32x4(every_four, x.v[Row], y.v[Row], 0x88)),
   ...);
  (store_column(to + (static_cast<index_t>(Row) + count) * stride,
                _mm512_maskz_shuffle_i32x4(every_four, x.v[Row], y.v[Row], 0xdd)),
   ...);
}
// Lane l of x, y, z and w has columns from l * count on, x the first rows and w the last ones.
DEEPREC_INLINE void store_four(__m512i x, __m512i y, __m512i z, __m512i w, std::byte* to, index_t apart) {
  const __m512i low_xy = _mm512_maskz_shuffle_i32x4(every_four, x, y, 0x44),
                high_xy = _mm512_maskz_shuffle_i32x4(every_four, x, y, 0xee);
  const __m512i low_zw = _mm512_maskz_shuffle_i32x4(every_four, z, w, 0x44),
                high_zw = _mm512_maskz_shuffle_i32x4(every_four, z, w, 0xee);
  store_column(to, _mm512_maskz_shuffle_i32x4(every_four, low_xy, low_zw, 0x88));
  store_column(to + apart, _mm512_maskz_shuffle_i32x4(every_four, low_xy, low_zw, 0xdd));
  store_column(to + 2 * apart, _mm512_maskz_shuffle_i32x4(every_four, high_xy, high_zw, 0x88));
  store_column(to + 3 * apart, _mm512_maskz_shuffle_i32x4(every_four, high_xy, high_zw, 0xdd));
}
template <int Size, std::size_t... Row>
DEEPREC_INLINE void store_columns(const lane_block<Size>& x, const lane_block<Size>& y,
                                  const lane_block<Size>& z, const lane_block<Size>& w, std::byte* to,
                                  index_t stride, std::index_sequence<Row...>) {
  (store_four(x.v[Row], y.v[Row], z.v[Row], w.v[Row], to + static_cast<index_t>(Row) * stride,
              lane_block<Size>::count * stride),
   ...);
}

// A tile of 64 bytes down that reads Piece bytes of each row, in Piece / Size registers.
template <int Size, int Piece>
struct tile_of_pieces {
  static constexpr index_t rows = 64 / Size;
  static constexpr index_t columns = Piece / Size;

  DEEPREC_INLINE static void run(const std::byte* from, index_t from_stride, std::byte* to,
                                 index_t to_stride) {
    using each = typename lane_block<Size>::each;
    constexpr index_t count = lane_block<Size>::count;
    if constexpr (Piece == 16) {
      store_columns<Size>(transpose_lanes<Size>(load_quarter_rows<Size>(from, from_stride, each{})), to,
                          to_stride, each{});
    } else if constexpr (Piece == 32) {
      const auto x = transpose_lanes<Size>(load_half_rows<Size>(from, from_stride, each{}));
      const auto y =
          transpose_lanes<Size>(load_half_rows<Size>(from + 2 * count * from_stride, from_stride, each{}));
      store_columns<Size>(x, y, to, to_stride, each{});
    } else {
      const auto x = transpose_lanes<Size>(load_rows<Size>(from, from_stride, each{}));
      const auto y = transpose_lanes<Size>(load_rows<Size>(from + count * from_stride, from_stride, each{}));
      const auto z =
          transpose_lanes<Size>(load_rows<Size>(from + 2 * count * from_stride, from_stride, each{}));
      const auto w =
          transpose_lanes<Size>(load_rows<Size>(from + 3 * count * from_stride, from_stride, each{}));
      store_columns<Size>(x, y, z, w, to, to_stride, each{});
    }
  }
};

// Stored to out directly: few columns, since lines of rows of out that are a power of two of bytes apart
// share a set of the first-level cache. Stored to the staged block: whole lines of in, which do so too.
template <int Size>
using direct_tile = tile_of_pieces<Size, Size == 1 ? 16 : 32>;
template <int Size>
using staged_tile = tile_of_pieces<Size, Size == 1   ? 16
                                         : Size == 2 ? 32
                                                     : 64>;
