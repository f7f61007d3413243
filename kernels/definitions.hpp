// Included first by each source of deeprec::kernels, which defines DEEPREC_PART: the common kernels of the
// headers become definitions. See docs/adr/0027-compiled-kernels.md.
#pragma once

#define DEEPREC_COMMON template
#define DEEPREC_COMMON_PART(part) ((part) == DEEPREC_PART)

#include <deeprec/core/config.hpp>

static_assert(
    DEEPREC_KERNELS_NUMBER == DEEPREC_KERNELS_CONFIGURED,
    "deeprec::kernels: compiled with other flags than it was configured for. Fix: give flags that choose a "
    "processor, exceptions or contracts by CMAKE_CXX_FLAGS, or before deeprec is added.");
