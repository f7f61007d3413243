// Dice, DIN's activation: between x and alpha x, by where x stands in its batch.
//
//   u = (x - mean) / sqrt(variance + epsilon)      mean, variance: of each column
//   p = sigmoid(u)           y = p x + (1 - p) alpha x
//
// In training mean and variance are those of the batch, and the gradient passes through them, as in batch
// normalisation; in inference they are fixed: running averages that dice_average keeps. Fixed statistics as a
// part of a larger expression: expr::dice (ops/expression.hpp).
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <deeprec/core/array_view.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/kernel_tuning.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/dense/layers/detail/dice_args.hpp>
#include <deeprec/ops/expression.hpp>
#include <deeprec/simd/dispatch.hpp>
#include <deeprec/simd/places.hpp>
#include <deeprec/simd/vectors.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/verb.hpp>

#define DEEPREC_REGION_SOURCE "deeprec/dense/layers/detail/dice.inl"
#include <deeprec/simd/foreach_region.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Where mean and variance come from: from the batch, which writes them, or from the caller.
enum class dice_mode : std::uint8_t { batch, fixed };

struct dice_options {
  float epsilon = 1e-8F;
  dice_mode mode = dice_mode::batch;
};

/// Mean and variance of D columns, in memory of the caller.
///
/// @threads as its memory
template <MemorySpace Space = host_space>
struct dice_statistics {
  array_view<float, Space> mean;
  array_view<float, Space> variance;
};

namespace detail {

inline double dice_ns(const kernel_tuning& tuning, index_t rows, index_t width, index_t matrices) noexcept {
  return ns_of_bytes(tuning, capped_product(rows, width) * matrices * index_t{sizeof(float)}) +
         static_cast<double>(rows) * static_cast<double>(width);  // a sigmoid: about a nanosecond
}

/// Calls sum(region, first row, rows, piece) for all pieces of the rows.
template <class Context, class Sum>
DEEPREC_PER_UNIT void dice_for_pieces(const Context& ctx, index_t rows, double ns, const Sum& sum) {
  const index_t piece = dice_piece(rows);
  run_bulk(ctx, {(rows + piece - 1) / piece, 1, ns}, [&](index_t begin, index_t end, int) {
    with_isa_up_to_avx512(ctx.instruction_set, [&](auto region) {
      for (index_t i = begin; i < end; ++i) sum(region, i * piece, (std::min)(piece, rows - i * piece), i);
    });
  });
}

/// Mean and variance of the columns of x; of no rows: 0. The second pass measures from the mean of the first,
/// and takes what that is off by out of the variance too: left in, it would be all of the variance of a
/// column of one value.
template <class Context>
DEEPREC_PER_UNIT void dice_batch_statistics(const Context& ctx, matrix_view<const float> x,
                                            const dice_statistics<>& statistics) {
  const index_t rows = x.extent(0), piece = dice_piece(rows), pieces = (rows + piece - 1) / piece;
  const double count = static_cast<double>((std::max)(rows, index_t{1}));
  dice_partials<2> partial;
  for (index_t first = 0; first < x.extent(1); first += dice_panel) {
    const index_t width = (std::min)(dice_panel, x.extent(1) - first);
    float* const mean = statistics.mean.data() + first;
    float* const variance = statistics.variance.data() + first;
    const double ns = ns_of_bytes(*ctx.tuning, capped_product(rows, width) * index_t{sizeof(float)});
    std::fill_n(mean, width, 0.0F);
    for (int pass = 0; pass < 2; ++pass) {
      detail::dice_for_pieces(ctx, rows, ns, [&](auto region, index_t row, index_t n, index_t i) {
        sum_distances(region, mean, {x.row(row) + first, x.stride(0)}, n, width, partial.of[0][i],
                      partial.of[1][i]);
      });
      for (index_t j = 0; j < width; ++j) {
        const double off = detail::dice_total(partial, 0, j, pieces) / (count * double{dice_shrink});
        mean[j] = static_cast<float>(static_cast<double>(mean[j]) + off);
        variance[j] = static_cast<float>(
            (std::max)(detail::dice_total(partial, 1, j, pieces) / count - off * off, 0.0));
      }
    }
  }
}

}  // namespace detail

/// y = p x + (1 - p) alpha x.
///
/// @shape    x, y (N,D), any row stride · alpha (D) · statistics: mean and variance (D)
/// @dtype    float
/// @space    all reachable from the context
/// @pre      y is x (same first element, same stride) or overlaps no input; what is written shares no byte
/// @post     every element of y is written. With dice_mode::batch mean and variance as well: those of the
///           columns of x, the sum of squares divided by N; 0 where N is 0. dice_mode::fixed only reads them
/// @numerics float, sums in pieces of 64 rows, added in an order that depends on N only: the mean errs by at
///           most u |mean| + (64 + N / 2048 + 4) u mean|x - mean| + 2^-125, u = 2^-24, so it is the value of
///           a column of one value; p by 4 (1 + |u|) u. The same bits for any number of threads, not on every
///           ISA
/// @cost     O(N D): with dice_mode::batch x is read three times; no allocation, 32 KB of stack
/// @threads  reentrant; concurrent calls are safe where what they write shares no byte
/// @error    shape_mismatch naming the operand; invalid_value where epsilon is not positive. On an error
///           nothing is written
/// @example  @snippet tests/dense/dice_test.cpp dice
/// @source   Zhou et al. 2018, arXiv:1706.06978
template <class Context, MemorySpace Space>
DEEPREC_PER_UNIT status dice_forward(Context&& context_or_executor, matrix_arg<const float, Space> x,
                                     std::type_identity_t<array_view<const float, Space>> alpha,
                                     const dice_statistics<Space>& statistics, matrix_view<float, Space> y,
                                     dice_options options = {}) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "dice_forward", detail::in_spaces<Space>);
  if (!call) return call.stopped();
  const index_t rows = x.extent(0), width = x.extent(1);
  if (!detail::well_formed(x)) return {errc::shape_mismatch, "dice_forward: x must be (N,D)"};
  if (!alpha.valid() || alpha.size() != width)
    return {errc::shape_mismatch, "dice_forward: alpha must be (D)"};
  if (!statistics.mean.valid() || statistics.mean.size() != width || !statistics.variance.valid() ||
      statistics.variance.size() != width)
    return {errc::shape_mismatch, "dice_forward: mean and variance must be (D)"};
  if (!detail::well_formed(y) || !detail::has_shape(y, x.extent(0), width))
    return {errc::shape_mismatch, "dice_forward: y must be (N,D)"};
  if (!(options.epsilon > 0)) return {errc::invalid_value, "dice_forward: epsilon must be positive"};
  if (options.mode == dice_mode::batch) {
    detail::dice_batch_statistics(ctx, matrix_view<const float>(x), {statistics.mean, statistics.variance});
  }
  const detail::dice_columns columns{statistics.mean.data(), statistics.variance.data(), alpha.data(),
                                     options.epsilon};
  const double ns = detail::dice_ns(*ctx.tuning, rows, width, 2);
  detail::run_bulk(ctx, {rows, detail::grain_for(*ctx.tuning, rows, ns), ns},
                   [&](index_t begin, index_t end, int) {
                     with_isa_up_to_avx512(ctx.instruction_set, [&](auto region) {
                       dice_rows(region, columns, {x.row(begin), x.stride(0)}, end - begin, width,
                                 y.row(begin), y.stride(0));
                     });
                   });
  return {};
}

/// The gradients of dice_forward, for the gradient g of y, with the options and statistics of that call:
///
///   h = g x (1 - alpha) p (1 - p)     direct = g (alpha + (1 - alpha) p)   s = 1 / sqrt(variance + epsilon)
///   x_gradient     = direct + s (h - mean(h) - u mean(h u))                        dice_mode::batch
///                  = direct + s h                                                  ::fixed
///   alpha_gradient = the sum over the batch of g (1 - p) x
///
/// @shape    x, y_gradient, x_gradient (N,D), any row stride · alpha, alpha_gradient (D) · statistics: mean
///           and variance (D)
/// @dtype    float
/// @space    all reachable from the context
/// @pre      x_gradient is y_gradient (same first element, same stride) or overlaps no input; what is written
///           shares no byte
/// @post     every element of x_gradient and alpha_gradient is written; the statistics are only read
/// @numerics float, sums as in dice_forward. The same bits for any number of threads, not on every ISA
/// @cost     O(N D): x and y_gradient are read twice; no allocation, 50 KB of stack
/// @threads  reentrant; concurrent calls are safe where what they write shares no byte
/// @error    shape_mismatch naming the operand; invalid_value where epsilon is not positive. On an error
///           nothing is written
/// @example  @snippet tests/dense/dice_test.cpp dice_backward
template <class Context, MemorySpace Space>
DEEPREC_PER_UNIT status dice_backward(Context&& context_or_executor, matrix_arg<const float, Space> x,
                                      std::type_identity_t<array_view<const float, Space>> alpha,
                                      const dice_statistics<Space>& statistics,
                                      matrix_arg<const float, Space> y_gradient,
                                      matrix_view<float, Space> x_gradient,
                                      std::type_identity_t<array_view<float, Space>> alpha_gradient,
                                      dice_options options = {}) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "dice_backward", detail::in_spaces<Space>);
  if (!call) return call.stopped();
  const index_t rows = x.extent(0), columns = x.extent(1);
  if (!detail::well_formed(x)) return {errc::shape_mismatch, "dice_backward: x must be (N,D)"};
  if (!alpha.valid() || alpha.size() != columns)
    return {errc::shape_mismatch, "dice_backward: alpha must be (D)"};
  if (!statistics.mean.valid() || statistics.mean.size() != columns || !statistics.variance.valid() ||
      statistics.variance.size() != columns)
    return {errc::shape_mismatch, "dice_backward: mean and variance must be (D)"};
  if (!detail::well_formed(y_gradient) || !detail::has_shape(y_gradient, rows, columns))
    return {errc::shape_mismatch, "dice_backward: y_gradient must be (N,D)"};
  if (!detail::well_formed(x_gradient) || !detail::has_shape(x_gradient, rows, columns))
    return {errc::shape_mismatch, "dice_backward: x_gradient must be (N,D)"};
  if (!alpha_gradient.valid() || alpha_gradient.size() != columns)
    return {errc::shape_mismatch, "dice_backward: alpha_gradient must be (D)"};
  if (!(options.epsilon > 0)) return {errc::invalid_value, "dice_backward: epsilon must be positive"};
  const index_t piece = detail::dice_piece(rows), pieces = (rows + piece - 1) / piece;
  const double count = static_cast<double>((std::max)(rows, index_t{1}));
  // p of the sums is kept where the gradient will be, unless that is still to be read.
  const bool keeps = x_gradient.data_handle() != y_gradient.data_handle();
  detail::dice_partials<3> partial;
  for (index_t first = 0; first < columns; first += detail::dice_panel) {
    const index_t width = (std::min)(detail::dice_panel, columns - first);
    const detail::dice_columns panel =
        detail::dice_columns{statistics.mean.data(), statistics.variance.data(), alpha.data(),
                             options.epsilon}
            .from(first);
    const double ns = detail::dice_ns(*ctx.tuning, rows, width, 3);
    detail::dice_for_pieces(ctx, rows, ns, [&](auto region, index_t row, index_t n, index_t i) {
      dice_sums(region, panel, {x.row(row) + first, x.stride(0)},
                {y_gradient.row(row) + first, y_gradient.stride(0)}, n, width,
                keeps ? x_gradient.row(row) + first : nullptr, x_gradient.stride(0), partial.of[0][i],
                partial.of[1][i], partial.of[2][i]);
    });
    float mean_h[detail::dice_panel] = {}, mean_hu[detail::dice_panel] = {};
    for (index_t j = 0; j < width; ++j) {
      alpha_gradient.data()[first + j] = static_cast<float>(detail::dice_total(partial, 0, j, pieces));
      if (options.mode == dice_mode::fixed) continue;
      mean_h[j] = static_cast<float>(detail::dice_total(partial, 1, j, pieces) / count);
      mean_hu[j] = static_cast<float>(detail::dice_total(partial, 2, j, pieces) / count);
    }
    detail::run_bulk(
        ctx, {rows, detail::grain_for(*ctx.tuning, rows, ns), ns}, [&](index_t begin, index_t end, int) {
          with_isa_up_to_avx512(ctx.instruction_set, [&](auto region) {
            dice_rows_backward(region, panel, {x.row(begin) + first, x.stride(0)},
                               {y_gradient.row(begin) + first, y_gradient.stride(0)}, end - begin, width,
                               keeps, mean_h, mean_hu, x_gradient.row(begin) + first, x_gradient.stride(0));
          });
        });
  }
  return {};
}

/// Moves running averages towards the statistics of a batch: average += momentum (batch - average).
///
/// @shape    both: mean and variance (D)
/// @dtype    float
/// @space    host
/// @post     every element of averages is written
/// @numerics float, two roundings
/// @cost     O(D)
/// @threads  reentrant on distinct averages
/// @error    shape_mismatch; invalid_value where momentum is not in [0, 1]. On an error nothing is written
/// @example  @snippet tests/dense/dice_test.cpp dice
template <class Context>
DEEPREC_PER_UNIT status dice_average(Context&& context_or_executor, const dice_statistics<>& batch,
                                     float momentum, const dice_statistics<>& averages) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "dice_average");
  if (!call) return call.stopped();
  const index_t width = batch.mean.size();
  for (const array_view<float>& part : {batch.mean, batch.variance, averages.mean, averages.variance}) {
    if (!part.valid() || part.size() != width)
      return {errc::shape_mismatch, "dice_average: means and variances must be (D)"};
  }
  if (!(momentum >= 0 && momentum <= 1))
    return {errc::invalid_value, "dice_average: momentum must be in [0, 1]"};
  for (index_t j = 0; j < width; ++j) {
    averages.mean.data()[j] += momentum * (batch.mean.data()[j] - averages.mean.data()[j]);
    averages.variance.data()[j] += momentum * (batch.variance.data()[j] - averages.variance.data()[j]);
  }
  return {};
}

}}  // namespace deeprec::DEEPREC_ABI
