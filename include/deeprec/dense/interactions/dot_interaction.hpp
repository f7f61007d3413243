// DLRM's feature interaction: the dense vector, and the dot product of every pair of vectors.
//
//   dense  (B,D)     v0                    out (B, D + F(F-1)/2),  F = 1 + T
//   pooled (B,T*D)   v1 v2 ... vT          [ v0 | v1.v0 | v2.v0 v2.v1 | v3.v0 v3.v1 v3.v2 | ... ]
//
// The triangle is strictly lower, row by row, as in DLRM ("dot" without self-interaction).
// Source: Naumov et al. 2019, arXiv:1906.00091.
#pragma once

#include <algorithm>
#include <cstddef>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/kernel_tuning.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/dense/interactions/detail/dot_interaction_args.hpp>
#include <deeprec/simd/dispatch.hpp>
#include <deeprec/simd/places.hpp>
#include <deeprec/simd/transpose_tiles.hpp>
#include <deeprec/simd/vectors.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/verb.hpp>

#define DEEPREC_REGION_SOURCE "deeprec/dense/interactions/detail/dot_interaction.inl"
#include <deeprec/simd/foreach_region.hpp>

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

/// Of `samples`, backward: twice.
inline double interaction_ns(const kernel_tuning& tuning, index_t samples, index_t tables,
                             index_t width) noexcept {
  return ns_of_products(tuning, samples, (tables + 1) * (tables + 1), width);
}

/// Whether `floats` for each sample are more than the second-level cache keeps. Then a sample's rows are
/// fetched while the sample before it is computed.
inline bool interaction_leaves_cache(const kernel_tuning& tuning, index_t samples, index_t floats) noexcept {
  return capped_product(samples, floats) > tuning.own_cache_bytes / index_t{sizeof(float)};
}

}  // namespace detail

/// The dense vector and the pairwise dot products of every sample.
///
/// @shape    dense (B,D) · pooled (B,T*D): table t in columns t*D .. (t+1)*D ·
///           output (B, D + (T+1)T/2); any row stride
/// @dtype    float
/// @space    all reachable from the context
/// @pre      output overlaps no input
/// @post     every element of output is written
/// @numerics float; the products of a pair are added in the order of the columns, fused where the ISA has it:
///           |err| <= D u sum|x y|, u = 2^-24. The same bits for any number of threads, not on every ISA
/// @cost     O(B T^2 D); no allocation, 22 KB of stack
/// @threads  reentrant; concurrent calls are safe where their outputs share no byte
/// @error    shape_mismatch. On an error nothing is written
/// @example  @snippet tests/dense/dot_interaction_test.cpp dot_interaction
/// @source   Naumov et al. 2019, arXiv:1906.00091
template <class Context, MemorySpace Space>
DEEPREC_PER_UNIT status dot_interaction_forward(Context&& context_or_executor,
                                                matrix_arg<const float, Space> dense,
                                                matrix_arg<const float, Space> pooled,
                                                matrix_view<float, Space> output) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "dot_interaction_forward", detail::in_spaces<Space>);
  if (!call) return call.stopped();
  if (detail::interacting_tables(dense, pooled, output) < 0) {
    return {errc::shape_mismatch,
            "dot_interaction_forward: shapes must be dense (B,D), pooled (B,T*D), output (B, D + (T+1)T/2)"};
  }
  const index_t samples = dense.extent(0), width = dense.extent(1);
  const index_t tables = pooled.extent(1) / width;
  const double ns = detail::interaction_ns(*ctx.tuning, samples, tables, width);
  const bool fetches =
      detail::interaction_leaves_cache(*ctx.tuning, samples, pooled.extent(1) + output.extent(1));
  detail::run_bulk(
      ctx, {samples, detail::grain_for(*ctx.tuning, samples, ns), ns}, [&](index_t begin, index_t end, int) {
        detail::interaction_scratch scratch;
        with_isa_up_to_avx512(ctx.instruction_set, [&](auto region) {
          for (index_t b = begin; b < end; ++b) {
            if (fetches && b + 1 < end) {
              detail::fetch_row(pooled.row(b + 1), pooled.extent(1));
              detail::fetch_row(output.row(b + 1), output.extent(1));
            }
            float* const triangle = std::copy_n(dense.row(b), width, output.row(b));
            if (tables == 0) continue;
            dot_triangle(region, {dense.row(b), pooled.row(b), tables + 1, width}, scratch, triangle);
          }
        });
      });
  return {};
}

/// The gradients of dot_interaction_forward, for the gradient of its output.
///
/// @shape    dense (B,D) · pooled (B,T*D) · output_gradient (B, D + (T+1)T/2) ·
///           dense_gradient (B,D) · pooled_gradient (B,T*D); any row stride
/// @dtype    float
/// @space    all reachable from the context
/// @pre      the gradients overlap no input, nor each other
/// @post     every element of the gradients is written
/// @numerics float; a gradient is a sum over the other vectors, fused where the ISA has it:
///           |err| <= (T + 1) u sum|g v|. The same bits for any number of threads, not on every ISA
/// @cost     O(B T^2 D); no allocation, 22 KB of stack
/// @threads  reentrant; concurrent calls are safe where their gradients share no byte
/// @error    shape_mismatch. On an error nothing is written
/// @example  @snippet tests/dense/dot_interaction_test.cpp dot_interaction_backward
template <class Context, MemorySpace Space>
DEEPREC_PER_UNIT status dot_interaction_backward(Context&& context_or_executor,
                                                 matrix_arg<const float, Space> dense,
                                                 matrix_arg<const float, Space> pooled,
                                                 matrix_arg<const float, Space> output_gradient,
                                                 matrix_view<float, Space> dense_gradient,
                                                 matrix_arg<float, Space> pooled_gradient) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "dot_interaction_backward", detail::in_spaces<Space>);
  if (!call) return call.stopped();
  if (detail::interacting_tables(dense, pooled, output_gradient) < 0) {
    return {errc::shape_mismatch,
            "dot_interaction_backward: shapes must be dense (B,D), pooled (B,T*D), output_gradient "
            "(B, D + (T+1)T/2)"};
  }
  if (!detail::has_shape(dense_gradient, dense.extent(0), dense.extent(1)) ||
      !detail::well_formed(dense_gradient)) {
    return {errc::shape_mismatch, "dot_interaction_backward: dense_gradient must be (B,D)"};
  }
  if (!detail::has_shape(pooled_gradient, dense.extent(0), pooled.extent(1)) ||
      !detail::well_formed(pooled_gradient)) {
    return {errc::shape_mismatch, "dot_interaction_backward: pooled_gradient must be (B,T*D)"};
  }
  const index_t samples = dense.extent(0), width = dense.extent(1);
  const index_t tables = pooled.extent(1) / width;
  const double ns = 2 * detail::interaction_ns(*ctx.tuning, samples, tables, width);
  const bool fetches = detail::interaction_leaves_cache(*ctx.tuning, samples,
                                                        2 * pooled.extent(1) + output_gradient.extent(1));
  detail::run_bulk(ctx, {samples, detail::grain_for(*ctx.tuning, samples, ns), ns},
                   [&](index_t begin, index_t end, int) {
                     detail::interaction_scratch scratch;
                     with_isa_up_to_avx512(ctx.instruction_set, [&](auto region) {
                       for (index_t b = begin; b < end; ++b) {
                         if (fetches && b + 1 < end) {
                           detail::fetch_row(pooled.row(b + 1), pooled.extent(1));
                           detail::fetch_row(output_gradient.row(b + 1), output_gradient.extent(1));
                           detail::fetch_row(pooled_gradient.row(b + 1), pooled_gradient.extent(1));
                         }
                         dot_triangle_backward(region, {dense.row(b), pooled.row(b), tables + 1, width},
                                               output_gradient.row(b), scratch,
                                               {dense_gradient.row(b), pooled_gradient.row(b)});
                       }
                     });
                   });
  return {};
}

}}  // namespace deeprec::DEEPREC_ABI
