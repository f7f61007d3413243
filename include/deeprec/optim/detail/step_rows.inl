// The rows [begin, end) of a matrix, compiled once for each region. No include guard: see
// simd/foreach_region.hpp.

template <class Optimizer, class Rows, class W, class Rounding>
void step_rows(region, const Rows& rows, matrix_view<const float> gradient, matrix_view<W> weights,
               matrix_view<float> state, const Rounding& rounding, index_t begin, index_t end) {
  const index_t width = weights.extent(1);
  for (index_t r = begin; r < end; ++r) {
    float* const of_row = state.data_handle() == nullptr ? nullptr : state.row(r);
    step_row<Optimizer>(rows, row_values<W>(weights.row(r), width), gradient_values{gradient.row(r)}, of_row,
                        width, rounding, r);
  }
}
