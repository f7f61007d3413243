// The update kernels, compiled once for each region. No include guard: see simd/foreach_region.hpp.

// Prefetches the lines of [begin, begin + bytes). Of long rows up to eight by instructions of their own: one
// that moves along a row sets off the prefetchers for fixed strides, which fetch the lines behind the row.
// For short ones the comparisons cost more than that.
DEEPREC_INLINE void fetch_bytes(const void* begin, index_t bytes) {
  const auto* const first = static_cast<const std::byte*>(begin);
  const auto* line = first - (reinterpret_cast<std::uintptr_t>(first) & 63);
  if (bytes <= 192) {
    for (; line < first + bytes; line += 64) __builtin_prefetch(line, 0, 2);
    return;
  }
  const index_t left = bytes + (first - line);
  __builtin_prefetch(line, 0, 2);
  __builtin_prefetch(line + 64, 0, 2);
  __builtin_prefetch(line + 128, 0, 2);
  __builtin_prefetch(line + 192, 0, 2);
  if (left > 256) __builtin_prefetch(line + 256, 0, 2);
  if (left > 320) __builtin_prefetch(line + 320, 0, 2);
  if (left > 384) __builtin_prefetch(line + 384, 0, 2);
  if (left > 448) __builtin_prefetch(line + 448, 0, 2);
  for (index_t at = 512; at < left; at += 64) __builtin_prefetch(line + at, 0, 2);
}

// Prefetches the row of a group, its state included, and the first gradient row of its sum.
template <class Args>
DEEPREC_INLINE void fetch_group(const Args& args, index_t group) {
  // The masked read of a row shorter than a vector touches a line's length.
  const index_t stride = args.format.stride_bytes();
  fetch_bytes(args.rows.address(group), stride < 64 ? 64 : stride);
  if constexpr (requires { args.format.state_of(group); }) {
    fetch_bytes(args.format.state_of(args.rows.number(group)),
                args.format.state_floats() * index_t{sizeof(float)});
  }
  const index_t sorted_index = args.rows.keys.starts[group];
  const std::byte* const gradient = args.gradients[sorted_index];
  if (sorted_index > 0 && gradient == args.gradients[sorted_index - 1]) return;  // of the same bag
  fetch_bytes(gradient, args.gradient.width * index_t{sizeof(float)});
}

// Turns the gradient of x * min(1, cap / ||x||) into that of x: f * (g - x * (x . g) / ||x||^2) for a row
// that was clipped.
template <class Values>
void unclip(const Values& values, float* gradient, index_t width, float cap) {
  vector_f32 squares = zero();
  vector_f32 products = zero();
  for (index_t c = 0; c < width; c += lanes) {
    const int n = width - c < lanes ? static_cast<int>(width - c) : lanes;
    const vector_f32 x = n == lanes ? values.get(c) : values.get_first(c, n);
    const vector_f32 g = n == lanes ? load(gradient + c) : load_first(gradient + c, n);
    squares = multiply_add(x, x, squares);
    products = multiply_add(x, g, products);
  }
  const float square = add_lanes(squares);
  const float norm = __builtin_sqrtf(square);
  if (!(norm > cap)) return;
  const vector_f32 factor = splat(cap / norm);
  const vector_f32 along = splat(-add_lanes(products) / square);
  for (index_t c = 0; c < width; c += lanes) {
    const int n = width - c < lanes ? static_cast<int>(width - c) : lanes;
    const vector_f32 x = n == lanes ? values.get(c) : values.get_first(c, n);
    const vector_f32 g = n == lanes ? load(gradient + c) : load_first(gradient + c, n);
    const vector_f32 out = factor * multiply_add(x, along, g);
    n == lanes ? store(gradient + c, out) : store_first(gradient + c, out, n);
  }
}

// The same, for the gradient of a group.
template <class Element, class Args>
void unclip_group(const Args args, index_t group, float* gradient) {
  std::byte* const row = args.rows.address(group);
  unclip(row_values<Element>(row, args.format.width()), gradient, args.format.width(), args.max_norm);
}

// One step of the row of a group. `squares`: the sum of the squared gradient, or null.
template <class Element, class Optimizer, class Rows, class Rounding, class Args, class Gradient>
DEEPREC_INLINE void step_group(const Rows& rows, const Rounding& rounding, const Args& args, index_t group,
                               const Gradient& gradient, const float* squares = nullptr) {
  const index_t width = args.format.width();
  const index_t r = args.rows.number(group);
  std::byte* const row = args.rows.address(group);
  float* state = nullptr;
  if constexpr (requires { args.format.state_of(r); }) {  // stored apart from the row
    state = args.format.state_of(r);
  } else {
    state = args.format.state(row);
  }
  step_row<Optimizer>(rows, row_values<Element>(row, width), gradient, state, width, rounding, r, squares);
}

/// One optimizer step for the rows of the groups [begin, end), except those of more than chunk_positions
/// positions. `rows` is the result of prepare() for an Optimizer; scratch holds D floats. The values of an
/// Element are read and written by row_values in optim/detail/apply_row.inl, or a specialisation of it.
///
/// The gradient of a single position is read in place; those of several are summed in scratch. Arguments are
/// passed by value: a compiler must assume that a store to a row changes what a reference refers to.
template <class Element, class Optimizer, class Rows, class Rounding, class Args>
void update_rows(region here, const Rows rows, const Rounding rounding, const Args args, index_t begin,
                 index_t end, float* scratch) {
  const index_t* const starts = args.rows.keys.starts;
  const ::deeprec::kernel_tuning& tuning = *args.gradient.tuning;
  const index_t lines = args.format.stride_bytes() / 64 + 2;
  const index_t most = (tuning.update_lines_ahead + lines - 1) / lines;
  const index_t bounded = most < tuning.most_rows_ahead ? most : tuning.most_rows_ahead;
  const index_t ahead = bounded > 4 ? bounded : 4;
  for (index_t group = begin; group < begin + ahead && group < end; ++group) fetch_group(args, group);
  // Of the last gradient that was read in place: the ids of a bag share it.
  [[maybe_unused]] const float* squared = nullptr;
  [[maybe_unused]] float squared_factor = 0;
  [[maybe_unused]] float squares = 0;
  for (index_t group = begin; group < end; ++group) {
    if (group + ahead < end) fetch_group(args, group + ahead);
    const index_t position = starts[group];
    const index_t positions = starts[group + 1] - position;
    if (positions > ::deeprec::detail::chunk_positions) continue;
    scaled_gradient gradient{scratch, splat(1.0F)};
    const float* known = nullptr;
    if (positions == 1 && !(args.max_norm > 0)) {
      gradient.at = static_cast<const float*>(static_cast<const void*>(args.gradients[position]));
      const float factor = args.gradient.weights == nullptr ? 1.0F : args.gradient.weights[position];
      gradient.factor = splat(factor);
      if constexpr (reads_squares<Optimizer, Rows>()) {
        if (gradient.at != squared || factor != squared_factor) {
          squared = gradient.at;
          squared_factor = factor;
          squares = sum_of_squares(no_transform{}, no_transform{}, gradient, args.format.width());
        }
        known = &squares;
      }
    } else {
      auto pooled = args.gradient;
      pooled.out = scratch;
      pooled.ranges = detail::offset_ranges<index_t>{starts + group, -1, -1};
      pool_bags<float>(here, ::deeprec::detail::gradient_policy{}, pooled, 0, 1);
      if (args.max_norm > 0) unclip_group<Element>(args, group, scratch);
    }
    step_group<Element, Optimizer>(rows, rounding, args, group, gradient, known);
  }
}

/// The same, for one group whose gradient the caller has summed.
template <class Element, class Optimizer, class Rows, class Rounding, class Args>
void update_row(region, const Rows& rows, const Rounding& rounding, const Args& args, index_t group,
                float* gradient) {
  if (args.max_norm > 0) unclip_group<Element>(args, group, gradient);
  step_group<Element, Optimizer>(rows, rounding, args, group, scaled_gradient{gradient, splat(1.0F)});
}
