// expect: "deeprec::pooling: two policies of one kind. Fix: "
#include <deeprec/embedding/pooling.hpp>

deeprec::pooling how{deeprec::combiner::sum, deeprec::bounds::skip};
#if DEEPREC_MUST_FAIL
deeprec::pooling wrong{deeprec::combiner::sum, deeprec::bounds::skip, deeprec::bounds::check};
#endif
