// The vector words: one small vocabulary, with a body for each region, that every kernel is written in.
//
//   lanes, vector_f32, zero, splat            load, store          float | bf16 | f16 in memory,
//   + - * / multiply_add maximum sqrt         load_first, store_first    float in the register
//   add_lanes                                 region               the tag that overloads go by
//
//   #include <deeprec/simd/begin_avx512.hpp>   // opens the target and namespace isa_avx512
//   #include <deeprec/.../kernel.inl>          // written once over the words
//   #include <deeprec/simd/end_avx512.hpp>
//
// Conversions to 16 bits round to nearest even and keep NaN in every region, with the same bits.
// multiply_add rounds once in the AVX regions; in the portable region it may round twice.
// The portable words come from xsimd; xsimd::batch can't be used inside another region.
#pragma once

#include <xsimd/xsimd.hpp>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/isa.hpp>

#if DEEPREC_X86
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include <deeprec/simd/begin_portable.hpp>
#include <deeprec/simd/detail/words_portable.inl>
#include <deeprec/simd/end_portable.hpp>

#if DEEPREC_X86
#include <deeprec/simd/begin_avx2.hpp>
#include <deeprec/simd/detail/words_avx2.inl>
#include <deeprec/simd/end_avx2.hpp>

#include <deeprec/simd/begin_avx512.hpp>
struct region {
  static constexpr isa which = isa::avx512;
};
#include <deeprec/simd/detail/words_avx512.inl>
#include <deeprec/simd/end_avx512.hpp>

#include <deeprec/simd/begin_avx512_bf16.hpp>
struct region {
  static constexpr isa which = isa::avx512_bf16;
};
#include <deeprec/simd/detail/words_avx512.inl>
#include <deeprec/simd/end_avx512_bf16.hpp>
#endif
