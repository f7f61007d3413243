// Dot products of rows with the gradient of their bags, compiled once for each region. No include guard: see
// position_dots_kernels.hpp.

/// dots[position - first_position] = (row of the position, clipped) . (gradient of its bag), 0 for an absent
/// id, for the bags [begin, end). args.out is the gradient, which is only read.
template <class Element, class Policy, class Args>
void position_dots(region, Policy, const Args& args, index_t first_position, float* dots, index_t begin,
                   index_t end) {
  constexpr index_t ahead = 16;
  const panel<Element, 1, false> columns{0, args.width, row_codec<Element>::of(args, 0, args.width)};
  for (index_t bag = begin; bag < end; ++bag) {
    const float* const gradient = args.out + bag * args.out_stride;
    for (index_t position = args.ranges.begin(bag); position < args.ranges.end(bag); ++position) {
      prefetch_position<Policy>(args, columns, position + ahead);
      float& dot = dots[position - first_position];
      dot = 0.0F;
      if (Policy::ids == ::deeprec::detail::ids_are::filtered && args.row_of.absent(position)) continue;
      const std::byte* const row = args.row_of(position);
      vector_f32 products = zero();
      for_each_vector<Element>(args, row, [&](vector_f32 x, index_t c, int n) {
        const vector_f32 g = n == lanes ? load(gradient + c) : load_first(gradient + c, n);
        products = multiply_add(x, g, products);
      });
      dot = add_lanes(products);
      if constexpr (Policy::clips) dot *= clip_factor<Element>(args, row);
    }
  }
}
