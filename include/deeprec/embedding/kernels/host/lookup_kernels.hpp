// The lookup kernels in the three regions that they are compiled for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/embedding/kernels/host/lookup_args.hpp>
#include <deeprec/embedding/kernels/host/row_runs.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/simd/vectors.hpp>

#define DEEPREC_REGION_SOURCE "deeprec/embedding/kernels/host/row_codec.inl"
#include <deeprec/simd/foreach_region.hpp>

#define DEEPREC_REGION_SOURCE "deeprec/embedding/kernels/host/lookup.inl"
#include <deeprec/simd/foreach_region.hpp>

#if DEEPREC_COMPILED
#  define DEEPREC_REGION_SOURCE "deeprec/embedding/kernels/host/common_lookups.inl"
#  include <deeprec/simd/foreach_region.hpp>
#endif
