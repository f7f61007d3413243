#pragma once
#define DEEPREC_REGION_SOURCE "deeprec/core/detail/private.inl"
#include <deeprec/simd/foreach_region.hpp>
