// expect: "deleted function"
#include <deeprec/core/matrix_view.hpp>

deeprec::matrix_view<float, deeprec::unified_space> unified;
deeprec::matrix_view<float, deeprec::device_space> device = unified;
#if DEEPREC_MUST_FAIL
deeprec::matrix_view<float, deeprec::host_space> host;
deeprec::matrix_view<float, deeprec::device_space> wrong = host;
#endif
