// Opens the AVX2 region: functions up to end_avx2.hpp are compiled for it, whatever the unit's flags.
// No include guard: a kernel header includes begin, its .inl and end once for each region.
#if defined(__clang__)
#  pragma clang diagnostic push
#  pragma clang diagnostic ignored "-Wpragma-clang-attribute"  // a source may leave a region empty
#  pragma clang attribute push(__attribute__((target("avx2,fma,f16c,bmi2"))), apply_to = function)
#  pragma clang diagnostic pop
#else
#  pragma GCC push_options
#  pragma GCC target("avx2,fma,f16c,bmi2")
#endif
#if defined(__NVCC__)
#  pragma nv_diagnostic push
#  pragma nv_diag_suppress 1675  // its front end does not know GCC's unroll, the host compiler does
#endif
#pragma push_macro("DEEPREC_HD")
#undef DEEPREC_HD
#define DEEPREC_HD  // nothing in a region is device code
namespace deeprec {
inline namespace DEEPREC_ABI {
namespace [[gnu::visibility("hidden")]] isa_avx2 {
inline namespace DEEPREC_UNIT {
