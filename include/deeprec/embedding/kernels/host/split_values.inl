// The values of a row of split floats, as the update kernels read and write them, compiled once for each
// region. No include guard: see simd/foreach_region.hpp.

template <>
struct row_values<::deeprec::detail::split_float> {
  static constexpr bool exact = true;
  std::byte* high;
  std::byte* low;

  row_values(std::byte* row, index_t width) : high(row), low(row + 2 * width) {}
  DEEPREC_INLINE vector_f32 get(index_t c) const { return load_halves(high + 2 * c, low + 2 * c); }
  DEEPREC_INLINE vector_f32 get_first(index_t c, int n) const {
    if (c < lanes) return load_first_halves(high + 2 * c, low + 2 * c, n);
    const index_t from = 2 * (c + n - lanes);
    return last_to_front(load_halves(high + from, low + from), n);
  }
  DEEPREC_INLINE void set(index_t c, vector_f32 x) const { store_halves(high + 2 * c, low + 2 * c, x); }
  DEEPREC_INLINE void set_first(index_t c, vector_f32 x, int n) const {
    store_first_halves(high + 2 * c, low + 2 * c, x, n);
  }
};
