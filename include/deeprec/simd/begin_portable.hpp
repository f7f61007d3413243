// Opens the region of the portable kernels: no target of its own, and a namespace named after the flags of
// this unit.
// No include guard: a kernel header includes begin, its .inl and end once for each region.
#if defined(__NVCC__)
#  pragma nv_diagnostic push
#  pragma nv_diag_suppress 1675  // its front end does not know GCC's unroll, the host compiler does
#endif
#pragma push_macro("DEEPREC_HD")
#undef DEEPREC_HD
#define DEEPREC_HD  // nothing in a region is device code
namespace deeprec {
inline namespace DEEPREC_ABI {
namespace [[gnu::visibility("hidden")]] DEEPREC_PORTABLE {
