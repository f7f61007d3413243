// expect: "deeprec::lookup: out is read only. Fix: matrix_view<float>"
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/exec/inline_executor.hpp>

deeprec::status call(deeprec::const_table_view<deeprec::f32_rows> table, deeprec::jagged_view<> bags,
                     deeprec::matrix_view<float> out) {
  deeprec::inline_executor executor;
#if DEEPREC_MUST_FAIL
  return deeprec::lookup(executor, table, bags, deeprec::combiner::sum,
                         deeprec::matrix_view<const float>(out));
#else
  return deeprec::lookup(executor, table, bags, deeprec::combiner::sum, out);
#endif
}
