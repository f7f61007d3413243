// The kernels of Dice, compiled once for each region. No include guard: see simd/foreach_region.hpp. The
// parameters of the columns of a vector stay in registers for a block of rows.

// Lanes behind the last column: mean, variance and x are 0 there, and nothing of them is stored.
struct dice_vector {
  vector_f32 mean;
  vector_f32 scale;
  vector_f32 alpha;
};
template <class Place>
DEEPREC_INLINE dice_vector dice_at(const ::deeprec::detail::dice_columns& columns, Place at) {
  const vector_f32 spread = sqrt(load_at(columns.variance, at) + splat(columns.epsilon));
  return {load_at(columns.mean, at), splat(1.0F) / spread, load_at(columns.alpha, at)};
}

template <class Place>
DEEPREC_INLINE void dice_block(const dice_vector& of, const ::deeprec::detail::float_rows<const float>& x,
                               index_t rows, float* y, index_t y_stride, Place at) {
  for (index_t i = 0; i < rows; ++i) {
    const vector_f32 value = load_at(x.row(i), at);
    store_at(y + i * y_stride, result_of(region{}, op::dice{}, value, of.mean, of.scale, of.alpha), at);
  }
}
inline constexpr index_t dice_rows_at_once = 16;

/// y of rows of x; y may be x.
inline void dice_rows(region, const ::deeprec::detail::dice_columns& columns,
                      const ::deeprec::detail::float_rows<const float>& x, index_t rows, index_t width,
                      float* y, index_t y_stride) {
  for (index_t i = 0; i < rows; i += dice_rows_at_once) {
    const index_t count = rows - i < dice_rows_at_once ? rows - i : dice_rows_at_once;
    const ::deeprec::detail::float_rows<const float> from{x.row(i), x.stride};
    float* const to = y + i * y_stride;
    index_t j = 0;
    for (; j + lanes <= width; j += lanes) {
      dice_block(dice_at(columns, full_place{j}), from, count, to, y_stride, full_place{j});
    }
    if (j < width) {
      const part_place last{j, static_cast<int>(width - j)};
      dice_block(dice_at(columns, last), from, count, to, y_stride, last);
    }
  }
}

template <class Place>
DEEPREC_INLINE void distances_of_column(const float* about,
                                        const ::deeprec::detail::float_rows<const float>& x, index_t rows,
                                        float* sums, float* squares, Place at) {
  const vector_f32 from = load_at(about, at), shrink = splat(::deeprec::detail::dice_shrink);
  vector_f32 total = zero(), total_squares = zero();
  for (index_t i = 0; i < rows;) {
    vector_f32 part = zero(), part_squares = zero();
    const index_t stop = rows - i < ::deeprec::detail::dice_part ? rows : i + ::deeprec::detail::dice_part;
    for (; i < stop; ++i) {
      const vector_f32 distance = load_at(x.row(i), at) - from;
      part = multiply_add(distance, shrink, part);
      part_squares = multiply_add(distance, distance, part_squares);
    }
    total = total + part;
    total_squares = total_squares + part_squares;
  }
  store_at(sums, total, at);
  store_at(squares, total_squares, at);
}

/// sums[j] = the sum of (x - about) dice_shrink, squares[j] = the sum of (x - about)^2.
inline void sum_distances(region, const float* about, const ::deeprec::detail::float_rows<const float>& x,
                          index_t rows, index_t width, float* sums, float* squares) {
  index_t j = 0;
  for (; j + lanes <= width; j += lanes) distances_of_column(about, x, rows, sums, squares, full_place{j});
  if (j < width) {
    distances_of_column(about, x, rows, sums, squares, part_place{j, static_cast<int>(width - j)});
  }
}

// Of one vector: u = (x - mean) scale, and the gradient h of u, which reaches x through mean and variance.
struct dice_gradient {
  vector_f32 u;
  vector_f32 p;
  vector_f32 h;
};
DEEPREC_INLINE vector_f32 standing_of(const dice_vector& of, vector_f32 x) {
  return (x - of.mean) * of.scale;
}
DEEPREC_INLINE dice_gradient gradient_at(const dice_vector& of, vector_f32 x, vector_f32 g, vector_f32 u,
                                         vector_f32 p) {
  const vector_f32 slope = p * (splat(1.0F) - p);
  return {u, p, g * x * (splat(1.0F) - of.alpha) * slope};
}

template <bool Keep, class Place>
DEEPREC_INLINE void dice_sums_of_column(const dice_vector& of,
                                        const ::deeprec::detail::float_rows<const float>& x,
                                        const ::deeprec::detail::float_rows<const float>& g, index_t rows,
                                        float* kept, index_t kept_stride, float* to_alpha, float* to_mean,
                                        float* to_spread, Place at) {
  vector_f32 total_alpha = zero(), total_mean = zero(), total_spread = zero();
  for (index_t i = 0; i < rows;) {
    vector_f32 of_alpha = zero(), of_mean = zero(), of_spread = zero();
    const index_t stop = rows - i < ::deeprec::detail::dice_part ? rows : i + ::deeprec::detail::dice_part;
    for (; i < stop; ++i) {
      const vector_f32 value = load_at(x.row(i), at);
      const vector_f32 gradient = load_at(g.row(i), at);
      const vector_f32 u = standing_of(of, value);
      const vector_f32 p = sigmoid_of(u);
      if constexpr (Keep) store_at(kept + i * kept_stride, p, at);
      const dice_gradient d = gradient_at(of, value, gradient, u, p);
      of_alpha = multiply_add(splat(1.0F) - d.p, gradient * value, of_alpha);
      of_mean = of_mean + d.h;
      of_spread = multiply_add(d.h, d.u, of_spread);
    }
    total_alpha = total_alpha + of_alpha;
    total_mean = total_mean + of_mean;
    total_spread = total_spread + of_spread;
  }
  store_at(to_alpha, total_alpha, at);
  store_at(to_mean, total_mean, at);
  store_at(to_spread, total_spread, at);
}

template <class Place>
DEEPREC_INLINE void dice_sums_at(const dice_vector& of, const ::deeprec::detail::float_rows<const float>& x,
                                 const ::deeprec::detail::float_rows<const float>& g, index_t rows,
                                 float* kept, index_t kept_stride, float* to_alpha, float* to_mean,
                                 float* to_spread, Place at) {
  if (kept != nullptr) {
    dice_sums_of_column<true>(of, x, g, rows, kept, kept_stride, to_alpha, to_mean, to_spread, at);
  } else {
    dice_sums_of_column<false>(of, x, g, rows, kept, kept_stride, to_alpha, to_mean, to_spread, at);
  }
}

/// Sums over rows: the gradient of alpha, of h, and of h u. p of every element is kept where `kept` is not
/// null.
inline void dice_sums(region, const ::deeprec::detail::dice_columns& columns,
                      const ::deeprec::detail::float_rows<const float>& x,
                      const ::deeprec::detail::float_rows<const float>& g, index_t rows, index_t width,
                      float* kept, index_t kept_stride, float* to_alpha, float* to_mean, float* to_spread) {
  index_t j = 0;
  for (; j + lanes <= width; j += lanes) {
    const full_place at{j};
    dice_sums_at(dice_at(columns, at), x, g, rows, kept, kept_stride, to_alpha, to_mean, to_spread, at);
  }
  if (j < width) {
    const part_place at{j, static_cast<int>(width - j)};
    dice_sums_at(dice_at(columns, at), x, g, rows, kept, kept_stride, to_alpha, to_mean, to_spread, at);
  }
}

// `Kept`: `to` holds p.
template <bool Kept, class Place>
DEEPREC_INLINE void dice_block_backward(const dice_vector& of,
                                        const ::deeprec::detail::float_rows<const float>& x,
                                        const ::deeprec::detail::float_rows<const float>& g, index_t rows,
                                        const float* mean_h, const float* mean_hu, float* to,
                                        index_t to_stride, Place at) {
  const vector_f32 h0 = load_at(mean_h, at);
  const vector_f32 hu = load_at(mean_hu, at);
  for (index_t i = 0; i < rows; ++i) {
    const vector_f32 gradient = load_at(g.row(i), at);
    const vector_f32 value = load_at(x.row(i), at);
    const vector_f32 u = standing_of(of, value);
    vector_f32 p;
    if constexpr (Kept) {
      p = load_at(static_cast<const float*>(to + i * to_stride), at);
    } else {
      p = sigmoid_of(u);
    }
    const dice_gradient d = gradient_at(of, value, gradient, u, p);
    const vector_f32 direct = gradient * multiply_add(splat(1.0F) - of.alpha, d.p, of.alpha);
    const vector_f32 through = d.h - h0 - d.u * hu;
    store_at(to + i * to_stride, multiply_add(of.scale, through, direct), at);
  }
}

template <class Place>
DEEPREC_INLINE void dice_block_backward_at(const dice_vector& of,
                                           const ::deeprec::detail::float_rows<const float>& x,
                                           const ::deeprec::detail::float_rows<const float>& g, index_t rows,
                                           bool kept, const float* mean_h, const float* mean_hu, float* to,
                                           index_t to_stride, Place at) {
  if (kept) {
    dice_block_backward<true>(of, x, g, rows, mean_h, mean_hu, to, to_stride, at);
  } else {
    dice_block_backward<false>(of, x, g, rows, mean_h, mean_hu, to, to_stride, at);
  }
}

/// The gradient of rows of x, for the means of h and h u over the batch; it may be the gradient of y.
/// `kept`: it holds p.
inline void dice_rows_backward(region, const ::deeprec::detail::dice_columns& columns,
                               const ::deeprec::detail::float_rows<const float>& x,
                               const ::deeprec::detail::float_rows<const float>& g, index_t rows,
                               index_t width, bool kept, const float* mean_h, const float* mean_hu, float* to,
                               index_t to_stride) {
  for (index_t i = 0; i < rows; i += dice_rows_at_once) {
    const index_t count = rows - i < dice_rows_at_once ? rows - i : dice_rows_at_once;
    const ::deeprec::detail::float_rows<const float> values{x.row(i), x.stride};
    const ::deeprec::detail::float_rows<const float> gradients{g.row(i), g.stride};
    float* const out = to + i * to_stride;
    index_t j = 0;
    for (; j + lanes <= width; j += lanes) {
      const full_place at{j};
      dice_block_backward_at(dice_at(columns, at), values, gradients, count, kept, mean_h, mean_hu, out,
                             to_stride, at);
    }
    if (j < width) {
      const part_place at{j, static_cast<int>(width - j)};
      dice_block_backward_at(dice_at(columns, at), values, gradients, count, kept, mean_h, mean_hu, out,
                             to_stride, at);
    }
  }
}
