// Products of a matrix and a vector, by rows: gemm() with one row or one column.

// out[i * out_stride] (+)= dot(row i, x), eight rows at a time.
template <class T>
inline void row_dots(region, const T* rows, index_t stride, index_t count, const T* x, index_t k, float* out,
                     index_t out_stride, bool accumulates) {
  const auto put = [&](index_t i, vector_f32 a) {
    const float dot = add_lanes(a);
    float& to = out[i * out_stride];
    to = accumulates ? to + dot : dot;
  };
  const int tail = static_cast<int>(k % lanes);
  const index_t whole = k - tail;
  index_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const T* r0 = rows + i * stride;
    const T* r1 = r0 + stride;
    const T* r2 = r1 + stride;
    const T* r3 = r2 + stride;
    const T* r4 = r3 + stride;
    const T* r5 = r4 + stride;
    const T* r6 = r5 + stride;
    const T* r7 = r6 + stride;
    vector_f32 a0 = zero(), a1 = zero(), a2 = zero(), a3 = zero();
    vector_f32 a4 = zero(), a5 = zero(), a6 = zero(), a7 = zero();
    index_t p = 0;
    for (; p < whole; p += lanes) {
      const vector_f32 u = load(x + p);
      a0 = multiply_add(load(r0 + p), u, a0);
      a1 = multiply_add(load(r1 + p), u, a1);
      a2 = multiply_add(load(r2 + p), u, a2);
      a3 = multiply_add(load(r3 + p), u, a3);
      a4 = multiply_add(load(r4 + p), u, a4);
      a5 = multiply_add(load(r5 + p), u, a5);
      a6 = multiply_add(load(r6 + p), u, a6);
      a7 = multiply_add(load(r7 + p), u, a7);
    }
    if (tail != 0) {
      const vector_f32 u = load_first(x + p, tail);
      a0 = multiply_add(load_first(r0 + p, tail), u, a0);
      a1 = multiply_add(load_first(r1 + p, tail), u, a1);
      a2 = multiply_add(load_first(r2 + p, tail), u, a2);
      a3 = multiply_add(load_first(r3 + p, tail), u, a3);
      a4 = multiply_add(load_first(r4 + p, tail), u, a4);
      a5 = multiply_add(load_first(r5 + p, tail), u, a5);
      a6 = multiply_add(load_first(r6 + p, tail), u, a6);
      a7 = multiply_add(load_first(r7 + p, tail), u, a7);
    }
    put(i, a0);
    put(i + 1, a1);
    put(i + 2, a2);
    put(i + 3, a3);
    put(i + 4, a4);
    put(i + 5, a5);
    put(i + 6, a6);
    put(i + 7, a7);
  }
  for (; i < count; ++i) {
    const T* r = rows + i * stride;
    vector_f32 a = zero(), b = zero();
    index_t p = 0;
    for (; p + 2 * lanes <= whole; p += 2 * lanes) {
      a = multiply_add(load(r + p), load(x + p), a);
      b = multiply_add(load(r + p + lanes), load(x + p + lanes), b);
    }
    for (; p < whole; p += lanes) a = multiply_add(load(r + p), load(x + p), a);
    if (tail != 0) a = multiply_add(load_first(r + p, tail), load_first(x + p, tail), a);
    put(i, a + b);
  }
}

// out[j] (+)= sum over p of x[p * x_stride] * row p [j], p in order
template <class T>
inline void combine_rows(region, const T* rows, index_t stride, index_t k, const T* x, index_t x_stride,
                         index_t columns, float* out, bool accumulates) {
  constexpr index_t wide = 4 * lanes;
  index_t j = 0;
  for (; j + wide <= columns; j += wide) {
    vector_f32 a0 = zero(), a1 = zero(), a2 = zero(), a3 = zero();
    if (accumulates) {
      a0 = load(out + j);
      a1 = load(out + j + lanes);
      a2 = load(out + j + 2 * lanes);
      a3 = load(out + j + 3 * lanes);
    }
    for (index_t p = 0; p < k; ++p) {
      const vector_f32 f = splat(x[p * x_stride]);
      const T* r = rows + p * stride + j;
      a0 = multiply_add(f, load(r), a0);
      a1 = multiply_add(f, load(r + lanes), a1);
      a2 = multiply_add(f, load(r + 2 * lanes), a2);
      a3 = multiply_add(f, load(r + 3 * lanes), a3);
    }
    store(out + j, a0);
    store(out + j + lanes, a1);
    store(out + j + 2 * lanes, a2);
    store(out + j + 3 * lanes, a3);
  }
  for (; j < columns; j += lanes) {
    const int n = static_cast<int>(columns - j < lanes ? columns - j : lanes);
    vector_f32 a = accumulates ? load_first(out + j, n) : zero();
    for (index_t p = 0; p < k; ++p) {
      a = multiply_add(splat(x[p * x_stride]), load_first(rows + p * stride + j, n), a);
    }
    store_first(out + j, a, n);
  }
}
