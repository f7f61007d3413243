// Rows of length one, so that dot products of them are cosines: the last layer of a two-tower model.
//
//   normalize_rows_forward(ctx, queries, q, q_inverse);            (B,D) -> (B,D), (B)
//   normalize_rows_forward(ctx, items, t, t_inverse);
//   gemm(ctx, {.b = gemm_operand::transposed}, q, t, cosines);     (B,B); see losses/in_batch_softmax.hpp
//
// Source: Huang et al. 2013, "Learning Deep Structured Semantic Models for Web Search using Clickthrough
// Data", CIKM.
#pragma once

#include <type_traits>

#include <deeprec/core/array_view.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/kernel_tuning.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/dense/layers/detail/normalize_rows_kernels.hpp>
#include <deeprec/simd/dispatch.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// output = input / max(|input|, epsilon), row by row; |input| is the Euclidean norm of a row.
///
/// @shape    input (B,D) · output (B,D), which may be input itself · inverse_norms (B); any row stride.
///           epsilon in [2^-126, 2^126]
/// @dtype    float
/// @space    all reachable from the context
/// @pre      output is input or overlaps nothing; inverse_norms overlaps nothing
/// @post     every element of output is written; inverse_norms[i] = 1 / max(|input_i|, epsilon)
/// @numerics |err| <= (D/2 + 4) u |output|, u = 2^-24, where the norm is at most 2^126; inverse_norms too.
///           No norm overflows or underflows: where the sum of squares leaves [2^-80, 2^120], the row is
///           computed in double. A row of zeros stays zeros, with 1 / epsilon. A NaN makes all of its row and
///           its inverse norm NaN; an infinity becomes NaN, with 0 for the others and the inverse norm. The
///           same bits for any number of threads, not on every ISA
/// @cost     O(BD), one read and one write; no allocation
/// @threads  reentrant; concurrent calls are safe where their outputs share no byte
/// @error    shape_mismatch · invalid_value for epsilon. On an error nothing is written
/// @example  @snippet tests/dense/normalize_rows_test.cpp normalize_rows
template <class Context, MemorySpace Space>
DEEPREC_PER_UNIT status normalize_rows_forward(Context&& context_or_executor,
                                               matrix_arg<const float, Space> input,
                                               matrix_view<float, Space> output,
                                               std::type_identity_t<array_view<float, Space>> inverse_norms,
                                               float epsilon = 1e-12F) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "normalize_rows_forward", detail::in_spaces<Space>);
  if (!call) return call.stopped();
  if (!detail::well_formed(input) || !detail::well_formed(output) ||
      !detail::has_shape(output, input.extent(0), input.extent(1))) {
    return {errc::shape_mismatch, "normalize_rows_forward: output must be (B,D), as input"};
  }
  if (!inverse_norms.valid() || inverse_norms.size() != input.extent(0)) {
    return {errc::shape_mismatch, "normalize_rows_forward: inverse_norms must be (B)"};
  }
  if (!(epsilon >= 0x1p-126F && epsilon <= 0x1p126F)) {
    return {errc::invalid_value, "normalize_rows_forward: epsilon must be in [2^-126, 2^126]"};
  }
  const index_t rows = input.extent(0), width = input.extent(1);
  const double ns = detail::ns_of_bytes(*ctx.tuning, rows * (width + 1) * 8);
  detail::run_bulk(
      ctx, {rows, detail::grain_for(*ctx.tuning, rows, ns), ns}, [&](index_t begin, index_t end, int) {
        with_isa_up_to_avx512(ctx.instruction_set, [&](auto region) {
          for (index_t i = begin; i < end; ++i) {
            inverse_norms.data()[i] = normalize_row(region, input.row(i), output.row(i), width, epsilon);
          }
        });
      });
  return {};
}

/// The gradient of normalize_rows_forward with respect to its input, for y = output and dy = output_gradient:
///
///   inverse_norm (dy - y (y . dy))     where the norm is larger than epsilon
///   inverse_norm dy                    where inverse_norm is 1 / epsilon: the divisor is a constant there
///
/// So the gradient of a row of zeros is dy / epsilon.
///
/// @shape    output, output_gradient (B,D) · inverse_norms (B) · input_gradient (B,D), which may be
///           output_gradient or output itself; any row stride. epsilon as in the forward pass
/// @dtype    float
/// @space    all reachable from the context
/// @pre      output and inverse_norms are those of the forward pass
/// @post     every element of input_gradient is written
/// @numerics float, for the given output and inverse norm: |err| <= inverse_norm u ((D + 4) |y| sum|y dy| +
///           3 |dy|), u = 2^-24. A NaN in dy makes its row NaN. The same bits for any number of threads, not
///           on every ISA
/// @cost     O(BD), no allocation
/// @threads  reentrant; concurrent calls are safe where their gradients share no byte
/// @error    shape_mismatch · invalid_value for epsilon. On an error nothing is written
/// @example  @snippet tests/dense/normalize_rows_test.cpp normalize_rows_backward
template <class Context, MemorySpace Space>
DEEPREC_PER_UNIT status
normalize_rows_backward(Context&& context_or_executor, matrix_arg<const float, Space> output,
                        std::type_identity_t<array_view<const float, Space>> inverse_norms,
                        matrix_arg<const float, Space> output_gradient,
                        matrix_view<float, Space> input_gradient, float epsilon = 1e-12F) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "normalize_rows_backward", detail::in_spaces<Space>);
  if (!call) return call.stopped();
  const index_t rows = output.extent(0), width = output.extent(1);
  if (!detail::well_formed(output) || !detail::well_formed(output_gradient) ||
      !detail::has_shape(output_gradient, rows, width)) {
    return {errc::shape_mismatch, "normalize_rows_backward: output_gradient must be (B,D), as output"};
  }
  if (!detail::well_formed(input_gradient) || !detail::has_shape(input_gradient, rows, width)) {
    return {errc::shape_mismatch, "normalize_rows_backward: input_gradient must be (B,D), as output"};
  }
  if (!inverse_norms.valid() || inverse_norms.size() != rows) {
    return {errc::shape_mismatch, "normalize_rows_backward: inverse_norms must be (B)"};
  }
  if (!(epsilon >= 0x1p-126F && epsilon <= 0x1p126F)) {
    return {errc::invalid_value, "normalize_rows_backward: epsilon must be in [2^-126, 2^126]"};
  }
  const double ns = detail::ns_of_bytes(*ctx.tuning, rows * (width + 1) * 12);
  detail::run_bulk(
      ctx, {rows, detail::grain_for(*ctx.tuning, rows, ns), ns}, [&](index_t begin, index_t end, int) {
        with_isa_up_to_avx512(ctx.instruction_set, [&](auto region) {
          for (index_t i = begin; i < end; ++i) {
            normalize_row_backward(region, output.row(i), inverse_norms.data()[i], output_gradient.row(i),
                                   input_gradient.row(i), width, epsilon);
          }
        });
      });
  return {};
}

}}  // namespace deeprec::DEEPREC_ABI
