// The tiles of the transpose kernels over AVX2: pieces of rows in the two lanes of a register, transposed
// within the lanes by interleaving. A tile has 32 / Size rows, so each of its columns fills a register.

template <int Size>
DEEPREC_INLINE __m256i interleave_low(__m256i a, __m256i b) {
  if constexpr (Size == 1) return _mm256_unpacklo_epi8(a, b);
  if constexpr (Size == 2) return _mm256_unpacklo_epi16(a, b);
  if constexpr (Size == 4) return _mm256_unpacklo_epi32(a, b);
  if constexpr (Size == 8) return _mm256_unpacklo_epi64(a, b);
}
template <int Size>
DEEPREC_INLINE __m256i interleave_high(__m256i a, __m256i b) {
  if constexpr (Size == 1) return _mm256_unpackhi_epi8(a, b);
  if constexpr (Size == 2) return _mm256_unpackhi_epi16(a, b);
  if constexpr (Size == 4) return _mm256_unpackhi_epi32(a, b);
  if constexpr (Size == 8) return _mm256_unpackhi_epi64(a, b);
}

template <int Size>
struct lane_block {  // 16 / Size registers
  static constexpr int count = 16 / Size;
  using each = std::make_index_sequence<count>;
  __m256i v[count];
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

// 16 bytes of rows i and i + count.
template <int Size, std::size_t... Row>
DEEPREC_INLINE lane_block<Size> load_half_rows(const std::byte* from, index_t stride,
                                               std::index_sequence<Row...>) {
  constexpr index_t apart = lane_block<Size>::count;
  return {{_mm256_inserti128_si256(
      _mm256_castsi128_si256(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + static_cast<index_t>(Row) * stride))),
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + (static_cast<index_t>(Row) + apart) * stride)),
      1)...}};
}
// 32 bytes of row i.
template <int Size, std::size_t... Row>
DEEPREC_INLINE lane_block<Size> load_rows(const std::byte* from, index_t stride,
                                          std::index_sequence<Row...>) {
  return {
      {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + static_cast<index_t>(Row) * stride))...}};
}

DEEPREC_INLINE void store_column(std::byte* to, __m256i x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x);
}
template <int Size, std::size_t... Row>
DEEPREC_INLINE void store_columns(const lane_block<Size>& x, std::byte* to, index_t stride,
                                  std::index_sequence<Row...>) {
  (store_column(to + static_cast<index_t>(Row) * stride, x.v[Row]), ...);
}
// Lane 0 of x and y has columns 0 to count - 1, lane 1 the next ones; y has the later rows.
template <int Size, std::size_t... Row>
DEEPREC_INLINE void store_columns(const lane_block<Size>& x, const lane_block<Size>& y, std::byte* to,
                                  index_t stride, std::index_sequence<Row...>) {
  constexpr index_t count = lane_block<Size>::count;
  (store_column(to + static_cast<index_t>(Row) * stride, _mm256_permute2x128_si256(x.v[Row], y.v[Row], 0x20)),
   ...);
  (store_column(to + (static_cast<index_t>(Row) + count) * stride,
                _mm256_permute2x128_si256(x.v[Row], y.v[Row], 0x31)),
   ...);
}

template <int Size>
struct tile_of_registers {
  static constexpr index_t rows = 32 / Size;
  static constexpr bool wide = Size >= 4;  // two blocks of 16 registers would not fit the register file
  static constexpr index_t columns = (wide ? 32 : 16) / Size;

  DEEPREC_INLINE static void run(const std::byte* from, index_t from_stride, std::byte* to,
                                 index_t to_stride) {
    using each = typename lane_block<Size>::each;
    if constexpr (wide) {
      const auto x = transpose_lanes<Size>(load_rows<Size>(from, from_stride, each{}));
      const auto y = transpose_lanes<Size>(
          load_rows<Size>(from + lane_block<Size>::count * from_stride, from_stride, each{}));
      store_columns<Size>(x, y, to, to_stride, each{});
    } else {
      store_columns<Size>(transpose_lanes<Size>(load_half_rows<Size>(from, from_stride, each{})), to,
                          to_stride, each{});
    }
  }
};

template <int Size>
using direct_tile = tile_of_registers<Size>;
template <int Size>
using staged_tile = tile_of_registers<Size>;
