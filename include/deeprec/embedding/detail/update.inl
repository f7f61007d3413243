// The update kernels, compiled once for each region. No include guard: see update_kernels.hpp.

/// The groups [begin, end) of the sorted slots: gradient of each row, then one optimizer step. `rows` is what
/// prepare() made of an Optimizer; scratch holds D floats. How the values of an Element are read and written
/// says row_values in optim/detail/apply_row.inl, or a specialisation of it.
template <class Element, class Optimizer, class Rows, class Rounding, class Args>
void update_rows(region, const Rows& rows, const Rounding& rounding, const Args& args, index_t begin,
                 index_t end, float* scratch) {
  const index_t width = args.format.width();
  for (index_t group = begin; group < end; ++group) {
    const index_t first = args.slots.start(group);
    const index_t last = args.slots.start(group + 1);
    constexpr bool norm = asks_for_squares<Optimizer, Rows>();
    [[maybe_unused]] vector_f32 squares = zero();
    for (index_t c = 0; c < width; c += lanes) {
      const int n = width - c < lanes ? static_cast<int>(width - c) : lanes;
      vector_f32 total = zero();
      for (index_t i = first; i < last; ++i) {
        const index_t slot = args.slots.slot(i);
        const index_t bag = args.bag_of[slot - args.first_slot];
        const float scale =
            args.weights == nullptr ? args.bag_scale[bag] : args.weights[slot] * args.bag_scale[bag];
        const float* from = args.gradient + bag * args.gradient_stride + c;
        total = multiply_add(n == lanes ? load(from) : load_first(from, n), splat(scale), total);
      }
      n == lanes ? store(scratch + c, total) : store_first(scratch + c, total, n);
      if constexpr (norm) squares = multiply_add(total, total, squares);
    }
    const index_t r = args.slots.row(first);
    std::byte* const row = args.rows + r * args.format.stride_bytes();
    float row_squares = 0;
    if constexpr (norm) row_squares = add_lanes(squares);
    step_row<Optimizer>(rows, row_values<Element>(row, width), scratch, args.format.state(row), width,
                        rounding, r, norm ? &row_squares : nullptr);
  }
}
