#include "safe_lookup_kernels.hpp"

namespace deeprec_tf { namespace {

DEEPREC_SAFE_LOOKUP_KERNELS(deeprec::bf16);

}}  // namespace deeprec_tf
