// expect: "deeprec::expr: a leaf of a temporary container would dangle. Fix: keep the container"
#include <cstdint>
#include <vector>

#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/ops/expression.hpp>

std::vector<std::uint8_t> flags();

deeprec::status call(deeprec::matrix_view<const float> x, deeprec::matrix_view<float> out) {
  deeprec::inline_executor executor;
#if DEEPREC_MUST_FAIL
  const auto chosen = select(deeprec::expr::mask(flags()), deeprec::expr::in(x), 0);
#else
  const auto kept = flags();
  const auto chosen = select(deeprec::expr::mask(kept), deeprec::expr::in(x), 0);
#endif
  return deeprec::evaluate(executor, deeprec::expr::assign(out, chosen));
}
