// The transpose kernel in the three regions that it is compiled for.
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/ops/detail/copy_rows_kernels.hpp>
#include <deeprec/ops/detail/transpose_args.hpp>
#include <deeprec/simd/transpose_tiles.hpp>
#include <deeprec/simd/vectors.hpp>

// clang-format off: the order of these is what they mean
#include <deeprec/simd/begin_portable.hpp>
#include <deeprec/ops/detail/transpose.inl>
#include <deeprec/simd/end_portable.hpp>

#if DEEPREC_X86
#include <deeprec/simd/begin_avx2.hpp>
#include <deeprec/ops/detail/transpose.inl>
#include <deeprec/simd/end_avx2.hpp>

#include <deeprec/simd/begin_avx512.hpp>
#include <deeprec/ops/detail/transpose.inl>
#include <deeprec/simd/end_avx512.hpp>
#endif
// clang-format on
