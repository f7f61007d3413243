#pragma once

#define DEEPREC_REGION_SOURCE "deeprec/ops/detail/region.inl"

#include <deeprec/simd/foreach_region.hpp>
