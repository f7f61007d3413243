// The vector operations that every kernel is written with: one small set, implemented for each region.
//
//   lanes, vector_f32, zero, splat            load, store          float | bf16 | f16 in memory,
//   + - * / multiply_add sqrt                 load_first, store_first    float in the vector
//   maximum minimum add_lanes last_to_front   region               the tag that selects overloads
//   where_positive rounded stream keep_first
//   mask_f32, mask_of, load_mask             comparisons equal less less_equal, & | !, choose
//   nearest, times_power_of_two              what exponentials need
//   byte_lanes, vector_u8                     load, store, stream, copy_first    bytes, for copies only
//   load_codes, load_nibbles, load_halves     codes of 8 and 4 bits, split floats, and load_first_ of them;
//   load_two                                  load and load_first also of e4m3 and e5m2; two floats or halves
//   load_pair, load_nibbles, interleave       2 * lanes columns of bf16 or 4 bits, even and odd ones apart
//
//   #define DEEPREC_REGION_SOURCE "deeprec/.../kernel.inl"   // written once with these operations
//   #include <deeprec/simd/foreach_region.hpp>               // compiled in isa_avx2, isa_avx512 ...
//
// Conversions to 16 bits round to nearest even and keep NaN in every region, with the same bits.
// multiply_add rounds once in the AVX regions; in the portable region it may round twice.
// The portable operations use xsimd; xsimd::batch can't be used inside another region.
#pragma once

#include <xsimd/xsimd.hpp>

#include <cstddef>
#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/isa.hpp>

#if DEEPREC_X86
#  include <immintrin.h>
#elif defined(__aarch64__)
#  include <arm_neon.h>
#endif

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Copies n bytes, n < 2 * Piece, as two overlapping pieces of one size: the largest power of two that fits,
/// Piece at most.
template <int Piece>
DEEPREC_INLINE void copy_in_two(std::byte* to, const std::byte* from, int n) {
  struct piece {
    std::byte bytes[Piece];
  };
  if (n >= Piece) {
    piece first, last;
    __builtin_memcpy(&first, from, Piece);
    __builtin_memcpy(&last, from + n - Piece, Piece);
    __builtin_memcpy(to, &first, Piece);
    __builtin_memcpy(to + n - Piece, &last, Piece);
  } else if constexpr (Piece > 1) {
    copy_in_two<Piece / 2>(to, from, n);
  }
}

/// The result of load_two: a row's scale and bias.
struct two_floats {
  float first;
  float second;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail

// clang-format off: the order of these is what they mean
#include <deeprec/simd/begin_portable.hpp>
#include <deeprec/simd/detail/vectors_portable.inl>
#include <deeprec/simd/detail/bytes_portable.inl>
#include <deeprec/simd/detail/codes_portable.inl>
#include <deeprec/simd/end_portable.hpp>

#if DEEPREC_X86
#include <deeprec/simd/begin_avx2.hpp>
#include <deeprec/simd/detail/vectors_avx2.inl>
#include <deeprec/simd/detail/bytes_avx2.inl>
#include <deeprec/simd/detail/codes_avx2.inl>
#include <deeprec/simd/end_avx2.hpp>

#include <deeprec/simd/begin_avx512.hpp>
struct region {
  static constexpr isa which = isa::avx512;
};
#include <deeprec/simd/detail/vectors_avx512.inl>
#include <deeprec/simd/detail/bytes_avx512.inl>
#include <deeprec/simd/detail/codes_avx512.inl>
#include <deeprec/simd/end_avx512.hpp>

#include <deeprec/simd/begin_avx512_bf16.hpp>
struct region {
  static constexpr isa which = isa::avx512_bf16;
};
#include <deeprec/simd/detail/vectors_avx512.inl>
#include <deeprec/simd/detail/bytes_avx512.inl>
#include <deeprec/simd/detail/codes_avx512.inl>
#include <deeprec/simd/end_avx512_bf16.hpp>
#endif
// clang-format on
