// expect: "deeprec::context: device memory given to a host context. Fix: "
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/ops/unique.hpp>

#if DEEPREC_MUST_FAIL
using space = deeprec::device_space;
#else
using space = deeprec::unified_space;
#endif

deeprec::status call(deeprec::array_view<const std::int64_t, space> ids, deeprec::unique_ids<>& out) {
  return deeprec::unique(deeprec::inline_executor{}, ids, out);
}
