// The update kernels, compiled once for each region. No include guard: see update_kernels.hpp.

// One vector of columns of one row: weights, gradient and the element states.
template <class Element, class Step, int States>
DEEPREC_INLINE void step_columns(const Step& step, Element* weights, const float* gradient,
                                 float* state, index_t width, int n) {
  const bool whole = n == lanes;
  const vector_f32 weight = whole ? load(weights) : load_first(weights, n);
  const vector_f32 g = whole ? load(gradient) : load_first(gradient, n);
  vector_f32 stepped;
  if constexpr (States == 0) {
    stepped = step(weight, g);
  } else if constexpr (States == 1) {
    vector_f32 first = whole ? load(state) : load_first(state, n);
    stepped = step(weight, g, first);
    whole ? store(state, first) : store_first(state, first, n);
  } else {
    static_assert(States == 2);
    vector_f32 first = whole ? load(state) : load_first(state, n);
    vector_f32 second = whole ? load(state + width) : load_first(state + width, n);
    stepped = step(weight, g, first, second);
    whole ? store(state, first) : store_first(state, first, n);
    whole ? store(state + width, second) : store_first(state + width, second, n);
  }
  whole ? store(weights, stepped) : store_first(weights, stepped, n);
}

/// The groups [begin, end) of the sorted slots: gradient of each row, then one optimizer step.
/// scratch holds D floats.
template <class Element, class Optimizer, class Args>
void update_rows(region, const Optimizer& optimizer, const Args& args, index_t begin, index_t end,
                 float* scratch) {
  const index_t width = args.format.width();
  for (index_t group = begin; group < end; ++group) {
    const index_t first = args.slots.start(group);
    const index_t last = args.slots.start(group + 1);
    vector_f32 squares = zero();
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
      if constexpr (Optimizer::needs_mean_square) squares = multiply_add(total, total, squares);
    }
    std::byte* const row = args.rows + args.slots.row(first) * args.format.stride_bytes();
    float* const state = args.format.state(row);
    float mean_square = 0;
    if constexpr (Optimizer::needs_mean_square) {
      mean_square = add_lanes(squares) / static_cast<float>(width);
    }
    const auto step = optimizer.begin_row(state, mean_square);
    auto* const weights = static_cast<Element*>(static_cast<void*>(row));
    for (index_t c = 0; c < width; c += lanes) {
      const int n = width - c < lanes ? static_cast<int>(width - c) : lanes;
      step_columns<Element, decltype(step), Optimizer::element_state>(
          step, weights + c, scratch + c,
          Optimizer::element_state == 0 ? nullptr : state + Optimizer::row_state + c, width, n);
    }
  }
}
