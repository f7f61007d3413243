// Features of this processor, by cpuid.
#pragma once

#include <deeprec/core/config.hpp>

#if DEEPREC_X86
#  include <cpuid.h>
#endif

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The features that the regions of code are compiled for (simd/begin_avx2.hpp and so on): true where
/// processor and operating system support them.
struct cpu_features {
  bool avx2 = false, fma = false, bmi2 = false, f16c = false;
  bool avx512f = false, avx512bw = false, avx512dq = false, avx512vl = false;
  bool avx512bf16 = false;
};

#if DEEPREC_X86
inline cpu_features features_of_this_cpu() noexcept {
  cpu_features has;
  has.avx2 = __builtin_cpu_supports("avx2") != 0;
  has.fma = __builtin_cpu_supports("fma") != 0;
  has.bmi2 = __builtin_cpu_supports("bmi2") != 0;
  // clang 14's __builtin_cpu_supports does not know f16c. It needs no OS support beyond that of avx2.
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  has.f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx >> 29 & 1U) != 0;
  has.avx512f = __builtin_cpu_supports("avx512f") != 0;
  has.avx512bw = __builtin_cpu_supports("avx512bw") != 0;
  has.avx512dq = __builtin_cpu_supports("avx512dq") != 0;
  has.avx512vl = __builtin_cpu_supports("avx512vl") != 0;
  has.avx512bf16 = __builtin_cpu_supports("avx512bf16") != 0;
  return has;
}
#endif

/// AMD's family 26, Zen 5: sums were measured to be faster out of the first level there, and its first-level
/// TLB holds 96 pages.
inline bool is_zen_5() noexcept {
#if DEEPREC_X86
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned authentic_amd = 0x68747541;  // "Auth"
  if (__get_cpuid(0, &a, &b, &c, &d) == 0 || b != authentic_amd) return false;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return false;
  const unsigned family = ((a >> 8) & 15U) + ((a >> 20) & 255U);
  return family >= 26;
#else
  return false;
#endif
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
