// One step of an optimizer: on a row in scalar code, or on the rows of a matrix with threads and vectors.
//
//   apply_row(adam{}, weights, gradient, state, width)                the reference
//   apply_rows(pool, gradient, adam{}, weights, state)                a layer: row = output neuron
//   update(pool, table, bags, combiner::sum, gradient, adam{})        a table: embedding/training/update.hpp
//
// State of a row: the row's own floats, then D floats for each element state; zeros for a new row.
#pragma once

#include <algorithm>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/rounding.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/optim/apply_row_kernels.hpp>
#include <deeprec/optim/row_optimizer.hpp>
#include <deeprec/simd/dispatch.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Applies an optimizer to one row in plain scalar code: the reference for every faster path.
///
/// @shape    weights, gradient (D) · state (row_state + element_state * D), row part first,
///           then D floats for each element state
/// @dtype    W: a storage type; gradient and state float
/// @pre      state was zeroed when the row was made
/// @numerics float arithmetic, elements in order; a 16-bit weight is rounded once, by `rounding`. A NaN in
///           the gradient makes the weight and the state of its element NaN; the whole row where the
///           optimizer keeps a state for the row (rowwise_*)
/// @cost     O(D), no allocation
/// @threads  one thread per row
/// @error    none
template <RowOptimizer O, Storage W, RoundingPolicy Rounding = rounding::nearest_t>
void apply_row(const O& optimizer, W* weights, const float* gradient, float* state, index_t width,
               const Rounding& rounding = {}, index_t row = 0) {
  scalar::step_row<O>(detail::prepare(optimizer), scalar::row_values<W>(weights, width),
                      scalar::gradient_values{gradient}, state, width, rounding, row);
}

/// One step of an optimizer on every row of a matrix.
///
/// @shape    gradient, weights (R,D) · state (R, row_state + element_state * D or more), or empty for an
///           optimizer without state; any row stride
/// @dtype    W: a storage type; gradient and state float
/// @space    host
/// @pre      state was zeroed when the weights were made; the three share no byte
/// @numerics as apply_row, up to a few roundings: products are fused with sums where the ISA can, and the sum
///           of a row's squared gradient runs in as many lanes as a vector has. The same bits for any number
///           of threads
/// @cost     O(R*D): reads gradient, weights and state once (gradient twice for rowwise optimizers and
///           norms), writes weights and state; no allocation
/// @threads  one caller for the same weights
/// @error    shape_mismatch naming the operand; on an error nothing is written
template <class Context, RowOptimizer O, Storage W, RoundingPolicy Rounding = rounding::nearest_t>
DEEPREC_PER_UNIT status apply_rows(Context&& context_or_executor, matrix_view<const float> gradient,
                                   const O& optimizer, matrix_view<W> weights, matrix_view<float> state,
                                   const Rounding& rounding = {}) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "apply_rows");
  if (!call) return call.stopped();
  if (gradient.extent(0) != weights.extent(0) || gradient.extent(1) != weights.extent(1)) {
    return {errc::shape_mismatch, "apply_rows: gradient must have the shape of weights"};
  }
  const index_t needed = state_floats_of<O>(weights.extent(1));
  if (needed > 0 && (state.extent(0) != weights.extent(0) || state.extent(1) < needed)) {
    return {errc::shape_mismatch,
            "apply_rows: state must have a row for each row of weights, with the floats that the optimizer "
            "needs: state_floats_of<optimizer>(width)"};
  }
  if (weights.empty()) return {};
  if (const status s = gradient.validate("matrix_view: data must not be null", row_overlap::permitted); !s)
    return s.in_operation("apply_rows");
  if (const status s = weights.validate(); !s) return s.in_operation("apply_rows");
  if (const status s = state.validate(); needed > 0 && !s) return s.in_operation("apply_rows");
  return detail::or_out_of_memory("apply_rows", [&]() -> status {
    const auto rows = detail::prepare(optimizer);
    const index_t grain = (std::max<index_t>)(1, 4096 / weights.extent(1));
    const double ns = detail::ns_of_bytes(*ctx.tuning, weights.extent(0) * weights.extent(1) * 16);
    detail::run_bulk(ctx, {weights.extent(0), grain, ns}, [&](index_t begin, index_t end, int) {
      with_isa_up_to_avx512(ctx.instruction_set, [&](auto region) {
        step_rows<O>(region, rows, gradient, weights, state, rounding, begin, end);
      });
    });
    return {};
  });
}

}}  // namespace deeprec::DEEPREC_ABI
