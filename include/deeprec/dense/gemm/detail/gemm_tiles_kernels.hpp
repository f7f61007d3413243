// The kernels around a product in the three regions that they are compiled for.
#pragma once

#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/dense/gemm/detail/gemm_tiles_args.hpp>
#include <deeprec/dense/gemm/tf32.hpp>
#include <deeprec/simd/vectors.hpp>

#define DEEPREC_REGION_SOURCE "deeprec/dense/gemm/detail/gemm_tiles.inl"
#include <deeprec/simd/foreach_region.hpp>

#if DEEPREC_X86
// clang-format off: the order of these is what they mean
#include <deeprec/simd/begin_avx512_bf16.hpp>
#include <deeprec/dense/gemm/detail/narrow_avx512_bf16.inl>
#include <deeprec/simd/end_avx512_bf16.hpp>
// clang-format on
#endif
