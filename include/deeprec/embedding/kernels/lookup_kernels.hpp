// The lookup kernels in the three regions that they are compiled for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/embedding/kernels/lookup_args.hpp>
#include <deeprec/embedding/kernels/row_runs.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/simd/vectors.hpp>

// clang-format off: the order of these is what they mean
#include <deeprec/simd/begin_portable.hpp>
#include <deeprec/embedding/kernels/row_codec.inl>
#include <deeprec/embedding/kernels/lookup.inl>
#if DEEPREC_COMPILED
#  include <deeprec/embedding/kernels/common_lookups.inl>
#endif
#include <deeprec/simd/end_portable.hpp>

#if DEEPREC_X86
#include <deeprec/simd/begin_avx2.hpp>
#include <deeprec/embedding/kernels/row_codec.inl>
#include <deeprec/embedding/kernels/lookup.inl>
#if DEEPREC_COMPILED
#  include <deeprec/embedding/kernels/common_lookups.inl>
#endif
#include <deeprec/simd/end_avx2.hpp>

#include <deeprec/simd/begin_avx512.hpp>
#include <deeprec/embedding/kernels/row_codec.inl>
#include <deeprec/embedding/kernels/lookup.inl>
#if DEEPREC_COMPILED
#  include <deeprec/embedding/kernels/common_lookups.inl>
#endif
#include <deeprec/simd/end_avx512.hpp>
#endif
// clang-format on
