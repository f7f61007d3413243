#define DEEPREC_PART 3
#include "definitions.hpp"

#include <deeprec/embedding/kernels/lookup_kernels.hpp>
