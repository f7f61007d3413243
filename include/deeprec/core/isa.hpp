// Which instruction set this process uses, chosen at run time: no compiler flags needed.
//
//   portable < avx2 < avx512 < avx512_bf16
//
// The environment variable DEEPREC_ISA=portable|avx2|avx512|avx512_bf16 lowers the choice (it can't
// raise it above what the machine has). It is read once, at the first use.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include <deeprec/core/config.hpp>

#if DEEPREC_X86
#  include <cpuid.h>
#endif

namespace deeprec { inline namespace DEEPREC_ABI {

enum class isa : std::uint8_t { portable, avx2, avx512, avx512_bf16 };

inline constexpr isa every_isa[] = {isa::portable, isa::avx2, isa::avx512, isa::avx512_bf16};

constexpr const char* to_string(isa which) noexcept {
  switch (which) {
    case isa::portable:
      return "portable";
    case isa::avx2:
      return "avx2";
    case isa::avx512:
      return "avx512";
    case isa::avx512_bf16:
      return "avx512_bf16";
  }
  return "unknown";
}

namespace detail {

/// The features that the regions of code are compiled for (simd/begin_avx2.hpp and so on): true where
/// processor and operating system support them.
struct cpu_features {
  bool avx2 = false, fma = false, bmi2 = false, f16c = false;
  bool avx512f = false, avx512bw = false, avx512dq = false, avx512vl = false;
  bool avx512bf16 = false;
};

constexpr isa best_isa_of(const cpu_features& has) noexcept {
  const bool avx2 = has.avx2 && has.fma && has.bmi2 && has.f16c;
  const bool avx512 = avx2 && has.avx512f && has.avx512bw && has.avx512dq && has.avx512vl;
  if (avx512 && has.avx512bf16) return isa::avx512_bf16;
  if (avx512) return isa::avx512;
  return avx2 ? isa::avx2 : isa::portable;
}

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

}  // namespace detail

/// The best instruction set that this machine and its operating system support.
///
/// @cost    O(1): cpuid is read at the first call
/// @threads thread-safe
/// @error   none
inline isa best_isa() noexcept {
#if DEEPREC_X86
  static const isa best = detail::best_isa_of(detail::features_of_this_cpu());
  return best;
#else
  return isa::portable;
#endif
}

/// best_isa(), or what DEEPREC_ISA lowers it to. An unknown name in DEEPREC_ISA changes nothing.
///
/// @cost    O(1); reads the environment at the first call
/// @threads thread-safe
/// @error   none
inline isa active_isa() noexcept {
  static const isa chosen = [] {
    const isa best = best_isa();
    const char* wanted = std::getenv("DEEPREC_ISA");
    if (wanted == nullptr) return best;
    for (const isa candidate : every_isa) {
      if (std::strcmp(wanted, to_string(candidate)) == 0) return candidate < best ? candidate : best;
    }
    return best;
  }();
  return chosen;
}

}}  // namespace deeprec::DEEPREC_ABI
