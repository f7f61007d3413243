// expect: "deeprec::array_view: an element of device memory read on the host. Fix: "
#include <deeprec/core/array_view.hpp>

#if DEEPREC_MUST_FAIL
using space = deeprec::device_space;
#else
using space = deeprec::unified_space;
#endif

float call(deeprec::array_view<const float, space> view) { return view[1]; }
