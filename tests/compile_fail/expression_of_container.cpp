// expect: "deeprec::expr::in: not a matrix_view. Fix: matrix_view<const float>.data, rows, columns."
#include <utility>
#include <vector>

#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/ops/expression.hpp>

deeprec::status call(deeprec::matrix_view<float> out) {
  deeprec::inline_executor executor;
  std::vector<float> x(6);
#if DEEPREC_MUST_FAIL
  return deeprec::evaluate(executor, deeprec::expr::assign(out, deeprec::expr::in(std::move(x)) + 1));
#else
  return deeprec::evaluate(executor,
                           deeprec::expr::assign(out, deeprec::expr::owned(std::move(x), 2, 3) + 1));
#endif
}
