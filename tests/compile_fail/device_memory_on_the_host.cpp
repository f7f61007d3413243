// expect: "deeprec::context: device memory given to a host context. Fix: "
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/exec/inline_executor.hpp>

#if DEEPREC_MUST_FAIL
using space = deeprec::device_space;
#else
using space = deeprec::unified_space;
#endif

deeprec::status call(deeprec::const_table_view<deeprec::f32_rows, space> table, deeprec::jagged_view<> bags,
                     deeprec::matrix_view<float> out) {
  deeprec::inline_executor executor;
  return deeprec::lookup(executor, table, bags, deeprec::combiner::sum, out);
}
