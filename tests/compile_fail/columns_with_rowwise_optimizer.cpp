// expect: "deeprec::sharded_group: this optimizer reads the whole row"
#include <deeprec/comm/thread_ranks.hpp>
#include <deeprec/embedding/tables/table_view.hpp>
#include <deeprec/optim/adagrad.hpp>
#include <deeprec/sharding/sharded_group.hpp>

#if DEEPREC_MUST_FAIL
using optimizer_type = deeprec::rowwise_adagrad;
#else
using optimizer_type = deeprec::adagrad;
#endif

deeprec::index_t call(deeprec::sharded_group<optimizer_type, deeprec::thread_rank<>>& group,
                      const deeprec::table_view<deeprec::f32_rows>& slice) {
  return group.add(slice, deeprec::combiner::sum, deeprec::placement::columns{{0, 1}, 100, 64});
}
