// The kernels of expressions, written over the vector operations and compiled once for each region.
//
//   value_of(region, bound, place)    the vector of an expression at a place of its row
//   result_of(region, op, a, b)       one operation
//   evaluate_pieces(region, job, ..)  rows, or pieces of long rows
//
// value_of calls itself for the parts of a node: the region is its first argument, so the calls are found in
// the region's namespace when a template is instantiated.

// Single operations. Every product is rounded before it is used.

DEEPREC_INLINE vector_f32 product(vector_f32 a, vector_f32 b) { return rounded(a * b); }

// For |r| <= ln(2) / 2: exp(r) - 1, with an error below 2^-27 of exp(r).
DEEPREC_INLINE vector_f32 small_exp_minus_1(vector_f32 r) {
  vector_f32 p = splat(0x1.6d7b12p-10F);
  p = multiply_add(p, r, splat(0x1.123b9ap-7F));
  p = multiply_add(p, r, splat(0x1.5554c0p-5F));
  p = multiply_add(p, r, splat(0x1.555490p-3F));
  p = multiply_add(p, r, splat(0.5F));
  return multiply_add(product(p, r), r, r);
}
// x = n ln(2) + r. The first part of ln(2) has nine bits: its product with n is exact.
DEEPREC_INLINE vector_f32 split_by_ln2(vector_f32 x, vector_f32& n) {
  n = nearest(x * splat(0x1.715476p+0F));
  const vector_f32 r = multiply_add(n, splat(-0x1.63p-1F), x);
  return multiply_add(n, splat(0x1.bd0106p-13F), r);
}
// Between these bounds, and at them, 2^n is in the range of times_power_of_two; beyond them the results are
// those at the bounds, 0 and infinity.
DEEPREC_INLINE vector_f32 exponential_to_90(vector_f32 x) {
  vector_f32 n;
  const vector_f32 r = split_by_ln2(at_least(x, splat(-105.0F)), n);
  return times_power_of_two(small_exp_minus_1(r) + splat(1.0F), n);
}
DEEPREC_INLINE vector_f32 exponential(vector_f32 x) { return exponential_to_90(at_most(x, splat(90.0F))); }
DEEPREC_INLINE vector_f32 sigmoid_of(vector_f32 x) {
  const mask_f32 below = less(x, zero());
  const vector_f32 e = exponential_to_90(choose(below, x, zero() - x));  // of -|x|: no overflow
  return choose(below, e, splat(1.0F)) / (splat(1.0F) + e);
}
// With m = exp(2x) - 1, tanh(x) = m / (m + 2); beyond 10 it is 1.
DEEPREC_INLINE vector_f32 tanh_of(vector_f32 x) {
  vector_f32 n;
  const vector_f32 bounded = at_most(at_least(x, splat(-10.0F)), splat(10.0F));
  const vector_f32 r = split_by_ln2(bounded + bounded, n);
  const vector_f32 power = times_power_of_two(splat(1.0F), n);
  const vector_f32 m = multiply_add(power, small_exp_minus_1(r), power - splat(1.0F));
  return choose(equal(x, zero()), x, m / (m + splat(2.0F)));  // -0 stays -0
}

namespace op = ::deeprec::expr::op;

DEEPREC_INLINE vector_f32 result_of(region, op::plus, vector_f32 a, vector_f32 b) { return a + b; }
DEEPREC_INLINE vector_f32 result_of(region, op::minus, vector_f32 a, vector_f32 b) { return a - b; }
DEEPREC_INLINE vector_f32 result_of(region, op::times, vector_f32 a, vector_f32 b) { return product(a, b); }
DEEPREC_INLINE vector_f32 result_of(region, op::over, vector_f32 a, vector_f32 b) { return a / b; }
DEEPREC_INLINE vector_f32 result_of(region, op::negated, vector_f32 a) { return splat(-0.0F) - a; }
DEEPREC_INLINE vector_f32 result_of(region, op::multiply_add, vector_f32 a, vector_f32 b, vector_f32 c) {
  return rounded(multiply_add(a, b, c));
}
DEEPREC_INLINE vector_f32 result_of(region, op::minimum, vector_f32 a, vector_f32 b) { return minimum(a, b); }
DEEPREC_INLINE vector_f32 result_of(region, op::maximum, vector_f32 a, vector_f32 b) { return maximum(a, b); }
DEEPREC_INLINE vector_f32 result_of(region, op::square, vector_f32 a) { return product(a, a); }
DEEPREC_INLINE vector_f32 result_of(region, op::sqrt, vector_f32 a) { return sqrt(a); }
DEEPREC_INLINE vector_f32 result_of(region, op::abs, vector_f32 a) {
  return choose(less(zero(), a), a, zero() - a);
}
DEEPREC_INLINE vector_f32 result_of(region, op::select, mask_f32 which, vector_f32 a, vector_f32 b) {
  return choose(which, a, b);
}
DEEPREC_INLINE vector_f32 result_of(region, op::relu, vector_f32 a) {
  return choose(less(a, zero()), zero(), a);
}
DEEPREC_INLINE vector_f32 result_of(region, op::prelu, vector_f32 a, vector_f32 slope) {
  return choose(less(a, zero()), product(slope, a), a);
}
DEEPREC_INLINE vector_f32 result_of(region, op::exp, vector_f32 a) { return exponential(a); }
DEEPREC_INLINE vector_f32 result_of(region, op::sigmoid, vector_f32 a) { return sigmoid_of(a); }
DEEPREC_INLINE vector_f32 result_of(region, op::tanh, vector_f32 a) { return tanh_of(a); }
DEEPREC_INLINE vector_f32 result_of(region, op::gelu, vector_f32 a) {
  // 2 sqrt(2/pi) x (1 + 0.044715 x^2)
  const vector_f32 factor = multiply_add(product(a, a), splat(0.07135481627F), splat(1.5957691216F));
  return product(a, sigmoid_of(product(a, factor)));
}
DEEPREC_INLINE vector_f32 result_of(region, op::dice, vector_f32 a, vector_f32 mean, vector_f32 scale,
                                    vector_f32 alpha) {
  const vector_f32 p = sigmoid_of(product(a - mean, scale));
  return product(p, a) + product(product(splat(1.0F) - p, alpha), a);
}
DEEPREC_INLINE mask_f32 result_of(region, op::less, vector_f32 a, vector_f32 b) { return less(a, b); }
DEEPREC_INLINE mask_f32 result_of(region, op::less_equal, vector_f32 a, vector_f32 b) {
  return less_equal(a, b);
}
DEEPREC_INLINE mask_f32 result_of(region, op::equal, vector_f32 a, vector_f32 b) { return equal(a, b); }
DEEPREC_INLINE mask_f32 result_of(region, op::both, mask_f32 a, mask_f32 b) { return a & b; }
DEEPREC_INLINE mask_f32 result_of(region, op::either, mask_f32 a, mask_f32 b) { return a | b; }
DEEPREC_INLINE mask_f32 result_of(region, op::inverse, mask_f32 a) { return !a; }

// Values of leaves and nodes.

template <class T, class Place>
DEEPREC_INLINE vector_f32 value_of(region, const ::deeprec::expr::detail::elements<T>& row, Place at) {
  return load_at(row.first, at);
}
template <class Place>
DEEPREC_INLINE mask_f32 value_of(region, const ::deeprec::expr::detail::elements<unsigned char>& row,
                                 Place at) {
  return load_mask_at(row.first, at);
}
template <class Place>
DEEPREC_INLINE vector_f32 value_of(region, const ::deeprec::expr::detail::number& row, Place) {
  return splat(row.x);
}
template <class Place>
DEEPREC_INLINE mask_f32 value_of(region, const ::deeprec::expr::detail::flag& row, Place) {
  return mask_of(row.x);
}

inline void draw_flags(::deeprec::expr::detail::random_flags& row, index_t j) {
  std::uint32_t word[64];
  row.block = j / 64;
  draw_words(word, row.random, row.row, static_cast<std::uint64_t>(row.block));
  for (int i = 0; i < 64; ++i) row.keep[i] = word[i] >= row.drop_below;
}
// Vectors begin at multiples of lanes: none reaches into the next block of 64.
template <class Place>
DEEPREC_INLINE mask_f32 value_of(region, ::deeprec::expr::detail::random_flags& row, Place at) {
  static_assert(64 % lanes == 0);
  if (at.j / 64 != row.block) draw_flags(row, at.j);
  return load_mask(row.keep + at.j % 64);
}

template <class Op, class Place, class... Values>
DEEPREC_INLINE auto value_of_parts(region r, Op of, ::deeprec::expr::detail::parts<>&, Place,
                                   Values... values) {
  return result_of(r, of, values...);
}
template <class Op, class First, class... Rest, class Place, class... Values>
DEEPREC_INLINE auto value_of_parts(region r, Op of, ::deeprec::expr::detail::parts<First, Rest...>& left,
                                   Place at, Values... values) {
  return value_of_parts(r, of, left.rest, at, values..., value_of(r, left.first, at));
}
template <class Op, class... Parts, class Place>
DEEPREC_INLINE auto value_of(region r, ::deeprec::expr::detail::bound<Op, Parts...>& row, Place at) {
  return value_of_parts(r, Op{}, row.of, at);
}

// All values of a place are computed before the first of them is stored: an output may be an operand of
// another assignment. So are those of several vectors, which gives the processor more to do at a time.

struct store_cached {
  template <class T, class Place>
  DEEPREC_INLINE static void put(T* p, vector_f32 x, Place at) {
    store_at(p, x, at);
  }
};
struct store_streamed {
  template <class T>
  DEEPREC_INLINE static void put(T* p, vector_f32 x, full_place at) {
    stream(p + at.j, x);
  }
};

template <class Stores, int Vectors, class All, class Place>
DEEPREC_INLINE void put_vectors(region r, All& all, ::deeprec::expr::detail::parts<>&, Place at) {
  if constexpr (Vectors > 1) put_vectors<Stores, Vectors - 1>(r, all, all, full_place{at.j + lanes});
}
template <class Stores, int Vectors, class All, class First, class... Rest, class Place>
DEEPREC_INLINE void put_vectors(region r, All& all, ::deeprec::expr::detail::parts<First, Rest...>& left,
                                Place at) {
  const vector_f32 x = value_of(r, left.first.value, at);
  put_vectors<Stores, Vectors>(r, all, left.rest, at);
  Stores::put(left.first.to, x, at);
}

// Whole groups of vectors in columns [begin, end) of a row; returns the first column that is left.
template <class Stores, int Vectors, class All>
DEEPREC_INLINE index_t put_groups(region r, All& all, index_t begin, index_t end) {
  for (; begin <= end - Vectors * lanes; begin += Vectors * lanes) {
    put_vectors<Stores, Vectors>(r, all, all, full_place{begin});
  }
  return begin;
}
// Columns [begin, end) of rows [i, last_row). A row is a copy: stores may alias what a reference leads to.
template <int Vectors, class Job>
DEEPREC_APART void put_rows(region r, const Job& work, index_t i, index_t last_row, index_t begin,
                            index_t end) {
  for (; i < last_row; ++i) {
    auto row = work.all.at(i);
    index_t j = put_groups<store_cached, Vectors>(r, row, begin, end);
    if constexpr (Vectors > 1) j = put_groups<store_cached, 1>(r, row, j, end);
    if (j < end) {
      put_vectors<store_cached, 1>(r, row, row, part_place{j, static_cast<int>(end - j)});
    }
  }
}

// Elements from column j to the next cache line of the first output; -1 where the outputs reach theirs at
// different columns.
template <class First, class... Rest>
DEEPREC_INLINE index_t columns_to_line(const ::deeprec::expr::detail::parts<First, Rest...>& all, index_t j) {
  const auto to_line = [j](const auto* to) {
    const auto at = reinterpret_cast<std::uintptr_t>(to + j);
    return static_cast<index_t>((std::uintptr_t{0} - at) % 64 / sizeof(*to));
  };
  const index_t distance = to_line(all.first.to);
  bool same = true;
  all.rest.each([&](const auto& other) { same = same && to_line(other.to) == distance; });
  return same ? distance : -1;
}

// Whole lines past the caches: a non-temporal store of a part of a line costs more than a cached one.
template <int Vectors, class Job>
DEEPREC_APART void put_row_streamed(region r, const Job& work, index_t i, index_t begin, index_t end) {
  auto row = work.all.at(i);
  const index_t head = columns_to_line(row, begin);
  if (head < 0 || head >= end - begin || (Job::exact_start && head != 0)) {
    return put_rows<Vectors>(r, work, i, i + 1, begin, end);
  }
  if (head != 0) put_rows<Vectors>(r, work, i, i + 1, begin, begin + head);
  begin = put_groups<store_streamed, Vectors>(r, row, begin + head, end);
  if (begin != end) put_rows<Vectors>(r, work, i, i + 1, begin, end);
}

/// Pieces [begin, end) of the job.
template <class Job>
void evaluate_pieces(region r, const Job& work, index_t begin, index_t end) {
  constexpr int vectors = Job::cost <= 8 ? 4 : Job::cost <= 20 ? 2 : 1;
  if (work.pieces_of_row == 1 && !work.streamed) {
    return put_rows<vectors>(r, work, begin, end, 0, work.columns);
  }
  index_t i = begin / work.pieces_of_row;
  index_t piece = begin % work.pieces_of_row;
  for (index_t at = begin; at < end; ++at) {
    const index_t first = piece * work.piece;
    const index_t last = first + work.piece < work.columns ? first + work.piece : work.columns;
    if (work.streamed) {
      put_row_streamed<vectors>(r, work, i, first, last);
    } else {
      put_rows<vectors>(r, work, i, i + 1, first, last);
    }
    if (++piece == work.pieces_of_row) {
      piece = 0;
      ++i;
    }
  }
  if (work.streamed) end_streams();
}
