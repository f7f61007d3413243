// Dot products of rows with the gradient of their bags, compiled once for each region. No include guard: see
// simd/foreach_region.hpp.

/// dots[position - first_position] = (row of the position, clipped) . (gradient of its bag), 0 for an absent
/// id, for the bags [begin, end). args.out is the gradient, which is only read.
template <class Element, class Args>
void position_dots(region, const Args& args, index_t first_position, float* dots, index_t begin,
                   index_t end) {
  constexpr index_t ahead = 16;
  const row_columns<Element> columns{0, args.width, row_codec<Element>::of(args, 0, args.width)};
  for (index_t bag = begin; bag < end; ++bag) {
    const float* const gradient = args.out + bag * args.out_stride;
    for (index_t position = args.ranges.begin(bag); position < args.ranges.end(bag); ++position) {
      const index_t later = position + ahead;
      if (later < args.end_position && !(args.filters && args.row_of.absent(later))) {
        columns.prefetch(args.row_of(later));
      }
      float& dot = dots[position - first_position];
      dot = 0.0F;
      if (args.filters && args.row_of.absent(position)) continue;
      const std::byte* const row = args.row_of(position);
      vector_f32 products = zero();
      for_each_vector<Element>(args, row, [&](vector_f32 x, index_t c, int n) {
        const vector_f32 g = n == lanes ? load(gradient + c) : load_first(gradient + c, n);
        products = multiply_add(x, g, products);
      });
      dot = add_lanes(products);
      if (args.max_norm > 0) dot *= clip_factor<Element>(args, row);
    }
  }
}
