// expect: "deeprec::pooling: not a policy. Fix: "
#include <deeprec/embedding/pooling.hpp>

struct by_date {};

deeprec::pooling how{deeprec::combiner::mean(deeprec::combiner::by_weight), deeprec::bounds::assume_valid};
#if DEEPREC_MUST_FAIL
deeprec::pooling wrong{deeprec::combiner::mean(deeprec::combiner::by_weight), by_date{}};
#endif
