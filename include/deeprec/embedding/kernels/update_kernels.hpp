// The update kernels in the three regions that they are compiled for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/embedding/kernels/lookup_kernels.hpp>
#include <deeprec/embedding/kernels/update_args.hpp>
#include <deeprec/embedding/tables/row_elements.hpp>
#include <deeprec/optim/apply_row_kernels.hpp>
#include <deeprec/simd/vectors.hpp>

// clang-format off: the order of these is what they mean
#include <deeprec/simd/begin_portable.hpp>
#include <deeprec/embedding/kernels/split_values.inl>
#include <deeprec/embedding/kernels/update.inl>
#include <deeprec/simd/end_portable.hpp>

#if DEEPREC_X86
#include <deeprec/simd/begin_avx2.hpp>
#include <deeprec/embedding/kernels/split_values.inl>
#include <deeprec/embedding/kernels/update.inl>
#include <deeprec/simd/end_avx2.hpp>

#include <deeprec/simd/begin_avx512.hpp>
#include <deeprec/embedding/kernels/split_values.inl>
#include <deeprec/embedding/kernels/update.inl>
#include <deeprec/simd/end_avx512.hpp>
#endif
// clang-format on
