#define DEEPREC_PART 2
#include "definitions.hpp"

#include <deeprec/embedding/kernels/host/lookup_kernels.hpp>
