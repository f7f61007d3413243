// expect: "deeprec::context: device memory given to a host context. Fix: "
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/ops/row_select.hpp>

#if DEEPREC_MUST_FAIL
using space = deeprec::device_space;
#else
using space = deeprec::unified_space;
#endif

deeprec::status call(deeprec::array_view<const bool, space> cond, deeprec::matrix_view<float> rows) {
  return deeprec::row_select(deeprec::inline_executor{}, cond, rows, rows, rows);
}
