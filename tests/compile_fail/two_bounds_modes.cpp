// expect: "deeprec::pooling: two policies of one kind. Fix: "
#include <deeprec/embedding/pooling.hpp>

deeprec::pooling how{deeprec::sum, deeprec::skip};
#if DEEPREC_MUST_FAIL
deeprec::pooling wrong{deeprec::sum, deeprec::skip, deeprec::check};
#endif
