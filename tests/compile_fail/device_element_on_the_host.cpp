// expect: "deeprec::matrix_view: an element of device memory read on the host. Fix: "
#include <deeprec/core/matrix_view.hpp>

#if DEEPREC_MUST_FAIL
using space = deeprec::device_space;
#else
using space = deeprec::unified_space;
#endif

float call(deeprec::matrix_view<const float, space> view) { return view(1, 2); }
