// Compiles a source once for each region: portable, and on x86 AVX2 and AVX-512.
//
//   #define DEEPREC_REGION_SOURCE "deeprec/dense/layers/detail/dice.inl"
//   #include <deeprec/simd/foreach_region.hpp>
//
// The source has no include guard, includes nothing but parts of itself, and is written with the vector
// operations (vectors.hpp). In quotes: between < and > the preprocessor would expand macros of the user.
// No include guard; the macro is undefined at the end.
#include <deeprec/simd/begin_portable.hpp>
#include DEEPREC_REGION_SOURCE
#include <deeprec/simd/end_portable.hpp>

#if DEEPREC_X86
#  include <deeprec/simd/begin_avx2.hpp>
#  include DEEPREC_REGION_SOURCE
#  include <deeprec/simd/end_avx2.hpp>

#  include <deeprec/simd/begin_avx512.hpp>
#  include DEEPREC_REGION_SOURCE
#  include <deeprec/simd/end_avx512.hpp>
#endif

#undef DEEPREC_REGION_SOURCE
