// The kernels of the in-batch softmax, compiled once for each region. No include guard: see
// simd/foreach_region.hpp. `exponential` is that of ops/expression.hpp.
//
// A row is read in pieces of 16 vectors. In each a lane adds 16 floats, the pieces are added in double: the
// error of the sum does not grow with the row.

inline constexpr index_t softmax_piece = 16 * lanes;

// True for whole pieces of which no column is left out.
DEEPREC_INLINE bool keeps_all(const ::deeprec::detail::softmax_row& in, index_t n) {
  return in.items == nullptr && n == softmax_piece;
}
// 1 for columns [first, first + n) that are in the row's sum: its own, and those of other items.
inline void flag_columns(const ::deeprec::detail::softmax_row& in, index_t first, index_t n,
                         unsigned char* keep) {
  if (in.items == nullptr) {
    __builtin_memset(keep, 1, static_cast<std::size_t>(n));
    return;
  }
  const std::int64_t own = in.items[in.row];
  const std::int64_t* const items = in.items + first;
  for (index_t c = 0; c < n; ++c) keep[c] = items[c] != own ? 1 : 0;
  if (in.row >= first && in.row - first < n) keep[in.row - first] = 1;
}
DEEPREC_INLINE index_t piece_at(const ::deeprec::detail::softmax_row& in, index_t first) {
  return in.count - first < softmax_piece ? in.count - first : softmax_piece;
}

// The largest score of the kept columns; NaN where one of them is.
inline float most_of_row(const ::deeprec::detail::softmax_row& in) {
  const vector_f32 lowest = splat(-__builtin_inff());
  vector_f32 most = lowest;
  unsigned char keep[softmax_piece];
  for (index_t first = 0; first < in.count; first += softmax_piece) {
    const index_t n = piece_at(in, first);
    const float* const x = in.scores + first;
    if (keeps_all(in, n)) {
      for (index_t c = 0; c < softmax_piece; c += lanes) most = maximum(most, load(x + c));
      continue;
    }
    flag_columns(in, first, n, keep);
    index_t c = 0;
    for (; c + lanes <= n; c += lanes) {
      most = maximum(most, choose(load_mask(keep + c), load(x + c), lowest));
    }
    if (c < n) {
      const int left = static_cast<int>(n - c);
      most = maximum(most, choose(load_mask_first(keep + c, left), load_first(x + c, left), lowest));
    }
  }
  float lane[lanes];
  store(lane, most);
  float largest = lane[0];
  for (int i = 1; i < lanes; ++i) {
    largest = !(largest == largest) || largest > lane[i] ? largest : lane[i];
  }
  return largest;
}

// The sum of exp(score - most) over the kept columns. `Store`: and each of them in `to`, 0 for the others;
// `to` may be the scores.
template <bool Store>
DEEPREC_INLINE double add_exponentials(const ::deeprec::detail::softmax_row& in, float most, float* to) {
  const vector_f32 shift = splat(most);
  double sum = 0;
  unsigned char keep[softmax_piece];
  for (index_t first = 0; first < in.count; first += softmax_piece) {
    const index_t n = piece_at(in, first);
    const float* const x = in.scores + first;
    vector_f32 total = zero();
    if (keeps_all(in, n)) {
      for (index_t c = 0; c < softmax_piece; c += lanes) {
        const vector_f32 e = exponential(load(x + c) - shift);
        total = total + e;
        if constexpr (Store) store(to + first + c, e);
      }
    } else {
      flag_columns(in, first, n, keep);
      index_t c = 0;
      for (; c + lanes <= n; c += lanes) {
        const vector_f32 e = choose(load_mask(keep + c), exponential(load(x + c) - shift), zero());
        total = total + e;
        if constexpr (Store) store(to + first + c, e);
      }
      if (c < n) {
        const int left = static_cast<int>(n - c);
        const vector_f32 e =
            choose(load_mask_first(keep + c, left), exponential(load_first(x + c, left) - shift), zero());
        total = total + e;
        if constexpr (Store) store_first(to + first + c, e, left);
      }
    }
    sum += static_cast<double>(add_lanes(total));
  }
  return sum;
}

/// The largest of a row's kept scores, and the sum of the exponentials of their distances from it.
inline ::deeprec::detail::softmax_sum softmax_sum_of(region, const ::deeprec::detail::softmax_row& in) {
  const float most = most_of_row(in);
  return {most, add_exponentials<false>(in, most, nullptr)};
}

/// (softmax - 1 in the row's own column) * factor. The gradient may be the scores.
inline void softmax_gradient_of(region, const ::deeprec::detail::softmax_row& in, double factor,
                                float* gradient) {
  const double sum = add_exponentials<true>(in, most_of_row(in), gradient);
  const auto own = static_cast<double>(gradient[in.row]);
  const vector_f32 by = splat(static_cast<float>(factor / sum));
  index_t j = 0;
  for (; j + lanes <= in.count; j += lanes) store(gradient + j, load(gradient + j) * by);
  if (j < in.count) {
    const int left = static_cast<int>(in.count - j);
    store_first(gradient + j, load_first(gradient + j, left) * by, left);
  }
  gradient[in.row] = static_cast<float>((own / sum - 1) * factor);
}
