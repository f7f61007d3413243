// expect: "deeprec::pooling: not a policy. Fix: "
#include <deeprec/embedding/pooling.hpp>

struct by_date {};

deeprec::pooling how{deeprec::mean(deeprec::by_weight), deeprec::assume_valid};
#if DEEPREC_MUST_FAIL
deeprec::pooling wrong{deeprec::mean(deeprec::by_weight), by_date{}};
#endif
