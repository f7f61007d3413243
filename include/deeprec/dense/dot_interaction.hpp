// DLRM's feature interaction: the dense vector, and the dot product of every pair of vectors.
//
//   dense  (B,D)     v0                    out (B, D + F(F-1)/2),  F = 1 + T
//   pooled (B,T*D)   v1 v2 ... vT          [ v0 | v1.v0 | v2.v0 v2.v1 | v3.v0 v3.v1 v3.v2 | ... ]
//
// The triangle is strictly lower, row by row, as in DLRM ("dot" without self-interaction).
// Source: Naumov et al. 2019, arXiv:1906.00091.
#pragma once

#include <algorithm>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/core/unit.hpp>
#include <deeprec/core/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Columns of the output of dot_interaction for `vectors` vectors (the dense one counts) of
/// `width`.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
constexpr index_t dot_interaction_width(index_t vectors, index_t width) noexcept {
  return width + vectors * (vectors - 1) / 2;
}

namespace detail {

/// T, or -1 when the shapes don't fit.
template <class Dense, class Pooled, class Out>
constexpr index_t interacting_tables(const Dense& dense, const Pooled& pooled, const Out& out) noexcept {
  const index_t width = dense.extent(1);
  if (!well_formed(dense) || !well_formed(pooled) || !well_formed(out) || width == 0) return -1;
  if (pooled.extent(1) % width != 0) return -1;
  const index_t tables = pooled.extent(1) / width;
  if (tables >= index_t{1} << 31) return -1;  // more pairs than columns can be counted
  const bool rows = dense.extent(0) == pooled.extent(0) && out.extent(0) == dense.extent(0);
  return rows && out.extent(1) == dot_interaction_width(tables + 1, width) ? tables : -1;
}

inline namespace DEEPREC_UNIT {

/// Eight sums, j modulo 8, then pairwise: the fixed order of a dot product of one interaction.
DEEPREC_INLINE float interaction_dot(const float* x, const float* y, index_t width) noexcept {
  float s[8] = {};
  index_t j = 0;
  for (; j + 8 <= width; j += 8) {
    for (int l = 0; l < 8; ++l) s[l] += x[j + l] * y[j + l];
  }
  for (int l = 0; j < width; ++j, ++l) s[l] += x[j] * y[j];
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

/// y += factor * x.
DEEPREC_INLINE void interaction_add(float factor, const float* x, float* y, index_t width) noexcept {
  index_t j = 0;
  for (; j + 8 <= width; j += 8) {
    for (int l = 0; l < 8; ++l) y[j + l] += factor * x[j + l];
  }
  for (; j < width; ++j) y[j] += factor * x[j];
}

/// Samples [begin, end).
DEEPREC_APART inline void interact(matrix_view<const float> dense, matrix_view<const float> pooled,
                                   index_t tables, matrix_view<float> output, index_t begin,
                                   index_t end) noexcept {
  const index_t width = dense.extent(1);
  for (index_t b = begin; b < end; ++b) {
    const float* v0 = dense.row(b);
    const float* v = tables == 0 ? nullptr : pooled.row(b);
    float* out = std::copy_n(v0, width, output.row(b));
    for (index_t i = 0; i < tables; ++i) {
      const float* vi = v + i * width;
      *out++ = interaction_dot(vi, v0, width);
      for (index_t j = 0; j < i; ++j) *out++ = interaction_dot(vi, v + j * width, width);
    }
  }
}

DEEPREC_APART inline void interact_backward(matrix_view<const float> dense, matrix_view<const float> pooled,
                                            index_t tables, matrix_view<const float> output_gradient,
                                            matrix_view<float> dense_gradient,
                                            matrix_view<float> pooled_gradient, index_t begin,
                                            index_t end) noexcept {
  const index_t width = dense.extent(1);
  for (index_t b = begin; b < end; ++b) {
    const float* v0 = dense.row(b);
    const float* g = output_gradient.row(b);
    float* d0 = dense_gradient.row(b);
    std::copy_n(g, width, d0);
    g += width;
    if (tables == 0) continue;
    const float* v = pooled.row(b);
    float* d = pooled_gradient.row(b);
    std::fill_n(d, tables * width, 0.0F);
    for (index_t i = 0; i < tables; ++i) {
      const float* vi = v + i * width;
      float* di = d + i * width;
      interaction_add(*g, vi, d0, width);
      interaction_add(*g++, v0, di, width);
      for (index_t j = 0; j < i; ++j) {
        interaction_add(*g, vi, d + j * width, width);
        interaction_add(*g++, v + j * width, di, width);
      }
    }
  }
}

}  // namespace DEEPREC_UNIT

inline index_t interaction_grain(index_t tables, index_t width) noexcept {
  return tables >= 256 ? 1 : std::max<index_t>(1, 65536 / ((tables + 1) * (tables + 1)) / width);
}

}  // namespace detail

/// The dense vector and the pairwise dot products of every sample.
///
/// @shape    dense (B,D) · pooled (B,T*D): table t in columns t*D .. (t+1)*D ·
///           output (B, D + (T+1)T/2)
/// @dtype    float
/// @space    host
/// @pre      output overlaps no input
/// @numerics float; a dot product is eight sums (column modulo 8) added pairwise. A unit compiled with FMA
///           may round a product and its sum once, so its bits differ from those of a unit without
/// @cost     O(B T^2 D / 2)
/// @threads  thread-safe on distinct outputs; the same bits for any number of workers
/// @error    shape_mismatch
template <class Context, class = detail::unit>
[[nodiscard]] status dot_interaction_forward(Context&& context_or_executor, matrix_view<const float> dense,
                                             matrix_view<const float> pooled, matrix_view<float> output) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::verb_call call(ctx, "dot_interaction_forward");
  if (!call) return call.stopped();
  const index_t tables = detail::interacting_tables(dense, pooled, output);
  if (tables < 0) {
    return {errc::shape_mismatch,
            "dot_interaction_forward: shapes must be dense (B,D), pooled (B,T*D), output (B, D + (T+1)T/2)"};
  }
  const index_t width = dense.extent(1);
  ctx.executor->parallel_for(
      dense.extent(0), detail::interaction_grain(tables, width),
      [&](index_t begin, index_t end, int) { detail::interact(dense, pooled, tables, output, begin, end); });
  return {};
}

/// The gradients of dot_interaction_forward, for the gradient of its output.
///
/// @shape    dense (B,D) · pooled (B,T*D) · output_gradient (B, D + (T+1)T/2) ·
///           dense_gradient (B,D) · pooled_gradient (B,T*D)
/// @dtype    float
/// @space    host
/// @pre      the gradients overlap no input
/// @post     gradients are overwritten
/// @numerics float; the terms of a gradient are added in the order of the output's columns; FMA changes
///           the bits as in the forward pass
/// @cost     O(B T^2 D)
/// @threads  thread-safe on distinct gradients; the same bits for any number of workers
/// @error    shape_mismatch
template <class Context, class = detail::unit>
[[nodiscard]] status dot_interaction_backward(Context&& context_or_executor, matrix_view<const float> dense,
                                              matrix_view<const float> pooled,
                                              matrix_view<const float> output_gradient,
                                              matrix_view<float> dense_gradient,
                                              matrix_view<float> pooled_gradient) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::verb_call call(ctx, "dot_interaction_backward");
  if (!call) return call.stopped();
  const index_t tables = detail::interacting_tables(dense, pooled, output_gradient);
  if (tables < 0) {
    return {errc::shape_mismatch,
            "dot_interaction_backward: shapes must be dense (B,D), pooled (B,T*D), output_gradient "
            "(B, D + (T+1)T/2)"};
  }
  const index_t width = dense.extent(1);
  if (!detail::has_shape(dense_gradient, dense.extent(0), width) || !detail::well_formed(dense_gradient)) {
    return {errc::shape_mismatch, "dot_interaction_backward: dense_gradient must be (B,D)"};
  }
  if (!detail::has_shape(pooled_gradient, dense.extent(0), tables * width) ||
      !detail::well_formed(pooled_gradient)) {
    return {errc::shape_mismatch, "dot_interaction_backward: pooled_gradient must be (B,T*D)"};
  }
  ctx.executor->parallel_for(dense.extent(0), detail::interaction_grain(tables, width),
                             [&](index_t begin, index_t end, int) {
                               detail::interact_backward(dense, pooled, tables, output_gradient,
                                                         dense_gradient, pooled_gradient, begin, end);
                             });
  return {};
}

}}  // namespace deeprec::DEEPREC_ABI
