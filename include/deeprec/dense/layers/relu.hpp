// The rectifier y = max(x, 0) and its gradient, element by element.
//
//   x   -1.5   0   2   NaN          dy    5   5   5          gradient passes where y > 0
//   y    0     0   2   NaN          dx    0   0   5
#pragma once

#include <algorithm>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail { inline namespace DEEPREC_UNIT {

/// Rows [begin, end).
DEEPREC_APART inline void relu_rows(matrix_view<const float> input, matrix_view<float> output, index_t begin,
                                    index_t end) noexcept {
  const index_t width = input.extent(1);
  for (index_t i = begin; i < end; ++i) {
    const float* x = input.row(i);
    float* y = output.row(i);
    for (index_t j = 0; j < width; ++j) y[j] = x[j] < 0 ? 0 : x[j];
  }
}

DEEPREC_APART inline void relu_rows_backward(matrix_view<const float> output,
                                             matrix_view<const float> output_gradient,
                                             matrix_view<float> input_gradient, index_t begin,
                                             index_t end) noexcept {
  const index_t width = output.extent(1);
  for (index_t i = begin; i < end; ++i) {
    const float* y = output.row(i);
    const float* dy = output_gradient.row(i);
    float* dx = input_gradient.row(i);
    for (index_t j = 0; j < width; ++j) dx[j] = y[j] > 0 ? dy[j] : 0;
  }
}

}}  // namespace detail::DEEPREC_UNIT

/// y = max(x, 0); a NaN stays a NaN.
///
/// @shape   input (B,W) · output (B,W), which may be the input itself
/// @dtype   float
/// @space   host
/// @cost    O(BW), one read and one write
/// @threads thread-safe on distinct outputs
/// @error   shape_mismatch
template <class Context>
DEEPREC_PER_UNIT status relu_forward(Context&& context_or_executor, matrix_view<const float> input,
                                     matrix_view<float> output) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "relu_forward");
  if (!call) return call.stopped();
  const index_t width = input.extent(1);
  if (!detail::well_formed(input) || !detail::well_formed(output) ||
      !detail::has_shape(output, input.extent(0), width)) {
    return {errc::shape_mismatch, "relu_forward: output must be (B,W)"};
  }
  if (input.empty()) return {};
  const double ns = detail::ns_of_bytes(*ctx.tuning, input.extent(0) * width * 8);
  detail::run_bulk(ctx, {input.extent(0), std::max<index_t>(1, 16384 / width), ns},
                   [&](index_t begin, index_t end, int) { detail::relu_rows(input, output, begin, end); });
  return {};
}

/// dx = dy where y > 0, else 0.
///
/// @shape   output, output_gradient (B,W) · input_gradient (B,W), which may be output_gradient itself
/// @dtype   float
/// @space   host
/// @cost    O(BW)
/// @threads thread-safe on distinct input_gradient
/// @error   shape_mismatch
template <class Context>
DEEPREC_PER_UNIT status relu_backward(Context&& context_or_executor, matrix_view<const float> output,
                                      matrix_view<const float> output_gradient,
                                      matrix_view<float> input_gradient) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "relu_backward");
  if (!call) return call.stopped();
  const index_t width = output.extent(1);
  if (!detail::well_formed(output) || !detail::well_formed(output_gradient) ||
      !detail::has_shape(output_gradient, output.extent(0), width)) {
    return {errc::shape_mismatch, "relu_backward: output_gradient must be (B,W)"};
  }
  if (!detail::well_formed(input_gradient) || !detail::has_shape(input_gradient, output.extent(0), width)) {
    return {errc::shape_mismatch, "relu_backward: input_gradient must be (B,W)"};
  }
  if (output.empty()) return {};
  const double ns = detail::ns_of_bytes(*ctx.tuning, output.extent(0) * width * 12);
  detail::run_bulk(ctx, {output.extent(0), std::max<index_t>(1, 16384 / width), ns},
                   [&](index_t begin, index_t end, int) {
                     detail::relu_rows_backward(output, output_gradient, input_gradient, begin, end);
                   });
  return {};
}

}}  // namespace deeprec::DEEPREC_ABI
