// expect: "deeprec::expr: a leaf of a temporary container would dangle. Fix: keep the container"
#include <vector>

#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/ops/expression.hpp>

deeprec::status call(deeprec::matrix_view<const float> x, deeprec::matrix_view<float> out) {
  deeprec::inline_executor executor;
#if DEEPREC_MUST_FAIL
  const auto biased = deeprec::expr::in(x) + deeprec::expr::row(std::vector<float>(3));
#else
  const std::vector<float> bias(3);
  const auto biased = deeprec::expr::in(x) + deeprec::expr::row(bias);
#endif
  return deeprec::evaluate(executor, deeprec::expr::assign(out, biased));
}
