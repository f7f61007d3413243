// The kernels of the attention unit in the three regions that they are compiled for.
#pragma once

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/dense/layers/detail/attention_args.hpp>
#include <deeprec/ops/expression.hpp>
#include <deeprec/simd/places.hpp>
#include <deeprec/simd/vectors.hpp>

#define DEEPREC_REGION_SOURCE "deeprec/dense/layers/detail/attention.inl"
#include <deeprec/simd/foreach_region.hpp>
