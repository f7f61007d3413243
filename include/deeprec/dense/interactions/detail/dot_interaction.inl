// The kernels of the dot interaction, compiled once for each region. No include guard: see
// simd/foreach_region.hpp.
//
// Forward: rows of the triangle in blocks, over columns of the transposed vectors, so that a lane holds one
// dot product:
//
//   transposed   k=0 | v0 v1 v2 ... v15 | v16 ...       row i += v_i[k] * this, for the rows of a block
//                k=1 | ...
//
// Backward: the gradient of v_i is the sum over j of g_ij v_j. A block of rows shares each v_j:
//
//          j < block      block      j > block
//   row i  g_i0 g_i1 ..   \  g_ji    g_ji              rows of the triangle; its diagonal block; and the
//                         g_ij \                      transpose of the rows below

// Rows of a block: with two vectors for each, as many as registers hold.
inline constexpr int interaction_rows = lanes >= 16 ? 12 : 6;
inline constexpr int interaction_last_rows = interaction_rows / 3;
inline constexpr index_t interaction_columns = 2 * lanes;

DEEPREC_INLINE void copy_floats(const float* from, float* to, index_t n) {
  index_t j = 0;
  for (; j + lanes <= n; j += lanes) store(to + j, load(from + j));
  if (j < n) store_first(to + j, load_first(from + j, static_cast<int>(n - j)), static_cast<int>(n - j));
}

// total += factors x the columns of x from a place on. factors: Rows of `depth`, interaction_depth floats
// apart; x: `depth` rows,
// `step` floats apart.
template <int Rows, int Vectors, class Place>
DEEPREC_INLINE void add_products(const float* factors, const float* x, index_t step, index_t depth, Place at,
                                 vector_f32 (&total)[Rows][Vectors]) {
  for (index_t k = 0; k < depth; ++k, x += step) {
    vector_f32 at_k[Vectors];
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) at_k[v] = load_at(x + v * lanes, at);
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r) {
      const vector_f32 y = splat(factors[r * ::deeprec::detail::interaction_depth + k]);
#pragma GCC unroll 2
      for (int v = 0; v < Vectors; ++v) total[r][v] = multiply_add(y, at_k[v], total[r][v]);
    }
  }
}

// Stores the first n lanes of several vectors.
template <int Vectors>
DEEPREC_INLINE void store_lanes(float* to, const vector_f32 (&x)[Vectors], index_t n) {
#pragma GCC unroll 2
  for (int v = 0; v < Vectors; ++v) {
    const index_t left = n - v * lanes;
    if (left >= lanes) {
      store(to + v * lanes, x[v]);
    } else if (left > 0) {
      store_first(to + v * lanes, x[v], static_cast<int>(left));
    }
  }
}
template <int Vectors>
DEEPREC_INLINE void load_lanes(const float* from, vector_f32 (&x)[Vectors], index_t n) {
#pragma GCC unroll 2
  for (int v = 0; v < Vectors; ++v) {
    const index_t left = n - v * lanes;
    x[v] = left >= lanes ? load(from + v * lanes)
           : left > 0    ? load_first(from + v * lanes, static_cast<int>(left))
                         : zero();
  }
}

// Rows [i, i + Rows) of the triangle, up to the last vector, at the columns from `first` on: the products of
// the columns [from, from + depth), added to what is there unless from is 0.
template <int Rows, int Vectors>
DEEPREC_INLINE void dots_of_rows(const ::deeprec::detail::interacting_vectors& in, index_t i, index_t first,
                                 index_t from, index_t depth, ::deeprec::detail::interaction_scratch& scratch,
                                 float* triangle) {
  const index_t rows = in.count - i < Rows ? in.count - i : Rows;
  vector_f32 total[Rows][Vectors];
  for (index_t r = 0; r < rows; ++r) {
    copy_floats(in.vector(i + r) + from, scratch.factors + r * ::deeprec::detail::interaction_depth, depth);
  }
#pragma GCC unroll 12
  for (int r = 0; r < Rows; ++r) {
    if (from > 0 && r < rows) {
      load_lanes(triangle + ::deeprec::detail::triangle_row(i + r) + first, total[r], i + r - first);
    } else {
#pragma GCC unroll 2
      for (int v = 0; v < Vectors; ++v) total[r][v] = zero();
    }
  }
  add_products(scratch.factors, scratch.transposed, interaction_columns, depth, full_place{0}, total);
#pragma GCC unroll 12
  for (int r = 0; r < Rows; ++r) {
    if (r >= rows) break;
    store_lanes(triangle + ::deeprec::detail::triangle_row(i + r) + first, total[r], i + r - first);
  }
}
template <int Rows>
DEEPREC_INLINE void dots_of_rows(const ::deeprec::detail::interacting_vectors& in, index_t i, index_t first,
                                 index_t from, index_t depth, ::deeprec::detail::interaction_scratch& scratch,
                                 float* triangle) {
  if (i + Rows - 1 - first <= lanes) {
    dots_of_rows<Rows, 1>(in, i, first, from, depth, scratch, triangle);
  } else {
    dots_of_rows<Rows, 2>(in, i, first, from, depth, scratch, triangle);
  }
}

/// The dot products of all pairs of vectors.
inline void dot_triangle(region, const ::deeprec::detail::interacting_vectors& in,
                         ::deeprec::detail::interaction_scratch& scratch, float* triangle) {
  constexpr index_t stride = interaction_columns * index_t{sizeof(float)};
  for (index_t first = 0; first + 1 < in.count; first += interaction_columns) {
    const index_t left = in.count - 1 - first;
    const index_t columns = left < interaction_columns ? left : interaction_columns;
    for (index_t from = 0; from < in.width; from += ::deeprec::detail::interaction_depth) {
      const index_t rest = in.width - from;
      const index_t depth =
          rest < ::deeprec::detail::interaction_depth ? rest : ::deeprec::detail::interaction_depth;
      index_t done = 0;
      if (first == 0) {
        for (index_t k = 0; k < depth; ++k) scratch.transposed[k * interaction_columns] = in.dense[from + k];
        done = 1;
      }
      if (columns > done) {
        transpose_direct<4>(reinterpret_cast<const std::byte*>(in.vector(first + done) + from),
                            in.width * index_t{sizeof(float)}, columns - done, depth,
                            reinterpret_cast<std::byte*>(scratch.transposed + done), stride);
      }
      index_t i = first + 1;
      for (; i + interaction_last_rows < in.count; i += interaction_rows) {
        dots_of_rows<interaction_rows>(in, i, first, from, depth, scratch, triangle);
      }
      for (; i < in.count; i += interaction_last_rows) {
        dots_of_rows<interaction_last_rows>(in, i, first, from, depth, scratch, triangle);
      }
    }
  }
}

// Columns from a place on of the gradients of the vectors [i, i + Rows), up to the last.
template <int Rows, int Vectors, class Place>
DEEPREC_INLINE void gradients_of_rows(const ::deeprec::detail::interacting_vectors& in, index_t i, Place at,
                                      const float* gradient, ::deeprec::detail::interaction_scratch& scratch,
                                      const ::deeprec::detail::interacting_gradients& out) {
  const float* const triangle = gradient + in.width;
  const index_t rows = in.count - i < Rows ? in.count - i : Rows;
  vector_f32 total[Rows][Vectors];
#pragma GCC unroll 12
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) {
      total[r][v] = i + r == 0 ? load_at(gradient + v * lanes, at) : zero();
    }
  }
  for (index_t j = 0; j < i;) {
    // The dense vector, and then the others, which lie side by side.
    const index_t left = j == 0 ? 1 : i - j;
    const index_t depth =
        left < ::deeprec::detail::interaction_depth ? left : ::deeprec::detail::interaction_depth;
    for (index_t r = 0; r < rows; ++r) {
      copy_floats(triangle + ::deeprec::detail::triangle_row(i + r) + j,
                  scratch.factors + r * ::deeprec::detail::interaction_depth, depth);
    }
    add_products(scratch.factors, in.vector(j), in.width, depth, at, total);
    j += depth;
  }
  // A vector is not in its own gradient, however large it is.
  const float* factors = triangle + ::deeprec::detail::triangle_row(i) + i;
#pragma GCC unroll 12
  for (int r = 1; r < Rows; ++r) {
    if (r >= rows) break;
    factors += i + r - 1;
    vector_f32 mine[Vectors];
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) mine[v] = load_at(in.vector(i + r) + v * lanes, at);
#pragma GCC unroll 12
    for (int c = 0; c < r; ++c) {
      const vector_f32 y = splat(factors[c]);
      const float* const other = in.vector(i + c);
#pragma GCC unroll 2
      for (int v = 0; v < Vectors; ++v) {
        total[r][v] = multiply_add(y, load_at(other + v * lanes, at), total[r][v]);
        total[c][v] = multiply_add(y, mine[v], total[c][v]);
      }
    }
  }
  for (index_t j = i + Rows; j < in.count; ++j) {
    const float* const below = triangle + ::deeprec::detail::triangle_row(j) + i;
    vector_f32 theirs[Vectors];
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) theirs[v] = load_at(in.vector(j) + v * lanes, at);
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r) {
      const vector_f32 y = splat(below[r]);
#pragma GCC unroll 2
      for (int v = 0; v < Vectors; ++v) total[r][v] = multiply_add(y, theirs[v], total[r][v]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < Rows; ++r) {
    if (r >= rows) break;
    float* const to = out.vector(i + r, in.width);
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) store_at(to + v * lanes, total[r][v], at);
  }
}
template <int Vectors, class Place>
DEEPREC_INLINE void gradients_of_panel(const ::deeprec::detail::interacting_vectors& in, Place at,
                                       const float* gradient, ::deeprec::detail::interaction_scratch& scratch,
                                       const ::deeprec::detail::interacting_gradients& out) {
  index_t i = 0;
  for (; i + interaction_last_rows < in.count; i += interaction_rows) {
    gradients_of_rows<interaction_rows, Vectors>(in, i, at, gradient, scratch, out);
  }
  for (; i < in.count; i += interaction_last_rows) {
    gradients_of_rows<interaction_last_rows, Vectors>(in, i, at, gradient, scratch, out);
  }
}

/// The gradients of all vectors, for the gradient of the output of one sample: its first columns are those of
/// the dense vector.
inline void dot_triangle_backward(region, const ::deeprec::detail::interacting_vectors& in,
                                  const float* gradient, ::deeprec::detail::interaction_scratch& scratch,
                                  const ::deeprec::detail::interacting_gradients& out) {
  index_t from = 0;
  for (; from + 2 * lanes <= in.width; from += 2 * lanes) {
    gradients_of_panel<2>(in, full_place{from}, gradient, scratch, out);
  }
  for (; from + lanes <= in.width; from += lanes) {
    gradients_of_panel<1>(in, full_place{from}, gradient, scratch, out);
  }
  if (from < in.width) {
    gradients_of_panel<1>(in, part_place{from, static_cast<int>(in.width - from)}, gradient, scratch, out);
  }
}
