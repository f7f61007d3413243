// expect: "deeprec::jagged_view: offsets in device memory read. Fix: "
#include <cstdint>

#include <deeprec/core/jagged_view.hpp>

#if DEEPREC_MUST_FAIL
using space = deeprec::device_space;
#else
using space = deeprec::unified_space;
#endif

deeprec::index_t call(deeprec::jagged_view<std::int64_t, std::int64_t, space> view) {
  return view.first_position();
}
