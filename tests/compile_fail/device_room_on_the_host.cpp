// expect: "deeprec::context: device memory given to a host context. Fix: "
#include <deeprec/embedding/batches/prune_invalid.hpp>
#include <deeprec/exec/inline_executor.hpp>

#if DEEPREC_MUST_FAIL
using space = deeprec::device_space;
#else
using space = deeprec::unified_space;
#endif

deeprec::status call(deeprec::jagged_view<> bags,
                     deeprec::jagged_out<std::int64_t, deeprec::index_t, space> out) {
  return deeprec::prune_invalid(deeprec::inline_executor{}, bags, deeprec::prune_rule::by_id, out);
}
