// A whole vector of a row or the first lanes of its last one, as a type: a kernel is written once for both.
//
//   for (; j + lanes <= width; j += lanes) columns(row, full_place{j});
//   if (j < width) columns(row, part_place{j, static_cast<int>(width - j)});
//
//   template <class Place> void columns(float* row, Place at) { store_at(row, load_at(row, at) + x, at); }
#pragma once

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/simd/vectors.hpp>

// clang-format off: the order of these is what they mean
#include <deeprec/simd/begin_portable.hpp>
#include <deeprec/simd/detail/places.inl>
#include <deeprec/simd/end_portable.hpp>

#if DEEPREC_X86
#include <deeprec/simd/begin_avx2.hpp>
#include <deeprec/simd/detail/places.inl>
#include <deeprec/simd/end_avx2.hpp>

#include <deeprec/simd/begin_avx512.hpp>
#include <deeprec/simd/detail/places.inl>
#include <deeprec/simd/end_avx512.hpp>
#endif
// clang-format on
