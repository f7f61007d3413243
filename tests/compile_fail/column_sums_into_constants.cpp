// expect: "deeprec::column_sums: out is no contiguous range of float, written in the space of in. Fix: "
#include <vector>

#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/ops/column_sums.hpp>

#if DEEPREC_MUST_FAIL
using result = const std::vector<float>;
#else
using result = std::vector<float>;
#endif

deeprec::status call(deeprec::matrix_view<const float> in, result& out) {
  return deeprec::column_sums(deeprec::inline_executor{}, in, out);
}
