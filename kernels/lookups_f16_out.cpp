#define DEEPREC_PART 4
#include "definitions.hpp"

#include <deeprec/embedding/kernels/host/lookup_kernels.hpp>
