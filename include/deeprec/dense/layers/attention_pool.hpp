// The output of DIN's attention unit: the weighted sum of each history.
//
//   scores  (N,1)   s0 s1  s2        out (B,D)    s0 k0 + s1 k1
//   keys    (N,D)   k0 k1  k2                     s2 k2
//   offsets         0      2   3
//
// DIN takes the scores as they are. With a matrix for the weights, they are the softmax of the scores of a
// sample. Histories have any lengths; of an empty one the sum is 0.
#pragma once

#include <deeprec/core/array_view.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/kernel_tuning.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/dense/layers/attention_options.hpp>
#include <deeprec/dense/layers/detail/attention_args.hpp>
#include <deeprec/dense/layers/detail/attention_kernels.hpp>
#include <deeprec/simd/dispatch.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {

/// The texts of the faults of the operands of both directions: literals.
struct pool_texts {
  const char* keys;
  const char* scores;
  const char* pooled;
};

/// The checks of both directions. scores: or weights; pooled: the output or its gradient.
template <class Scores, class Keys, class Pooled>
status check_pool_shapes(const Scores& scores, const Keys& keys, const Pooled& pooled,
                         const pool_texts& texts) noexcept {
  if (!well_formed(keys)) return {errc::shape_mismatch, texts.keys};
  if (!well_formed(scores) || !has_shape(scores, keys.extent(0), 1))
    return {errc::shape_mismatch, texts.scores};
  if (!well_formed(pooled) || pooled.extent(1) != keys.extent(1)) return {errc::shape_mismatch, texts.pooled};
  return {};
}

/// attention_pool_forward; `weights` is not used without a softmax.
template <MemorySpace Space, class Context, class Offsets>
DEEPREC_PER_UNIT status pool_histories(const Context& ctx, attention_weights kind,
                                       matrix_view<const float, Space> scores,
                                       matrix_view<const float, Space> keys, const Offsets& offsets,
                                       matrix_view<float, Space> weights, matrix_view<float, Space> output) {
  const bool softmax = kind == attention_weights::softmax;
  const auto ranges = history_offsets<Space>(offsets);
  const index_t positions = keys.extent(0), width = keys.extent(1);
  if (const status s = check_pool_shapes(
          scores, keys, output,
          {"attention_pool_forward: keys must be (N,D)", "attention_pool_forward: scores must be (N,1)",
           "attention_pool_forward: output must be (B,D)"});
      !s) {
    return s;
  }
  if (softmax && (!well_formed(weights) || !has_shape(weights, positions, 1)))
    return {errc::shape_mismatch, "attention_pool_forward: weights must be (N,1)"};
  if (const status s = check_offsets(ranges, output.extent(0), positions); !s)
    return s.in_operation("attention_pool_forward");
  const history_ranges samples{ranges.data(), output.extent(0)};
  const index_t units = samples.units();
  const double ns = ns_of_bytes(*ctx.tuning, units * (width + 2) * index_t{sizeof(float)}) +
                    (softmax ? 5 * static_cast<double>(units) : 0);
  run_bulk(ctx, {units, grain_for(*ctx.tuning, units, ns), ns}, [&](index_t begin, index_t end, int) {
    const index_t last = samples.first_from(end);
    with_isa_up_to_avx512(ctx.instruction_set, [&](auto region) {
      for (index_t b = samples.first_from(begin); b < last; ++b) {
        const index_t first = samples.begin(b), length = samples.end(b) - first;
        float_rows<const float> used = rows_from(scores, first);
        if (softmax) {
          const float_rows<float> written = rows_from(weights, first);
          softmax_scores(region, used, length, written);
          used = {written.first, written.stride};
        }
        weighted_sum(region, used, {rows_from(keys, first), length, width}, output.row(b));
      }
    });
  });
  return {};
}

}  // namespace detail

/// The sum of score times key over each history, without a softmax.
///
/// @shape    scores (N,1) · keys (N,D) · offsets (B+1), from 0 to N · output (B,D); any row stride
/// @dtype    float; offsets: std::int32_t or std::int64_t
/// @space    all reachable from the context
/// @pre      output overlaps no input
/// @post     every element of output is written, 0 for samples without positions
/// @numerics float, fused where the ISA has it, in the order of the positions: of a sample of L
///           |err| <= L u sum|s k|, u = 2^-24. The same bits for any number of threads, not on every ISA
/// @cost     O(N D), one read of keys; no allocation. Threads share the samples by their positions
/// @threads  reentrant; concurrent calls are safe where their outputs share no byte
/// @error    shape_mismatch naming the operand; offsets_negative, offsets_decreasing (bag = the sample, value
///           = the offset). On an error nothing is written
/// @example  @snippet tests/dense/attention_test.cpp attention_pool
/// @source   Zhou et al. 2018, arXiv:1706.06978
template <class Context, class Offsets, MemorySpace Space>
DEEPREC_PER_UNIT status attention_pool_forward(Context&& context_or_executor,
                                               matrix_arg<const float, Space> scores,
                                               matrix_arg<const float, Space> keys, const Offsets& offsets,
                                               matrix_view<float, Space> output) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "attention_pool_forward", detail::in_spaces<Space>);
  if (!call) return call.stopped();
  return detail::pool_histories<Space>(ctx, attention_weights::scores, scores, keys, offsets, {}, output);
}

/// The sum of weight times key over each history; the weights are the softmax of the scores of the sample.
///
/// @shape    scores (N,1) · keys (N,D) · offsets (B+1), from 0 to N · weights (N,1), which may be the scores
///           · output (B,D); any row stride
/// @dtype    float; offsets: std::int32_t or std::int64_t
/// @space    all reachable from the context
/// @pre      output and weights overlap no input but weights the scores, element by element, nor each other
/// @post     every element of output and weights is written; attention_pool_backward reads the weights. A
///           score of -infinity has weight 0; where all scores of a sample have it, or one is NaN or
///           +infinity, the weights of the sample are NaN
/// @numerics float; a weight errs by at most (L + |s - max s| + 4) 2u of it, u = 2^-24, no exponential
///           overflows. The same bits for any number of threads, not on every ISA
/// @cost     O(N D), one read of keys; no allocation. Threads share the samples by their positions
/// @threads  reentrant; concurrent calls are safe where their outputs share no byte
/// @error    as without a softmax. On an error nothing is written
/// @example  @snippet tests/dense/attention_test.cpp attention_pool_softmax
template <class Context, class Offsets, MemorySpace Space>
DEEPREC_PER_UNIT status attention_pool_forward(Context&& context_or_executor,
                                               matrix_arg<const float, Space> scores,
                                               matrix_arg<const float, Space> keys, const Offsets& offsets,
                                               matrix_view<float, Space> weights,
                                               matrix_arg<float, Space> output) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "attention_pool_forward", detail::in_spaces<Space>);
  if (!call) return call.stopped();
  return detail::pool_histories<Space>(ctx, attention_weights::softmax, scores, keys, offsets, weights,
                                       output);
}

/// What attention_pool_backward writes; any row stride.
///
/// @threads as its memory
template <MemorySpace Space = host_space>
struct attention_pool_gradients {
  matrix_view<float, Space> scores;  ///< (N,1)
  matrix_view<float, Space> keys;    ///< (N,D)
};

/// The gradients of attention_pool_forward, for the gradient g of its output:
///
///   gradients.keys of a position   = w g
///   gradients.scores of a position = g.k                          attention_weights::scores
///                                  = w (g.k - the sum over the sample of w g.k)           ::softmax
///
/// @shape    weights (N,1): the scores, or with attention_weights::softmax the weights that
///           attention_pool_forward wrote · keys (N,D) · offsets (B+1), from 0 to N · output_gradient (B,D);
///           any row stride
/// @dtype    float; offsets: std::int32_t or std::int64_t
/// @space    all reachable from the context
/// @pre      the gradients that are written overlap no input, nor each other
/// @post     every element of gradients.scores is written; every element of gradients.keys is written, or
///           added to with gradient_write::add
/// @numerics float, fused where the ISA has it: |err| of g.k <= (D + 2) u sum|g k|, u = 2^-24; sums over a
///           sample in the order of the positions. The same bits for any number of threads, not on every ISA
/// @cost     O(N D), one read of keys; no allocation. Threads share the samples by their positions
/// @threads  reentrant; concurrent calls are safe where their gradients share no byte
/// @error    as attention_pool_forward. On an error nothing is written
/// @example  @snippet tests/dense/attention_test.cpp attention_pool_backward
template <class Context, class Offsets, MemorySpace Space = host_space>
DEEPREC_PER_UNIT status attention_pool_backward(Context&& context_or_executor,
                                                matrix_arg<const float, Space> weights,
                                                matrix_arg<const float, Space> keys, const Offsets& offsets,
                                                matrix_arg<const float, Space> output_gradient,
                                                const attention_pool_gradients<Space>& gradients,
                                                attention_pool_options options = {}) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "attention_pool_backward", detail::in_spaces<Space>);
  if (!call) return call.stopped();
  const auto ranges = detail::history_offsets<Space>(offsets);
  const index_t positions = keys.extent(0), width = keys.extent(1);
  if (const status s = detail::check_pool_shapes(
          weights, keys, output_gradient,
          {"attention_pool_backward: keys must be (N,D)", "attention_pool_backward: weights must be (N,1)",
           "attention_pool_backward: output_gradient must be (B,D)"});
      !s) {
    return s;
  }
  if (!detail::well_formed(gradients.scores) || !detail::has_shape(gradients.scores, positions, 1))
    return {errc::shape_mismatch, "attention_pool_backward: gradients.scores must be (N,1)"};
  if (!detail::well_formed(gradients.keys) || !detail::has_shape(gradients.keys, positions, width))
    return {errc::shape_mismatch, "attention_pool_backward: gradients.keys must be (N,D)"};
  if (const status s = detail::check_offsets(ranges, output_gradient.extent(0), positions); !s)
    return s.in_operation("attention_pool_backward");
  const detail::history_ranges samples{ranges.data(), output_gradient.extent(0)};
  const index_t units = samples.units();
  const double ns = detail::ns_of_bytes(*ctx.tuning, units * (2 * width + 4) * index_t{sizeof(float)});
  detail::run_bulk(
      ctx, {units, detail::grain_for(*ctx.tuning, units, ns), ns}, [&](index_t begin, index_t end, int) {
        const index_t last = samples.first_from(end);
        with_isa_up_to_avx512(ctx.instruction_set, [&](auto region) {
          for (index_t b = samples.first_from(begin); b < last; ++b) {
            const index_t first = samples.begin(b);
            const detail::history in{detail::rows_from(keys, first), samples.end(b) - first, width};
            const auto used = detail::rows_from(weights, first);
            const auto to_scores = detail::rows_from(gradients.scores, first);
            const auto to_keys = detail::rows_from(gradients.keys, first);
            if (options.key_gradient == gradient_write::add) {
              weighted_sum_backward<true>(region, used, in, output_gradient.row(b), to_scores, to_keys);
            } else {
              weighted_sum_backward<false>(region, used, in, output_gradient.row(b), to_scores, to_keys);
            }
            if (options.weights == attention_weights::softmax)
              softmax_backward(region, used, in.length, to_scores);
          }
        });
      });
  return {};
}

}}  // namespace deeprec::DEEPREC_ABI
