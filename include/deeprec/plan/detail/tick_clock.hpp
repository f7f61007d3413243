// A clock for spans that costs a few nanoseconds to read.
#pragma once

#include <chrono>
#include <cstdint>

#include <deeprec/core/config.hpp>

#if DEEPREC_X86
#  include <cpuid.h>
#endif

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The cheapest clock: the processor's counter where it runs at one speed on all cores (8 ns to read), else
/// std::chrono::steady_clock (25 ns). Its unit is known by comparison with steady_clock only.
class tick_clock {
 public:
  [[nodiscard]] static std::int64_t steady() noexcept {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  [[nodiscard]] std::int64_t now() const noexcept {
#if DEEPREC_X86
    if (counter_) [[likely]]
      return static_cast<std::int64_t>(__builtin_ia32_rdtsc());
#endif
    return steady();
  }
  [[nodiscard]] bool is_counter() const noexcept { return counter_; }

 private:
  static bool has_counter() noexcept {
#if DEEPREC_X86
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(0x80000007U, &a, &b, &c, &d) != 0 && (d >> 8 & 1U) != 0;
#else
    return false;
#endif
  }
  bool counter_ = has_counter();
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
