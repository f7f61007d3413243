// The kernel of column_sums, compiled once for each region. No include guard: see column_sums_kernels.hpp.

// part[j] += rows of `from`, one after the other, for `Rows` rows.
template <int Rows, class T>
DEEPREC_INLINE void add_to_part(const T* from, index_t stride, index_t columns, float* part) {
  index_t j = 0;
  for (; j + lanes <= columns; j += lanes) {
    vector_f32 sum = load(part + j);
    for (int r = 0; r < Rows; ++r) sum = sum + load(from + r * stride + j);
    store(part + j, sum);
  }
  if (j < columns) {
    const int n = static_cast<int>(columns - j);
    vector_f32 sum = load_first(part + j, n);
    for (int r = 0; r < Rows; ++r) sum = sum + load_first(from + r * stride + j, n);
    store_first(part + j, sum, n);
  }
}

// Sums of the columns [0, columns), at most column_panel of them. Rows are read in order, a few at a time.
template <class T>
DEEPREC_INLINE void sum_panel(const T* from, index_t stride, index_t rows, index_t columns, float* out) {
  constexpr index_t at_once = 4;
  alignas(64) float part[::deeprec::detail::column_panel];
  for (index_t j = 0; j < columns; ++j) out[j] = 0.0F;
  for (index_t i = 0; i < rows;) {
    const index_t stop =
        rows - i < ::deeprec::detail::rows_of_part ? rows : i + ::deeprec::detail::rows_of_part;
    for (index_t j = 0; j < columns; ++j) part[j] = 0.0F;
    for (; i + at_once <= stop; i += at_once) add_to_part<at_once>(from + i * stride, stride, columns, part);
    for (; i < stop; ++i) add_to_part<1>(from + i * stride, stride, columns, part);
    add_to_part<1>(part, 0, columns, out);
  }
}

/// out[j] = the sum of column j.
template <class T>
inline void sum_columns(region, const T* from, index_t stride, index_t rows, index_t columns, float* out) {
  for (index_t first = 0; first < columns; first += ::deeprec::detail::column_panel) {
    const index_t left = columns - first;
    sum_panel(from + first, stride, rows,
              left < ::deeprec::detail::column_panel ? left : ::deeprec::detail::column_panel, out + first);
  }
}
