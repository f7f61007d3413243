// expect: "deeprec::dim: a static size is not negative. Fix: dim<128> or dim<>"
#include <deeprec/core/matrix_view.hpp>

deeprec::matrix_view<float, deeprec::host_space, deeprec::dim<5>> x;
#if DEEPREC_MUST_FAIL
deeprec::matrix_view<float, deeprec::host_space, deeprec::dim<-5>> wrong;
#endif
