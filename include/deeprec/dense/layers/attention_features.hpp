// The input of DIN's attention unit: a candidate and every position of its history, compared.
//
//   queries (B,D)   q0     q1                out (N,4D), a row for each position
//   offsets         0      2      3          [ q0 | k0 | q0 - k0 | q0 k0 ]
//   keys    (N,D)   k0 k1  k2                [ q0 | k1 | q0 - k1 | q0 k1 ]
//                                            [ q1 | k2 | q1 - k2 | q1 k2 ]
//
// A multilayer perceptron makes a score of each row, and attention_pool.hpp a vector of each history.
// Histories have any lengths, 0 included; there is no padding and no mask.
#pragma once

#include <algorithm>

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
struct feature_texts {
  const char* queries;
  const char* keys;
  const char* features;
};

/// The checks of both directions; features: the output or its gradient.
template <class Queries, class Keys, class Features>
status check_feature_shapes(const Queries& queries, const Keys& keys, const Features& features,
                            const feature_texts& texts) noexcept {
  const index_t width = queries.extent(1);
  if (!well_formed(queries)) return {errc::shape_mismatch, texts.queries};
  if (!well_formed(keys) || keys.extent(1) != width) return {errc::shape_mismatch, texts.keys};
  if (!well_formed(features) || !has_shape(features, keys.extent(0), capped_product(4, width)))
    return {errc::shape_mismatch, texts.features};
  return {};
}

}  // namespace detail

/// The rows [q, k, q - k, q k] of all positions, where q is the query of the position's sample.
///
/// @shape    queries (B,D) · keys (N,D) · offsets (B+1), from 0 to N · output (N,4D); any row stride
/// @dtype    float; offsets: std::int32_t or std::int64_t
/// @space    all reachable from the context
/// @pre      output overlaps no input
/// @post     every element of output is written
/// @numerics float, rounded once: the same bits on every ISA and for any number of threads
/// @cost     O(N D), one write of output; no allocation. Threads share the positions
/// @threads  reentrant; concurrent calls are safe where their outputs share no byte
/// @error    shape_mismatch naming the operand; offsets_negative, offsets_decreasing (bag = the sample, value
///           = the offset). On an error nothing is written
/// @example  @snippet tests/dense/attention_test.cpp attention_features
/// @source   Zhou et al. 2018, arXiv:1706.06978
template <class Context, class Offsets, MemorySpace Space>
DEEPREC_PER_UNIT status attention_features_forward(Context&& context_or_executor,
                                                   matrix_arg<const float, Space> queries,
                                                   matrix_arg<const float, Space> keys,
                                                   const Offsets& offsets, matrix_view<float, Space> output) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "attention_features_forward", detail::in_spaces<Space>);
  if (!call) return call.stopped();
  const auto ranges = detail::history_offsets<Space>(offsets);
  const index_t positions = keys.extent(0), width = keys.extent(1);
  if (const status s = detail::check_feature_shapes(queries, keys, output,
                                                    {"attention_features_forward: queries must be (B,D)",
                                                     "attention_features_forward: keys must be (N,D)",
                                                     "attention_features_forward: output must be (N,4D)"});
      !s) {
    return s;
  }
  if (const status s = detail::check_offsets(ranges, queries.extent(0), positions); !s)
    return s.in_operation("attention_features_forward");
  if (keys.empty()) return {};
  const detail::history_ranges samples{ranges.data(), queries.extent(0)};
  const double ns = detail::ns_of_bytes(*ctx.tuning, positions * width * 6 * index_t{sizeof(float)});
  detail::run_bulk(ctx, {positions, detail::grain_for(*ctx.tuning, positions, ns), ns},
                   [&](index_t begin, index_t end, int) {
                     with_isa_up_to_avx512(ctx.instruction_set, [&](auto region) {
                       for (index_t b = samples.sample_of(begin); begin < end; ++b) {
                         const index_t last = (std::min)(samples.end(b), end);
                         attention_rows(region, queries.row(b),
                                        {detail::rows_from(keys, begin), last - begin, width},
                                        detail::rows_from(output, begin));
                         begin = last;
                       }
                     });
                   });
  return {};
}

/// What attention_features_backward writes; any row stride.
///
/// @threads as its memory
template <MemorySpace Space = host_space>
struct attention_features_gradients {
  matrix_view<float, Space> queries;  ///< (B,D)
  matrix_view<float, Space> keys;     ///< (N,D)
};

/// The gradients of attention_features_forward, for the gradient (g0, g1, g2, g3) of its output:
///
///   gradients.queries of a sample = the sum over its positions of g0 + g2 + g3 k
///   gradients.keys of a position  = g1 - g2 + g3 q
///
/// @shape    queries (B,D) · keys (N,D) · offsets (B+1), from 0 to N · output_gradient (N,4D); any row stride
/// @dtype    float; offsets: std::int32_t or std::int64_t
/// @space    all reachable from the context
/// @pre      the gradients that are written overlap no input, nor each other
/// @post     every element of gradients.queries is written, 0 for samples without positions; every element of
///           gradients.keys is written, or added to with gradient_write::add
/// @numerics float, fused where the ISA has it, sums in the order of the positions: of a sample of L
///           |err| <= (L + 3) u sum(|g0| + |g2| + |g3 k|), u = 2^-24. The same bits for any number of
///           threads, not on every ISA
/// @cost     O(N D), one read of output_gradient; no allocation. Threads share the samples by their positions
/// @threads  reentrant; concurrent calls are safe where their gradients share no byte
/// @error    as attention_features_forward. On an error nothing is written
/// @example  @snippet tests/dense/attention_test.cpp attention_features_backward
template <class Context, class Offsets, MemorySpace Space = host_space>
DEEPREC_PER_UNIT status attention_features_backward(Context&& context_or_executor,
                                                    matrix_arg<const float, Space> queries,
                                                    matrix_arg<const float, Space> keys,
                                                    const Offsets& offsets,
                                                    matrix_arg<const float, Space> output_gradient,
                                                    const attention_features_gradients<Space>& gradients,
                                                    gradient_write of_keys = gradient_write::overwrite) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "attention_features_backward", detail::in_spaces<Space>);
  if (!call) return call.stopped();
  const auto ranges = detail::history_offsets<Space>(offsets);
  const index_t positions = keys.extent(0), width = keys.extent(1);
  if (const status s =
          detail::check_feature_shapes(queries, keys, output_gradient,
                                       {"attention_features_backward: queries must be (B,D)",
                                        "attention_features_backward: keys must be (N,D)",
                                        "attention_features_backward: output_gradient must be (N,4D)"});
      !s) {
    return s;
  }
  if (!detail::well_formed(gradients.queries) ||
      !detail::has_shape(gradients.queries, queries.extent(0), width))
    return {errc::shape_mismatch, "attention_features_backward: gradients.queries must be (B,D)"};
  if (!detail::well_formed(gradients.keys) || !detail::has_shape(gradients.keys, positions, width))
    return {errc::shape_mismatch, "attention_features_backward: gradients.keys must be (N,D)"};
  if (const status s = detail::check_offsets(ranges, queries.extent(0), positions); !s)
    return s.in_operation("attention_features_backward");
  const detail::history_ranges samples{ranges.data(), queries.extent(0)};
  const index_t units = samples.units();
  const double ns = detail::ns_of_bytes(*ctx.tuning, units * width * 6 * index_t{sizeof(float)});
  detail::run_bulk(
      ctx, {units, detail::grain_for(*ctx.tuning, units, ns), ns}, [&](index_t begin, index_t end, int) {
        const index_t last = samples.first_from(end);
        with_isa_up_to_avx512(ctx.instruction_set, [&](auto region) {
          for (index_t b = samples.first_from(begin); b < last; ++b) {
            const index_t first = samples.begin(b);
            const detail::history in{detail::rows_from(keys, first), samples.end(b) - first, width};
            const auto gradient = detail::rows_from(output_gradient, first);
            float* const to_query = gradients.queries.row(b);
            const auto to_keys = detail::rows_from(gradients.keys, first);
            if (of_keys == gradient_write::add) {
              attention_rows_backward<true>(region, queries.row(b), in, gradient, to_query, to_keys);
            } else {
              attention_rows_backward<false>(region, queries.row(b), in, gradient, to_query, to_keys);
            }
          }
        });
      });
  return {};
}

}}  // namespace deeprec::DEEPREC_ABI
