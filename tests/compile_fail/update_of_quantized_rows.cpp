// expect: "deeprec::update: rows of this format are for lookups only. Fix: train rows of float"
#include <deeprec/embedding/tables/quantized_rows.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/optim/sgd.hpp>

#if DEEPREC_MUST_FAIL
using format = deeprec::int8_rows;
#else
using format = deeprec::bf16_rows;
#endif

deeprec::status call(deeprec::table_view<format> table, deeprec::jagged_view<> bags,
                     deeprec::matrix_view<const float> gradient) {
  deeprec::inline_executor executor;
  return deeprec::update(executor, table, bags, deeprec::combiner::sum, gradient, deeprec::sgd{});
}
