// The kernels of Dice in the three regions that they are compiled for.
#pragma once

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/dense/detail/dice_args.hpp>
#include <deeprec/ops/expression.hpp>
#include <deeprec/simd/places.hpp>
#include <deeprec/simd/vectors.hpp>

// clang-format off: the order of these is what they mean
#include <deeprec/simd/begin_portable.hpp>
#include <deeprec/dense/detail/dice.inl>
#include <deeprec/simd/end_portable.hpp>

#if DEEPREC_X86
#include <deeprec/simd/begin_avx2.hpp>
#include <deeprec/dense/detail/dice.inl>
#include <deeprec/simd/end_avx2.hpp>

#include <deeprec/simd/begin_avx512.hpp>
#include <deeprec/dense/detail/dice.inl>
#include <deeprec/simd/end_avx512.hpp>
#endif
// clang-format on
