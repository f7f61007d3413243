// Copies of rows of bytes in the three regions that it is compiled for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/ops/detail/byte_rows.hpp>
#include <deeprec/simd/vectors.hpp>

#define DEEPREC_REGION_SOURCE "deeprec/ops/detail/copy_rows.inl"
#include <deeprec/simd/foreach_region.hpp>
