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
#include <deeprec/core/detail/cpu_features.hpp>

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

constexpr isa best_isa_of(const cpu_features& has) noexcept {
  const bool avx2 = has.avx2 && has.fma && has.bmi2 && has.f16c;
  const bool avx512 = avx2 && has.avx512f && has.avx512bw && has.avx512dq && has.avx512vl;
  if (avx512 && has.avx512bf16) return isa::avx512_bf16;
  if (avx512) return isa::avx512;
  return avx2 ? isa::avx2 : isa::portable;
}

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
