#define DEEPREC_PART 3
#include "definitions.hpp"

#include <deeprec/embedding/kernels/host/lookup_kernels.hpp>
