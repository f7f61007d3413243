// The kernels of the attention unit, compiled once for each region. No include guard: see
// simd/foreach_region.hpp.

template <class Place>
DEEPREC_INLINE void attention_columns(const float* query, const float* key, index_t width, float* to,
                                      Place at) {
  const vector_f32 q = load_at(query, at);
  const vector_f32 k = load_at(key, at);
  store_at(to, q, at);
  store_at(to + width, k, at);
  store_at(to + 2 * width, q - k, at);
  store_at(to + 3 * width, q * k, at);
}

/// The rows [q, k, q - k, q k] of consecutive positions of one sample.
inline void attention_rows(region, const float* query, const ::deeprec::detail::history& in,
                           const ::deeprec::detail::float_rows<float>& out) {
  const index_t width = in.width;
  for (index_t p = 0; p < in.length; ++p) {
    const float* const key = in.keys.row(p);
    float* const to = out.row(p);
    index_t j = 0;
    for (; j + lanes <= width; j += lanes) attention_columns(query, key, width, to, full_place{j});
    if (j < width) attention_columns(query, key, width, to, part_place{j, static_cast<int>(width - j)});
  }
}

// The gradients of one vector of columns, over all positions.
template <bool Add, class Place>
DEEPREC_INLINE void attention_columns_backward(const float* query, const ::deeprec::detail::history& in,
                                               const ::deeprec::detail::float_rows<const float>& gradient,
                                               float* to_query,
                                               const ::deeprec::detail::float_rows<float>& to_keys,
                                               Place at) {
  const vector_f32 q = load_at(query, at);
  vector_f32 sum = zero();
  for (index_t p = 0; p < in.length; ++p) {
    const float* const g = gradient.row(p);
    const vector_f32 g2 = load_at(g + 2 * in.width, at);
    const vector_f32 g3 = load_at(g + 3 * in.width, at);
    sum = sum + multiply_add(g3, load_at(in.keys.row(p), at), load_at(g, at) + g2);
    float* const to = to_keys.row(p);
    vector_f32 of_key = multiply_add(g3, q, load_at(g + in.width, at) - g2);
    if constexpr (Add) of_key = load_at(to, at) + of_key;
    store_at(to, of_key, at);
  }
  store_at(to_query, sum, at);
}

/// The gradients of attention_rows for a whole sample. `Add`: those of the keys are added to what is there.
template <bool Add>
inline void attention_rows_backward(region, const float* query, const ::deeprec::detail::history& in,
                                    const ::deeprec::detail::float_rows<const float>& gradient,
                                    float* to_query, const ::deeprec::detail::float_rows<float>& to_keys) {
  index_t j = 0;
  for (; j + lanes <= in.width; j += lanes) {
    attention_columns_backward<Add>(query, in, gradient, to_query, to_keys, full_place{j});
  }
  if (j < in.width) {
    const part_place last{j, static_cast<int>(in.width - j)};
    attention_columns_backward<Add>(query, in, gradient, to_query, to_keys, last);
  }
}

// The weighted sums of `Vectors` vectors of columns, one after the other.
template <int Vectors, class Place>
DEEPREC_INLINE void weighted_columns(const ::deeprec::detail::float_rows<const float>& weights,
                                     const ::deeprec::detail::history& in, float* out, Place at) {
  vector_f32 sum[Vectors];
  for (int v = 0; v < Vectors; ++v) sum[v] = zero();
  for (index_t p = 0; p < in.length; ++p) {
    const vector_f32 w = splat(*weights.row(p));
    const float* const key = in.keys.row(p);
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) sum[v] = multiply_add(w, load_at(key + v * lanes, at), sum[v]);
  }
#pragma GCC unroll 4
  for (int v = 0; v < Vectors; ++v) store_at(out + v * lanes, sum[v], at);
}

/// out = the sum of weight times key; 0 without keys.
inline void weighted_sum(region, const ::deeprec::detail::float_rows<const float>& weights,
                         const ::deeprec::detail::history& in, float* out) {
  index_t j = 0;
  for (; j + 4 * lanes <= in.width; j += 4 * lanes) weighted_columns<4>(weights, in, out, full_place{j});
  for (; j + lanes <= in.width; j += lanes) weighted_columns<1>(weights, in, out, full_place{j});
  if (j < in.width) weighted_columns<1>(weights, in, out, part_place{j, static_cast<int>(in.width - j)});
}

/// The softmax of the scores of one sample; weights may be the scores.
inline void softmax_scores(region, const ::deeprec::detail::float_rows<const float>& scores, index_t length,
                           const ::deeprec::detail::float_rows<float>& weights) {
  if (length == 0) return;
  constexpr index_t chunk = 4 * lanes;
  float largest = *scores.row(0);
  for (index_t p = 1; p < length; ++p) largest = *scores.row(p) > largest ? *scores.row(p) : largest;
  float sum = 0;
  for (index_t from = 0; from < length; from += chunk) {
    const index_t n = length - from < chunk ? length - from : chunk;
    alignas(64) float x[chunk] = {};
    for (index_t i = 0; i < n; ++i) x[i] = *scores.row(from + i) - largest;
    for (index_t i = 0; i < n; i += lanes) store(x + i, exponential(load(x + i)));
    for (index_t i = 0; i < n; ++i) sum += *weights.row(from + i) = x[i];
  }
  for (index_t p = 0; p < length; ++p) *weights.row(p) /= sum;
}

// dot + gradient * key, and the gradient of the key.
template <bool Add, class Place>
DEEPREC_INLINE vector_f32 weighted_columns_backward(vector_f32 w, const float* key, const float* gradient,
                                                    vector_f32 dot, float* to, Place at) {
  const vector_f32 g = load_at(gradient, at);
  const vector_f32 k = load_at(key, at);
  if constexpr (Add) {
    store_at(to, multiply_add(w, g, load_at(to, at)), at);
  } else {
    store_at(to, w * g, at);
  }
  return multiply_add(g, k, dot);
}

/// The gradients of weighted_sum, of the weights and the keys. `Add`: as attention_rows_backward.
template <bool Add>
inline void weighted_sum_backward(region, const ::deeprec::detail::float_rows<const float>& weights,
                                  const ::deeprec::detail::history& in, const float* gradient,
                                  const ::deeprec::detail::float_rows<float>& to_weights,
                                  const ::deeprec::detail::float_rows<float>& to_keys) {
  for (index_t p = 0; p < in.length; ++p) {
    const vector_f32 w = splat(*weights.row(p));
    const float* const key = in.keys.row(p);
    float* const to = to_keys.row(p);
    vector_f32 dot = zero();
    index_t j = 0;
    for (; j + lanes <= in.width; j += lanes) {
      dot = weighted_columns_backward<Add>(w, key, gradient, dot, to, full_place{j});
    }
    if (j < in.width) {
      const part_place last{j, static_cast<int>(in.width - j)};
      dot = weighted_columns_backward<Add>(w, key, gradient, dot, to, last);
    }
    *to_weights.row(p) = add_lanes(dot);
  }
}

/// From the gradient of the weights of one sample to that of its scores, in place: w (d - the sum of w d).
inline void softmax_backward(region, const ::deeprec::detail::float_rows<const float>& weights,
                             index_t length, const ::deeprec::detail::float_rows<float>& gradient) {
  float mean = 0;
  for (index_t p = 0; p < length; ++p) mean += *weights.row(p) * *gradient.row(p);
  for (index_t p = 0; p < length; ++p) *gradient.row(p) = *weights.row(p) * (*gradient.row(p) - mean);
}
