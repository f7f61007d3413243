// Copies a matrix to another element type: float, bf16 and f16.
//
//   cast(ctx, matrix_view<const float>(x, B, D), matrix_view<bf16>(narrow, B, D)).or_throw();
#pragma once

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/ops/expression.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// out = in, converted: evaluate(ctx, expr::assign(out, expr::in(in))).
///
/// @shape    in, out (R,C), any row stride
/// @dtype    float, bf16, f16 each
/// @space    host
/// @pre      out is in (same first element, stride and type), or shares no byte with it
/// @numerics to nearest even; beyond the range of f16: infinity; NaN stays NaN (quiet). The same on every ISA
///           and for any number of threads
/// @cost     O(R*C), one read and one write; non-temporal stores when out is larger than the tuning's
///           kept_bytes
/// @threads  reentrant; concurrent calls are safe where their outputs share no byte
/// @error    shape_mismatch, unsupported: as evaluate
/// @example  @snippet tests/ops/cast_test.cpp cast
template <class Context, class In, class Out, MemorySpace Space>
DEEPREC_PER_UNIT status cast(Context&& context_or_executor, const In& in, matrix_view<Out, Space> out) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "cast", detail::in_spaces<Space>);
  if (!call) return call.stopped();
  return evaluate(detail::begun(ctx), expr::assign(out, expr::in(in)));
}

}}  // namespace deeprec::DEEPREC_ABI
