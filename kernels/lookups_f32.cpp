#define DEEPREC_PART 1
#include "definitions.hpp"

#include <deeprec/embedding/kernels/host/lookup_kernels.hpp>
