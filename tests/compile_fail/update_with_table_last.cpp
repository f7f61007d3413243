// expect: "deeprec::update: the table comes second, as in lookup. Fix: update.context, table.view.., "
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/optim/adagrad.hpp>

deeprec::status call(deeprec::dense_table<deeprec::f32_rows>& table, deeprec::jagged_view<> bags,
                     deeprec::matrix_view<const float> gradient) {
  deeprec::inline_executor executor;
#if DEEPREC_MUST_FAIL
  return deeprec::update(executor, bags, gradient, deeprec::combiner::sum, deeprec::adagrad{}, table.view());
#else
  return deeprec::update(executor, table.view(), bags, deeprec::combiner::sum, gradient, deeprec::adagrad{});
#endif
}
