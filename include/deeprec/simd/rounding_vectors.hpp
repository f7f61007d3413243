// Vector operations for stochastic rounding: random words for 64 columns of a row, and stores that use them.
//
//   std::uint32_t word[64];
//   draw_words(word, how, row, c / 64);              one block of the generator gives four vectors
//   store_rounded(p + c, x, word + c % 64)           float | bf16 | f16 in memory
//   store_rounded_first(p + c, x, word + c % 64, n)  the first n lanes
//
// The same bits in every region, and as round_with and rounding::stochastic::word in core/rounding.hpp.
#pragma once

#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/core/rounding.hpp>
#include <deeprec/simd/vectors.hpp>

// clang-format off: the order of these is what they mean
#include <deeprec/simd/begin_portable.hpp>
#include <deeprec/simd/rounding_portable.inl>
#include <deeprec/simd/end_portable.hpp>

#if DEEPREC_X86
#include <deeprec/simd/begin_avx2.hpp>
#include <deeprec/simd/detail/rounding_avx2.inl>
#include <deeprec/simd/end_avx2.hpp>

#include <deeprec/simd/begin_avx512.hpp>
#include <deeprec/simd/detail/rounding_avx512.inl>
#include <deeprec/simd/end_avx512.hpp>

#include <deeprec/simd/begin_avx512_bf16.hpp>
#include <deeprec/simd/detail/rounding_avx512.inl>
#include <deeprec/simd/end_avx512_bf16.hpp>
#endif
// clang-format on
