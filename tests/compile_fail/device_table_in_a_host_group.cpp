// expect: "deeprec::feature_group: a table in other memory than the group's batches. Fix: "
#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/tables/row_format.hpp>
#include <deeprec/embedding/tables/table_view.hpp>

#if DEEPREC_MUST_FAIL
using space = deeprec::device_space;
#else
using space = deeprec::host_space;
#endif

deeprec::index_t call(deeprec::feature_group<>& group,
                      deeprec::const_table_view<deeprec::f32_rows, space> users) {
  return group.add(users, deeprec::combiner::sum);
}
