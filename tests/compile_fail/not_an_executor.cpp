// expect: "deeprec::context: not an executor. Fix: "
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/exec/inline_executor.hpp>

struct pool {
  void submit(int);
};

deeprec::status call(deeprec::const_table_view<deeprec::f32_rows> table, deeprec::jagged_view<> bags,
                     deeprec::matrix_view<float> out) {
#if DEEPREC_MUST_FAIL
  pool executor;
#else
  deeprec::inline_executor executor;
#endif
  return deeprec::lookup(executor, table, bags, deeprec::combiner::sum, out);
}
