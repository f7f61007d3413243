// expect: "deeprec::pooling: the first policy is the combiner. Fix: "
#include <deeprec/embedding/pooling.hpp>

deeprec::pooling how{deeprec::sum, deeprec::skip};
#if DEEPREC_MUST_FAIL
deeprec::pooling wrong{deeprec::skip, deeprec::sum};
#endif
