// The second-order factorization machine over the pooled vectors of a sample: for each column, the sum over
// all pairs of vectors of their product.
//
//   pooled (B,T*D)   v1 v2 ... vT     b_d = sum over i < j of v_id v_jd
//   output (B,D)     b                      = ((sum_t v_td)^2 - sum_t v_td^2) / 2
//          (B,1)     sum_d b_d
//
// (B,D) is the bi-interaction pooling before a network, (B,1) the second-order term of a logit. The kernel
// adds the product of each vector with the sum of those before it, which is O(T D) too, and has no difference
// of squares to cancel.
// Source: Guo et al. 2017 (DeepFM), arXiv:1703.04247; He and Chua 2017 (NFM), arXiv:1708.05027.
#pragma once

#include <algorithm>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/kernel_tuning.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/dense/interactions/detail/fm_interaction_args.hpp>
#include <deeprec/simd/dispatch.hpp>
#include <deeprec/simd/places.hpp>
#include <deeprec/simd/vectors.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/verb.hpp>

#define DEEPREC_REGION_SOURCE "deeprec/dense/interactions/detail/fm_interaction.inl"
#include <deeprec/simd/foreach_region.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {

template <class Pooled>
constexpr bool holds_vectors(const Pooled& pooled, index_t width) noexcept {
  return well_formed(pooled) && pooled.extent(1) % width == 0;
}
template <class Pooled, class Out>
constexpr bool takes_pairs(const Out& out, const Pooled& pooled, index_t width) noexcept {
  return well_formed(out) && out.extent(0) == pooled.extent(0) &&
         (out.extent(1) == width || out.extent(1) == 1);
}

}  // namespace detail

/// The sums over all pairs of vectors of their products, column by column, or the sum of all columns.
///
/// @shape    pooled (B,T*D), D = width: table t in columns t*D .. (t+1)*D · output (B,D), or (B,1) for the
///           sum over the columns; any row stride
/// @dtype    float
/// @space    all reachable from the context
/// @pre      output does not overlap pooled
/// @post     every element of output is written; zeros where T < 2
/// @numerics float; each vector is multiplied by the sum of those before it, in the order of the tables,
///           fused where the ISA has it: |err| <= T u sum over pairs |v_i v_j|, u = 2^-24. (B,1): |err| <=
///           (T + D) u times the sum over pairs and columns; the order of columns depends on D and the ISA
///           only. Plus half a denormal for each product that underflows. The same bits for any number of
///           threads, not on every ISA
/// @cost     O(B T D): one read of pooled, one write of output; no allocation
/// @threads  reentrant; concurrent calls are safe where their outputs share no byte
/// @error    shape_mismatch (names the operand). On an error nothing is written
/// @example  @snippet tests/dense/fm_interaction_test.cpp fm_interaction
/// @source   Guo et al. 2017, arXiv:1703.04247; He and Chua 2017, arXiv:1708.05027
template <class Context, MemorySpace Space>
DEEPREC_PER_UNIT status fm_interaction_forward(Context&& context_or_executor,
                                               matrix_arg<const float, Space> pooled, index_t width,
                                               matrix_view<float, Space> output) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "fm_interaction_forward", detail::in_spaces<Space>);
  if (!call) return call.stopped();
  if (width < 1) return {errc::shape_mismatch, "fm_interaction_forward: width must be at least 1"};
  if (!detail::holds_vectors(pooled, width)) {
    return {errc::shape_mismatch, "fm_interaction_forward: pooled must be (B,T*D), D = width"};
  }
  if (!detail::takes_pairs(output, pooled, width)) {
    return {errc::shape_mismatch, "fm_interaction_forward: output must be (B,D) or (B,1)"};
  }
  const index_t samples = pooled.extent(0);
  if (pooled.empty()) {  // no vectors, or no samples
    for (index_t b = 0; b < samples; ++b) std::fill_n(output.row(b), output.extent(1), 0.0F);
    return {};
  }
  const detail::fm_forward_args args{detail::rows_from(pooled, 0), detail::rows_from(output, 0),
                                     pooled.extent(1) / width, width, output.extent(1) == 1};
  const double ns = static_cast<double>(samples) *
                    detail::ns_of_bytes(*ctx.tuning, 4 * (pooled.extent(1) + output.extent(1)));
  detail::run_bulk(ctx, {samples, detail::grain_for(*ctx.tuning, samples, ns), ns},
                   [&](index_t begin, index_t end, int) {
                     with_isa_up_to_avx512(ctx.instruction_set,
                                           [&](auto region) { fm_forward(region, args, begin, end); });
                   });
  return {};
}

/// The gradient of fm_interaction_forward, for the gradient of its output: g_d (s_d - v_td), s the sum of the
/// vectors of a sample, which is computed anew from pooled.
///
/// @shape    pooled (B,T*D), D = width · output_gradient (B,D), or (B,1) for the sum over the columns ·
///           pooled_gradient (B,T*D); any row stride
/// @dtype    float
/// @space    all reachable from the context
/// @pre      pooled_gradient is pooled itself (same first element and stride), or overlaps no input
/// @post     every element of pooled_gradient is written
/// @numerics float, the sum in the order of the tables, one rounding for each operation:
///           |err| <= (T + 1) u |g| sum_t |v_t|, u = 2^-24. v_t is added to the sum and subtracted again: the
///           gradient of a vector that is much larger than the others has few correct digits, and that of an
///           infinite one is NaN. The same bits on every ISA and for any number of threads
/// @cost     O(B T D): two reads of pooled, the second from the cache where it holds a sample; one write of
///           pooled_gradient; no allocation
/// @threads  reentrant; concurrent calls are safe where their gradients share no byte
/// @error    shape_mismatch (names the operand). On an error nothing is written
/// @example  @snippet tests/dense/fm_interaction_test.cpp fm_interaction_backward
template <class Context, MemorySpace Space>
DEEPREC_PER_UNIT status fm_interaction_backward(Context&& context_or_executor,
                                                matrix_arg<const float, Space> pooled, index_t width,
                                                matrix_arg<const float, Space> output_gradient,
                                                matrix_view<float, Space> pooled_gradient) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "fm_interaction_backward", detail::in_spaces<Space>);
  if (!call) return call.stopped();
  if (width < 1) return {errc::shape_mismatch, "fm_interaction_backward: width must be at least 1"};
  if (!detail::holds_vectors(pooled, width)) {
    return {errc::shape_mismatch, "fm_interaction_backward: pooled must be (B,T*D), D = width"};
  }
  if (!detail::takes_pairs(output_gradient, pooled, width)) {
    return {errc::shape_mismatch, "fm_interaction_backward: output_gradient must be (B,D) or (B,1)"};
  }
  if (!detail::has_shape(pooled_gradient, pooled.extent(0), pooled.extent(1)) ||
      !detail::well_formed(pooled_gradient)) {
    return {errc::shape_mismatch, "fm_interaction_backward: pooled_gradient must be (B,T*D)"};
  }
  if (pooled.empty()) return {};
  const index_t samples = pooled.extent(0);
  const detail::fm_backward_args args{detail::rows_from(pooled, 0),
                                      detail::rows_from(output_gradient, 0),
                                      detail::rows_from(pooled_gradient, 0),
                                      pooled.extent(1) / width,
                                      width,
                                      output_gradient.extent(1) == 1};
  const double ns = static_cast<double>(samples) *
                    detail::ns_of_bytes(*ctx.tuning, 4 * (2 * pooled.extent(1) + output_gradient.extent(1)));
  detail::run_bulk(ctx, {samples, detail::grain_for(*ctx.tuning, samples, ns), ns},
                   [&](index_t begin, index_t end, int) {
                     with_isa_up_to_avx512(ctx.instruction_set,
                                           [&](auto region) { fm_backward(region, args, begin, end); });
                   });
  return {};
}

}}  // namespace deeprec::DEEPREC_ABI
