// expect: "deeprec::expr: device memory in an expression. Fix: copy it to the host"
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/ops/expression.hpp>

#if DEEPREC_MUST_FAIL
using space = deeprec::device_space;
#else
using space = deeprec::unified_space;
#endif

deeprec::status call(deeprec::matrix_view<const float, space> x, deeprec::matrix_view<float> out) {
  deeprec::inline_executor executor;
  return deeprec::evaluate(executor, deeprec::expr::assign(out, deeprec::expr::in(x) + 1));
}
