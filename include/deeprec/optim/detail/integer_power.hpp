// Powers with an integer exponent: multiplications only, so the same bits on every machine.
#pragma once

#include <cstdint>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// base^exponent; 1 for an exponent of 0 or less. O(log exponent).
DEEPREC_HD constexpr double integer_power(double base, std::int64_t exponent) noexcept {
  double power = 1;
  for (; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0) power *= base;
    base *= base;
  }
  return power;
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
