// The kernels of the factorization machine's interaction, compiled once for each region. No include guard:
// see fm_interaction_kernels.hpp.
//
// A panel is a few vectors of columns, whose sums stay in registers over all tables of a sample:
//
//   pooled   v_1: | panel | panel | rest |  v_2: | panel | ...
//   forward  pairs += v_t * sum, sum += v_t         pairs = sum over i < t of v_i v_t
//   backward sum += v_t; then g * (sum - v_t), while the sample is in the first-level cache

// `Narrow`: the first n lanes.
template <bool Narrow>
DEEPREC_INLINE vector_f32 fm_load(const float* p, int n) {
  if constexpr (Narrow) {
    return load_first(p, n);
  } else {
    static_cast<void>(n);
    return load(p);
  }
}
template <bool Narrow>
DEEPREC_INLINE void fm_store(float* p, vector_f32 x, int n) {
  if constexpr (Narrow) {
    store_first(p, x, n);
  } else {
    static_cast<void>(n);
    store(p, x);
  }
}

// The sums over pairs of the vectors at `at`, which lie `width` floats apart; `total` adds them up.
template <int Vectors, bool Narrow>
DEEPREC_INLINE void fm_panel(const ::deeprec::detail::fm_forward_args& args, const float* at, int n,
                             float* to, vector_f32& total) {
  vector_f32 sum[Vectors], pairs[Vectors];
#pragma GCC unroll 4
  for (int v = 0; v < Vectors; ++v) {
    sum[v] = fm_load<Narrow>(at + v * lanes, n);
    pairs[v] = zero();
  }
  for (index_t t = 1; t < args.tables; ++t) {
    at += args.width;
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      const vector_f32 x = fm_load<Narrow>(at + v * lanes, n);
      pairs[v] = multiply_add(x, sum[v], pairs[v]);
      sum[v] = sum[v] + x;
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < Vectors; ++v) {
    if (args.summed) {
      total = total + pairs[v];
    } else {
      fm_store<Narrow>(to + v * lanes, pairs[v], n);
    }
  }
}

/// Samples [begin, end) of at least one vector.
inline void fm_forward(region, const ::deeprec::detail::fm_forward_args& args, index_t begin, index_t end) {
  const index_t width = args.width;
  for (index_t b = begin; b < end; ++b) {
    const float* const pooled = args.pooled.row(b);
    float* const to = args.output.row(b);
    vector_f32 total = zero();
    index_t j = 0;
    for (; j + 4 * lanes <= width; j += 4 * lanes) fm_panel<4, false>(args, pooled + j, lanes, to + j, total);
    for (; j + 2 * lanes <= width; j += 2 * lanes) fm_panel<2, false>(args, pooled + j, lanes, to + j, total);
    for (; j + lanes <= width; j += lanes) fm_panel<1, false>(args, pooled + j, lanes, to + j, total);
    if (j < width) fm_panel<1, true>(args, pooled + j, static_cast<int>(width - j), to + j, total);
    if (args.summed) *to = add_lanes(total);
  }
}

// The gradients of the vectors at `from`, for the gradients of their sums over pairs.
template <int Vectors, bool Narrow>
DEEPREC_INLINE void fm_panel_backward(const ::deeprec::detail::fm_backward_args& args, const float* from,
                                      int n, const float* output_gradient, float* to) {
  vector_f32 sum[Vectors], gradient[Vectors];
#pragma GCC unroll 4
  for (int v = 0; v < Vectors; ++v) {
    sum[v] = zero();
    gradient[v] = args.summed ? splat(*output_gradient) : fm_load<Narrow>(output_gradient + v * lanes, n);
  }
  const float* at = from;
  for (index_t t = 0; t < args.tables; ++t, at += args.width) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) sum[v] = sum[v] + fm_load<Narrow>(at + v * lanes, n);
  }
  at = from;
  for (index_t t = 0; t < args.tables; ++t, at += args.width, to += args.width) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      const vector_f32 others = sum[v] - fm_load<Narrow>(at + v * lanes, n);
      fm_store<Narrow>(to + v * lanes, gradient[v] * others, n);
    }
  }
}

/// Samples [begin, end).
inline void fm_backward(region, const ::deeprec::detail::fm_backward_args& args, index_t begin, index_t end) {
  const index_t width = args.width;
  for (index_t b = begin; b < end; ++b) {
    const float* const from = args.pooled.row(b);
    const float* const gradient = args.output_gradient.row(b);
    const index_t step = args.summed ? 0 : 1;
    float* const to = args.pooled_gradient.row(b);
    index_t j = 0;
    for (; j + 4 * lanes <= width; j += 4 * lanes) {
      fm_panel_backward<4, false>(args, from + j, lanes, gradient + step * j, to + j);
    }
    for (; j + 2 * lanes <= width; j += 2 * lanes) {
      fm_panel_backward<2, false>(args, from + j, lanes, gradient + step * j, to + j);
    }
    for (; j + lanes <= width; j += lanes) {
      fm_panel_backward<1, false>(args, from + j, lanes, gradient + step * j, to + j);
    }
    if (j < width) {
      fm_panel_backward<1, true>(args, from + j, static_cast<int>(width - j), gradient + step * j, to + j);
    }
  }
}
