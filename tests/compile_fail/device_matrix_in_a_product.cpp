// expect: "deeprec::gemm: a matrix in another memory than the context's. Fix: "
#include <deeprec/dense/gemm/gemm.hpp>
#include <deeprec/exec/inline_executor.hpp>

#if DEEPREC_MUST_FAIL
using space = deeprec::device_space;
#else
using space = deeprec::unified_space;
#endif

deeprec::status call(deeprec::matrix_view<const float, space> a, deeprec::matrix_view<const float> b,
                     deeprec::matrix_view<float> c) {
  return deeprec::gemm(deeprec::inline_executor{}, {}, a, b, c);
}
