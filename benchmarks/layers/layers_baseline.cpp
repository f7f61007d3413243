#include "layers/baseline.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <cmath>

namespace layers_baseline { namespace DEEPREC_BASELINE_NS {

namespace {

using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using array = Eigen::Array<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using row_array = Eigen::Array<float, 1, Eigen::Dynamic>;
using column_array = Eigen::Array<float, Eigen::Dynamic, 1>;
using matrix_map = Eigen::Map<matrix>;
using const_matrix = Eigen::Map<const matrix>;
using array_map = Eigen::Map<array>;
using const_array = Eigen::Map<const array>;
using row_map = Eigen::Map<row_array>;
using const_row = Eigen::Map<const row_array>;
using column_map = Eigen::Map<column_array>;
using const_column = Eigen::Map<const column_array>;

// Results of ops, in memory that stays from call to call.
array& result(int i, long rows, long columns) {
  static array all[12];
  if (all[i].rows() != rows || all[i].cols() != columns) all[i].resize(rows, columns);
  return all[i];
}

long triangle_width(long count, long width) { return width + count * (count - 1) / 2; }

}  // namespace

void interaction_forward(const interaction_case& of) {
  const auto [samples, count, width] = of.shape;
  float* const products = result(0, samples, count * count).data();
  for (long b = 0; b < samples; ++b) {
    const const_matrix v(of.vectors + b * count * width, count, width);
    matrix_map(products + b * count * count, count, count).noalias() = v * v.transpose();
  }
  for (long b = 0; b < samples; ++b) {
    float* to = std::copy_n(of.vectors + b * count * width, width, of.out + b * triangle_width(count, width));
    for (long i = 1; i < count; ++i) to = std::copy_n(products + (b * count + i) * count, i, to);
  }
}

void interaction_backward(const interaction_case& of) {
  const auto [samples, count, width] = of.shape;
  float* const products = result(0, samples, count * count).data();
  for (long b = 0; b < samples; ++b) {
    const float* from = of.gradient + b * triangle_width(count, width) + width;
    float* const g = products + b * count * count;
    for (long i = 0; i < count; ++i) {
      g[i * count + i] = 0;
      for (long j = 0; j < i; ++j) g[i * count + j] = g[j * count + i] = *from++;
    }
  }
  for (long b = 0; b < samples; ++b) {
    const const_matrix v(of.vectors + b * count * width, count, width);
    matrix_map(of.vector_gradients + b * count * width, count, width).noalias() =
        const_matrix(products + b * count * count, count, count) * v;
  }
  for (long b = 0; b < samples; ++b) {
    const float* const g = of.gradient + b * triangle_width(count, width);
    float* const d0 = of.vector_gradients + b * count * width;
    for (long j = 0; j < width; ++j) d0[j] += g[j];
  }
}

void fm_forward(const fm_case& of) {
  const auto [samples, count, width] = of.shape;
  const const_array v(of.vectors, samples, count * width);
  array &sum = result(0, samples, width), &squares = result(1, samples, count * width);
  array &of_squares = result(2, samples, width), &square = result(3, samples, width);
  for (long b = 0; b < samples; ++b) {
    sum.row(b) = const_array(of.vectors + b * count * width, count, width).colwise().sum();
  }
  square = sum.square();
  squares = v.square();
  for (long b = 0; b < samples; ++b) {
    of_squares.row(b) = const_array(squares.data() + b * count * width, count, width).colwise().sum();
  }
  array& difference = result(4, samples, width);
  difference = square - of_squares;
  array_map(of.out, samples, width) = 0.5F * difference;
}

// From the sums of fm_forward.
void fm_backward(const fm_case& of) {
  const auto [samples, count, width] = of.shape;
  const const_array v(of.vectors, samples, count * width);
  const array& sum = result(0, samples, width);
  array &half = result(2, samples, width), &of_squares = result(3, samples, width);
  array &twice_sum = result(4, samples, width), &of_sum = result(5, samples, width);
  half = 0.5F * const_array(of.gradient, samples, width);
  of_squares = -half;
  twice_sum = 2.0F * sum;
  of_sum = half * twice_sum;
  array& twice = result(1, samples, count * width);
  twice = 2.0F * v;
  array& through_squares = result(6, samples, count * width);
  for (long b = 0; b < samples; ++b) {
    for (long t = 0; t < count; ++t) {
      through_squares.row(b).segment(t * width, width) =
          twice.row(b).segment(t * width, width) * of_squares.row(b);
    }
  }
  array_map to(of.vector_gradients, samples, count * width);
  for (long b = 0; b < samples; ++b) {
    for (long t = 0; t < count; ++t) {
      to.row(b).segment(t * width, width) = through_squares.row(b).segment(t * width, width) + of_sum.row(b);
    }
  }
}

namespace {

constexpr float dice_epsilon = 1e-8F;

struct dice_values {
  row_array mean, variance, scale;
};
dice_values& dice_kept() {
  static dice_values kept;
  return kept;
}

}  // namespace

void dice_forward(const dice_case& of) {
  const const_array x(of.x, of.rows, of.width);
  const const_row alpha(of.alpha, of.width);
  dice_values& kept = dice_kept();
  kept.mean = x.colwise().mean();
  kept.variance.setZero(of.width);
  for (long i = 0; i < of.rows; ++i) kept.variance += (x.row(i) - kept.mean).square();
  kept.variance /= static_cast<float>(of.rows);
  kept.scale = (kept.variance + dice_epsilon).sqrt().inverse();
  array& u = result(0, of.rows, of.width);
  for (long i = 0; i < of.rows; ++i) u.row(i) = (x.row(i) - kept.mean) * kept.scale;
  array& p = result(1, of.rows, of.width);
  p = u.logistic();
  array &direct = result(2, of.rows, of.width), &sloped = result(3, of.rows, of.width);
  direct = p * x;
  for (long i = 0; i < of.rows; ++i) sloped.row(i) = alpha * x.row(i);
  array &rest = result(4, of.rows, of.width), &other = result(5, of.rows, of.width);
  rest = 1.0F - p;
  other = rest * sloped;
  array_map(of.y, of.rows, of.width) = direct + other;
}

// From the results 0, 1, 3 and 4 of dice_forward.
void dice_backward(const dice_case& of) {
  const const_array x(of.x, of.rows, of.width), g(of.gradient, of.rows, of.width);
  const const_row alpha(of.alpha, of.width);
  const dice_values& kept = dice_kept();
  const array &u = result(0, of.rows, of.width), &p = result(1, of.rows, of.width);
  const array &sloped = result(3, of.rows, of.width), &rest = result(4, of.rows, of.width);
  array_map to_x(of.x_gradient, of.rows, of.width);
  array &to_p = result(5, of.rows, of.width), &to_rest = result(6, of.rows, of.width);
  array &to_sloped = result(7, of.rows, of.width), &term = result(8, of.rows, of.width);
  to_p = g * x;
  to_x = g * p;
  to_rest = g * sloped;
  to_sloped = g * rest;
  to_p -= to_rest;
  term = to_sloped * x;
  row_map(of.alpha_gradient, of.width) = term.colwise().sum();
  for (long i = 0; i < of.rows; ++i) term.row(i) = to_sloped.row(i) * alpha;
  to_x += term;
  array& to_u = result(9, of.rows, of.width);
  to_u = to_p * p * (1.0F - p);
  row_array sum = row_array::Zero(of.width), sum_u = sum;
  for (long i = 0; i < of.rows; ++i) {
    sum += to_u.row(i);
    sum_u += to_u.row(i) * u.row(i);
  }
  sum /= static_cast<float>(of.rows);
  sum_u /= static_cast<float>(of.rows);
  for (long i = 0; i < of.rows; ++i) {
    term.row(i) = kept.scale * (to_u.row(i) - sum - u.row(i) * sum_u);
  }
  to_x += term;
}

namespace {

// Row b of `from` for each position of sample b.
void repeat_rows(const float* from, const attention_case& of, array& to) {
  for (long b = 0; b < of.samples; ++b) {
    for (std::int64_t p = of.offsets[b]; p < of.offsets[b + 1]; ++p) {
      std::copy_n(from + b * of.width, of.width, to.data() + p * of.width);
    }
  }
}
void sum_histories(const array& from, const attention_case& of, float* to) {
  for (long b = 0; b < of.samples; ++b) {
    row_map(to + b * of.width, of.width) =
        from.middleRows(of.offsets[b], of.offsets[b + 1] - of.offsets[b]).colwise().sum();
  }
}

}  // namespace

void attention_forward(const attention_case& of) {
  const const_array keys(of.keys, of.positions, of.width);
  array& queries = result(0, of.positions, of.width);
  repeat_rows(of.queries, of, queries);
  array &difference = result(1, of.positions, of.width), &product = result(2, of.positions, of.width);
  difference = queries - keys;
  product = queries * keys;
  const float* const parts[] = {queries.data(), of.keys, difference.data(), product.data()};
  for (long p = 0; p < of.positions; ++p) {  // the concatenation
    float* to = of.features + p * 4 * of.width;
    for (const float* const from : parts) {
      to = std::copy_n(from + p * of.width, of.width, to);
    }
  }
  array& weighted = result(1, of.positions, of.width);
  for (long p = 0; p < of.positions; ++p) weighted.row(p) = of.scores[p] * keys.row(p);
  sum_histories(weighted, of, of.pooled);
}

// From the repeated queries of attention_forward.
void attention_backward(const attention_case& of) {
  const long width = of.width;
  const const_array keys(of.keys, of.positions, width);
  const const_array g(of.features_gradient, of.positions, 4 * width);
  const array& queries = result(0, of.positions, width);
  array &to_queries = result(1, of.positions, width), &term = result(2, of.positions, width);
  array_map to_keys(of.key_gradient, of.positions, width);
  to_queries = g.leftCols(width) + g.middleCols(2 * width, width);
  term = g.rightCols(width) * keys;
  to_queries += term;
  to_keys = g.middleCols(width, width) - g.middleCols(2 * width, width);
  term = g.rightCols(width) * queries;
  to_keys += term;
  sum_histories(to_queries, of, of.query_gradient);
  array& of_pooled = result(3, of.positions, width);
  repeat_rows(of.pooled_gradient, of, of_pooled);
  term = of_pooled * keys;
  column_map(of.score_gradient, of.positions) = term.rowwise().sum();
  for (long p = 0; p < of.positions; ++p) term.row(p) = of.scores[p] * of_pooled.row(p);
  to_keys += term;
}

void cross_forward(const cross_case& of) {
  const const_matrix x(of.x, of.samples, of.width), w(of.weights, of.width, of.width);
  matrix_map product(of.product, of.samples, of.width);
  product.noalias() = x * w.transpose();
  product.array().rowwise() += const_row(of.bias, of.width);
  array& crossed = result(0, of.samples, of.width);
  crossed = const_array(of.x0, of.samples, of.width) * product.array();
  array_map(of.out, of.samples, of.width) = crossed + x.array();
}

void cross_backward(const cross_case& of) {
  const const_array x0(of.x0, of.samples, of.width), g(of.gradient, of.samples, of.width);
  const const_array product(of.product, of.samples, of.width);
  const const_matrix x(of.x, of.samples, of.width), w(of.weights, of.width, of.width);
  array &term = result(0, of.samples, of.width), &to_product = result(1, of.samples, of.width);
  term = g * product;
  array_map(of.x0_gradient, of.samples, of.width) += term;
  to_product = g * x0;
  matrix_map(of.weight_gradient, of.width, of.width).noalias() = to_product.matrix().transpose() * x;
  row_map(of.bias_gradient, of.width) = to_product.colwise().sum();
  matrix_map to_x(of.x_gradient, of.samples, of.width);
  to_x.noalias() = to_product.matrix() * w;
  to_x.array() += g;
}

void softmax_forward(const softmax_case& of) {
  const const_array scores(of.scores, of.batch, of.batch);
  const column_array most = scores.rowwise().maxCoeff();
  array &shifted = result(0, of.batch, of.batch), &powers = result(1, of.batch, of.batch);
  for (long i = 0; i < of.batch; ++i) shifted.row(i) = scores.row(i) - most(i);
  powers = shifted.exp();
  const column_array sums = powers.rowwise().sum();
  *of.loss = (sums.log() - shifted.matrix().diagonal().array()).mean();
}

// From the powers of softmax_forward.
void softmax_backward(const softmax_case& of) {
  array& powers = result(1, of.batch, of.batch);
  const column_array sums = powers.rowwise().sum();
  array& shares = result(2, of.batch, of.batch);
  for (long i = 0; i < of.batch; ++i) shares.row(i) = powers.row(i) / sums(i);
  shares.matrix().diagonal().array() -= 1.0F;
  array_map(of.gradient, of.batch, of.batch) = shares * (of.scale / static_cast<float>(of.batch));
}

void normalize_forward(const normalize_case& of) {
  const const_array x(of.x, of.rows, of.width);
  array& squares = result(0, of.rows, of.width);
  squares = x.square();
  const column_array sums = squares.rowwise().sum();
  column_map inverse(of.inverse_norms, of.rows);
  inverse = sums.sqrt().inverse();
  array_map y(of.y, of.rows, of.width);
  for (long i = 0; i < of.rows; ++i) y.row(i) = x.row(i) * inverse(i);
}

void normalize_backward(const normalize_case& of) {
  const const_array y(of.y, of.rows, of.width), g(of.gradient, of.rows, of.width);
  const const_column inverse(of.inverse_norms, of.rows);
  array &products = result(0, of.rows, of.width), &rest = result(1, of.rows, of.width);
  products = y * g;
  const column_array along = products.rowwise().sum();
  for (long i = 0; i < of.rows; ++i) products.row(i) = y.row(i) * along(i);
  rest = g - products;
  array_map to(of.x_gradient, of.rows, of.width);
  for (long i = 0; i < of.rows; ++i) to.row(i) = rest.row(i) * inverse(i);
}

}}  // namespace layers_baseline::DEEPREC_BASELINE_NS
