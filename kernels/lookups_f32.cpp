#define DEEPREC_PART 1
#include "definitions.hpp"

#include <deeprec/embedding/kernels/lookup_kernels.hpp>
