// expect: "deeprec::context: device memory given to a host context. Fix: "
#include <deeprec/embedding/lookup/fused_lookup.hpp>
#include <deeprec/exec/inline_executor.hpp>

#if DEEPREC_MUST_FAIL
using space = deeprec::device_space;
#else
using space = deeprec::unified_space;
#endif

deeprec::status call(deeprec::const_table_view<deeprec::f32_rows> table,
                     deeprec::coo_view<std::int64_t, std::int64_t, space> entries,
                     deeprec::matrix_view<float> out) {
  deeprec::inline_executor executor;
  return deeprec::fused_lookup(executor, table, entries, deeprec::combiner::sum, out);
}
