#define DEEPREC_PART 2
#include "definitions.hpp"

#include <deeprec/embedding/kernels/lookup_kernels.hpp>
