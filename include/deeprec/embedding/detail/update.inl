// The update kernels, compiled once for each region. No include guard: see update_kernels.hpp.

// Fetches the rows of the groups [begin, end), their state included.
template <class Args>
DEEPREC_INLINE void fetch_rows_of_groups(const Args& args, index_t begin, index_t end) {
  const index_t stride = args.format.stride_bytes();
  for (index_t group = begin; group < end; ++group) {
    const std::byte* const row = args.rows + args.groups.row(group) * stride;
    for (index_t line = 0; line < stride; line += 64) __builtin_prefetch(row + line, 1, 3);
    if ((reinterpret_cast<std::uintptr_t>(row) & 63) != 0) __builtin_prefetch(row + stride - 1, 1, 3);
  }
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

// One step of the row of a group.
template <class Element, class Optimizer, class Rows, class Rounding, class Args>
DEEPREC_INLINE void step_group(const Rows& rows, const Rounding& rounding, const Args& args, index_t group,
                               float* gradient) {
  const index_t width = args.format.width();
  const index_t r = args.groups.row(group);
  std::byte* const row = args.rows + r * args.format.stride_bytes();
  const row_values<Element> values(row, width);
  if (args.max_norm > 0) unclip(values, gradient, width, args.max_norm);
  step_row<Optimizer>(rows, values, gradient, args.format.state(row), width, rounding, r);
}

/// One optimizer step for the rows of the groups [begin, end), those of more than chunk_slots slots excepted.
/// `rows` is what prepare() made of an Optimizer; scratch holds (groups_at_once, D) floats. How the values of
/// an Element are read and written says row_values in optim/detail/apply_row.inl, or a specialisation of it.
template <class Element, class Optimizer, class Rows, class Rounding, class Args>
void update_rows(region here, const Rows& rows, const Rounding& rounding, const Args& args, index_t begin,
                 index_t end, float* scratch) {
  constexpr index_t at_once = ::deeprec::detail::groups_at_once;
  const index_t width = args.format.width();
  auto pooled = args.gradient;
  fetch_rows_of_groups(args, begin, begin + at_once < end ? begin + at_once : end);
  for (index_t first = begin; first < end; first += at_once) {
    const index_t last = first + at_once < end ? first + at_once : end;
    fetch_rows_of_groups(args, last, last + at_once < end ? last + at_once : end);
    pooled.out = scratch;
    pooled.borders = offset_borders<index_t>{args.groups.starts() + first, -1, -1};
    pool_bags<float>(here, ::deeprec::detail::gradient_policy{}, pooled, 0, last - first);
    for (index_t group = first; group < last; ++group) {
      const index_t slots = args.groups.starts()[group + 1] - args.groups.starts()[group];
      if (slots > ::deeprec::detail::chunk_slots) continue;
      step_group<Element, Optimizer>(rows, rounding, args, group, scratch + (group - first) * width);
    }
  }
}

/// The same, for one group whose gradient the caller has made.
template <class Element, class Optimizer, class Rows, class Rounding, class Args>
void update_row(region, const Rows& rows, const Rounding& rounding, const Args& args, index_t group,
                float* gradient) {
  step_group<Element, Optimizer>(rows, rounding, args, group, gradient);
}
