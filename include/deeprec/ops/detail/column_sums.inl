// The kernel of column_sums, compiled once for each region. No include guard: see simd/foreach_region.hpp.

// part[j] += rows of `from`, one after the other, for `Rows` rows. `Fetch`: the `Rows` rows behind them are
// prefetched.
template <int Rows, bool Fetch, class T>
DEEPREC_INLINE void add_to_part(const T* from, index_t stride, index_t columns, float* part) {
  constexpr index_t line = ::deeprec::detail::line_bytes / index_t{sizeof(T)};
  index_t j = 0;
  for (; j + lanes <= columns; j += lanes) {
    if constexpr (Fetch) {
      if (lanes >= line || j % line == 0) {
        for (int r = 0; r < Rows; ++r) __builtin_prefetch(from + (r + Rows) * stride + j, 0, 3);
      }
    }
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

// Sums of the columns [0, columns), at most column_panel of them. Rows are read in order, eight at a time: so
// many pages are read at once, which the prefetchers of the hardware follow.
template <bool Fetch, class T>
DEEPREC_INLINE void sum_panel(const T* from, index_t stride, index_t rows, index_t columns, float* out) {
  constexpr index_t at_once = 8;
  alignas(64) float part[::deeprec::detail::column_panel];
  for (index_t j = 0; j < columns; ++j) out[j] = 0.0F;
  for (index_t i = 0; i < rows;) {
    const index_t stop =
        rows - i < ::deeprec::detail::rows_of_part ? rows : i + ::deeprec::detail::rows_of_part;
    for (index_t j = 0; j < columns; ++j) part[j] = 0.0F;
    for (; i + at_once <= stop; i += at_once) {
      add_to_part<at_once, Fetch>(from + i * stride, stride, columns, part);
    }
    for (; i < stop; ++i) add_to_part<1, false>(from + i * stride, stride, columns, part);
    add_to_part<1, false>(part, 0, columns, out);
  }
}

/// out[j] = the sum of column j.
template <class T>
inline void sum_columns(region, const T* from, index_t stride, index_t rows, index_t columns, float* out) {
  for (index_t first = 0; first < columns; first += ::deeprec::detail::column_panel) {
    const index_t left = columns - first;
    const index_t width = left < ::deeprec::detail::column_panel ? left : ::deeprec::detail::column_panel;
    const bool from_beyond = rows * width * index_t{sizeof(T)} > ::deeprec::detail::fetch_sums_above;
    if (from_beyond) {
      sum_panel<true>(from + first, stride, rows, width, out + first);
    } else {
      sum_panel<false>(from + first, stride, rows, width, out + first);
    }
  }
}
