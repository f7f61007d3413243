// The kernels of normalize_rows, compiled once for each region. No include guard: see
// simd/foreach_region.hpp.

// The sum of x[j] y[j], in two vectors of partial sums.
DEEPREC_INLINE float dot_of_row(const float* x, const float* y, index_t n) {
  vector_f32 even = zero(), odd = zero();
  index_t j = 0;
  for (; j + 2 * lanes <= n; j += 2 * lanes) {
    even = multiply_add(load(x + j), load(y + j), even);
    odd = multiply_add(load(x + j + lanes), load(y + j + lanes), odd);
  }
  if (j + lanes <= n) {
    even = multiply_add(load(x + j), load(y + j), even);
    j += lanes;
  }
  if (j < n) {
    const int left = static_cast<int>(n - j);
    odd = multiply_add(load_first(x + j, left), load_first(y + j, left), odd);
  }
  return add_lanes(even + odd);
}

DEEPREC_INLINE void scale_floats(const float* x, float factor, float* y, index_t n) {
  const vector_f32 by = splat(factor);
  index_t j = 0;
  for (; j + lanes <= n; j += lanes) store(y + j, load(x + j) * by);
  if (j < n) {
    const int left = static_cast<int>(n - j);
    store_first(y + j, load_first(x + j, left) * by, left);
  }
}

// NaN where the norm is.
DEEPREC_INLINE double inverse_norm_of(double squares, float epsilon) {
  const double norm = __builtin_sqrt(squares);
  const auto least = static_cast<double>(epsilon);
  return 1 / (norm <= least ? least : norm);
}

// Rows whose sum of squares leaves the range of float, and rows of zeros: the squares of floats are in the
// range of double.
DEEPREC_APART inline float normalize_row_in_double(const float* x, float* y, index_t n, float epsilon) {
  double squares = 0;
  for (index_t j = 0; j < n; ++j) squares += static_cast<double>(x[j]) * static_cast<double>(x[j]);
  const double inverse = inverse_norm_of(squares, epsilon);
  for (index_t j = 0; j < n; ++j) y[j] = static_cast<float>(static_cast<double>(x[j]) * inverse);
  return static_cast<float>(inverse);
}

/// y = x / max(|x|, epsilon), which may be x itself; returns 1 / max(|x|, epsilon).
inline float normalize_row(region, const float* x, float* y, index_t n, float epsilon) {
  const float squares = dot_of_row(x, x, n);
  if (!(squares >= 0x1p-80F && squares <= 0x1p120F)) return normalize_row_in_double(x, y, n, epsilon);
  const auto inverse = static_cast<float>(inverse_norm_of(static_cast<double>(squares), epsilon));
  scale_floats(x, inverse, y, n);
  return inverse;
}

/// dx = inverse (dy - y (y . dy)), and inverse dy where the norm was no larger than epsilon. dx may be dy or
/// y.
inline void normalize_row_backward(region, const float* y, float inverse, const float* dy, float* dx,
                                   index_t n, float epsilon) {
  if (inverse >= ::deeprec::detail::inverse_of_epsilon(epsilon)) return scale_floats(dy, inverse, dx, n);
  const vector_f32 by = splat(inverse), along = splat(-dot_of_row(y, dy, n));
  index_t j = 0;
  for (; j + lanes <= n; j += lanes) store(dx + j, multiply_add(load(y + j), along, load(dy + j)) * by);
  if (j < n) {
    const int left = static_cast<int>(n - j);
    store_first(dx + j, multiply_add(load_first(y + j, left), along, load_first(dy + j, left)) * by, left);
  }
}
