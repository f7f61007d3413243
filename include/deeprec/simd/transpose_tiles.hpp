// Transposes of small blocks of elements of 1, 2, 4 or 8 bytes, in registers.
//
//   transpose_direct<4>(from, from_stride, rows, columns, to, to_stride);     strides in bytes
//
// A tile is transposed in registers; the last tiles of a row or column overlap the ones before them; blocks
// of less than a tile are copied by element. `direct_tile<Size>` suits outputs in the caches,
// `staged_tile<Size>` fills whole lines of one.
#pragma once

#include <cstddef>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/simd/vectors.hpp>

// clang-format off: the order of these is what they mean
#include <deeprec/simd/begin_portable.hpp>
#include <deeprec/simd/detail/transpose_tiles_portable.inl>
#include <deeprec/simd/detail/transpose_blocks.inl>
#include <deeprec/simd/end_portable.hpp>

#if DEEPREC_X86
#include <deeprec/simd/begin_avx2.hpp>
#include <deeprec/simd/detail/transpose_tiles_avx2.inl>
#include <deeprec/simd/detail/transpose_blocks.inl>
#include <deeprec/simd/end_avx2.hpp>

#include <deeprec/simd/begin_avx512.hpp>
#include <deeprec/simd/detail/transpose_tiles_avx512.inl>
#include <deeprec/simd/detail/transpose_blocks.inl>
#include <deeprec/simd/end_avx512.hpp>
#endif
// clang-format on
