// The update kernels, compiled once for each region. No include guard: see update_kernels.hpp.

// One vector of columns of one row: weights, gradient and the element states.
template <class Element, int States, class Step>
DEEPREC_INLINE void step_vector(const Step& step, Element* weights, const float* gradient, float* state,
                                index_t width, int n) {
  const bool whole = n == lanes;
  const vector_f32 weight = whole ? load(weights) : load_first(weights, n);
  const vector_f32 g = whole ? load(gradient) : load_first(gradient, n);
  vector_f32 stepped;
  if constexpr (States == 0) {
    stepped = take_step(step, weight, g);
  } else {
    static_assert(States <= 2, "deeprec::update: an optimizer keeps at most two floats per element. "
                               "Fix: element_state <= 2.");
    vector_f32 first = whole ? load(state) : load_first(state, n);
    if constexpr (States == 1) {
      stepped = take_step(step, weight, g, first);
    } else {
      vector_f32 second = whole ? load(state + width) : load_first(state + width, n);
      stepped = take_step(step, weight, g, first, second);
      whole ? store(state + width, second) : store_first(state + width, second, n);
    }
    whole ? store(state, first) : store_first(state, first, n);
  }
  whole ? store(weights, stepped) : store_first(weights, stepped, n);
}

// True where steps.inl has a vector form of Step; a user's own optimizer has none.
template <class Step, int States>
constexpr bool has_vector_form() {
  if constexpr (States == 0) {
    return requires(const Step& step, vector_f32 v) { take_step(step, v, v); };
  } else if constexpr (States == 1) {
    return requires(const Step& step, vector_f32 v) { take_step(step, v, v, v); };
  } else {
    return requires(const Step& step, vector_f32 v) { take_step(step, v, v, v, v); };
  }
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
    using step_type = std::remove_const_t<decltype(step)>;
    auto* const weights = static_cast<Element*>(static_cast<void*>(row));
    constexpr int states = Optimizer::element_state;
    float* const elements = states == 0 ? nullptr : state + Optimizer::row_state;
    if constexpr (has_vector_form<step_type, states>()) {
      for (index_t c = 0; c < width; c += lanes) {
        const int n = width - c < lanes ? static_cast<int>(width - c) : lanes;
        step_vector<Element, states>(step, weights + c, scratch + c,
                                     states == 0 ? nullptr : elements + c, width, n);
      }
    } else {
      ::deeprec::detail::step_elements<states>(step, weights, scratch, elements, width);
    }
  }
}
