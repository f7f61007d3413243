// The kernels of the factorization machine's interaction, compiled once for each region. No include guard:
// see simd/foreach_region.hpp.
//
// A panel is a few vectors of columns, whose sums stay in registers over all tables of a sample:
//
//   pooled   v_1: | panel | panel | rest |  v_2: | panel | ...
//   forward  pairs += v_t * sum, sum += v_t         pairs = sum over i < t of v_i v_t
//   backward sum += v_t; then g * (sum - v_t), while the sample is in the first-level cache

// The sums over pairs of the vectors in `from`, which lie `width` floats apart; `total` adds them up.
template <int Vectors, class Place>
DEEPREC_INLINE void fm_panel(const ::deeprec::detail::fm_forward_args& args, const float* from, Place at,
                             float* to, vector_f32& total) {
  vector_f32 sum[Vectors], pairs[Vectors];
#pragma GCC unroll 4
  for (int v = 0; v < Vectors; ++v) {
    sum[v] = load_at(from + v * lanes, at);
    pairs[v] = zero();
  }
  for (index_t t = 1; t < args.tables; ++t) {
    from += args.width;
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      const vector_f32 x = load_at(from + v * lanes, at);
      pairs[v] = multiply_add(x, sum[v], pairs[v]);
      sum[v] = sum[v] + x;
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < Vectors; ++v) {
    if (args.summed) {
      total = total + pairs[v];
    } else {
      store_at(to + v * lanes, pairs[v], at);
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
    for (; j + 4 * lanes <= width; j += 4 * lanes) fm_panel<4>(args, pooled, full_place{j}, to, total);
    for (; j + 2 * lanes <= width; j += 2 * lanes) fm_panel<2>(args, pooled, full_place{j}, to, total);
    for (; j + lanes <= width; j += lanes) fm_panel<1>(args, pooled, full_place{j}, to, total);
    if (j < width) fm_panel<1>(args, pooled, part_place{j, static_cast<int>(width - j)}, to, total);
    if (args.summed) *to = add_lanes(total);
  }
}

// The gradients of the vectors at `from`, for the gradients of their sums over pairs.
template <int Vectors, class Place>
DEEPREC_INLINE void fm_panel_backward(const ::deeprec::detail::fm_backward_args& args, const float* from,
                                      Place at, const float* output_gradient, float* to) {
  vector_f32 sum[Vectors], gradient[Vectors];
#pragma GCC unroll 4
  for (int v = 0; v < Vectors; ++v) {
    sum[v] = zero();
    gradient[v] = args.summed ? splat(*output_gradient) : load_at(output_gradient + v * lanes, at);
  }
  const float* vector = from;
  for (index_t t = 0; t < args.tables; ++t, vector += args.width) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) sum[v] = sum[v] + load_at(vector + v * lanes, at);
  }
  vector = from;
  for (index_t t = 0; t < args.tables; ++t, vector += args.width, to += args.width) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      const vector_f32 others = sum[v] - load_at(vector + v * lanes, at);
      store_at(to + v * lanes, gradient[v] * others, at);
    }
  }
}

/// Samples [begin, end).
inline void fm_backward(region, const ::deeprec::detail::fm_backward_args& args, index_t begin, index_t end) {
  const index_t width = args.width;
  for (index_t b = begin; b < end; ++b) {
    const float* const from = args.pooled.row(b);
    const float* const gradient = args.output_gradient.row(b);
    float* const to = args.pooled_gradient.row(b);
    index_t j = 0;
    for (; j + 4 * lanes <= width; j += 4 * lanes) {
      fm_panel_backward<4>(args, from, full_place{j}, gradient, to);
    }
    for (; j + 2 * lanes <= width; j += 2 * lanes) {
      fm_panel_backward<2>(args, from, full_place{j}, gradient, to);
    }
    for (; j + lanes <= width; j += lanes) {
      fm_panel_backward<1>(args, from, full_place{j}, gradient, to);
    }
    if (j < width) {
      fm_panel_backward<1>(args, from, part_place{j, static_cast<int>(width - j)}, gradient, to);
    }
  }
}
