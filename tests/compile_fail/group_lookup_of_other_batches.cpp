// expect: "deeprec::lookup: not a list of the group's batches. Fix: feature_group<Optimizer, B> "
#include <vector>

#include <deeprec/embedding/groups/lookup_features.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/optim/sgd.hpp>

#if DEEPREC_MUST_FAIL
using group_type = deeprec::feature_group<deeprec::sgd>;
#else
using group_type = deeprec::feature_group<deeprec::sgd, deeprec::jagged_view<std::int32_t>>;
#endif

deeprec::status call(const group_type& group, const std::vector<deeprec::jagged_view<std::int32_t>>& bags,
                     deeprec::matrix_view<float> values) {
  deeprec::inline_executor executor;
  return deeprec::lookup(executor, group, bags, values);
}
