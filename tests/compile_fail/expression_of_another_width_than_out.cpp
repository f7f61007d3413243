// expect: "deeprec::expr::assign: out has another static width than its expression. Fix: give"
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/ops/expression.hpp>

#if DEEPREC_MUST_FAIL
using other_width = deeprec::dim<16>;
#else
using other_width = deeprec::dim<8>;
#endif

deeprec::status call(deeprec::matrix_view<const float, deeprec::host_space, deeprec::dim<8>> x,
                     deeprec::matrix_view<float, deeprec::host_space, other_width> out) {
  deeprec::inline_executor executor;
  return deeprec::evaluate(executor, deeprec::expr::assign(out, -deeprec::expr::in(x)));
}
