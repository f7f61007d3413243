// expect: "deeprec::pooling: the first policy is the combiner. Fix: "
#include <deeprec/embedding/pooling.hpp>

deeprec::pooling how{deeprec::combiner::sum, deeprec::bounds::skip};
#if DEEPREC_MUST_FAIL
deeprec::pooling wrong{deeprec::bounds::skip, deeprec::combiner::sum};
#endif
