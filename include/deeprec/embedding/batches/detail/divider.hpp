// Division by a fixed divisor as a multiplication and a shift.
//
//   n / d  =  n * ceil(2^(63+l) / d) >> (63+l)      for 0 <= n < 2^63, with 2^l >= d
//
// Granlund and Montgomery 1994, theorem 4.2.
#pragma once

#include <bit>
#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/hash.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

class divider {
 public:
  /// @pre divisor > 0
  explicit divider(index_t divisor) noexcept
      : shift_(63 + static_cast<int>(std::bit_width(static_cast<std::uint64_t>(divisor - 1)))),
        factor_(static_cast<std::uint64_t>(((uint128{1} << shift_) + static_cast<uint128>(divisor - 1)) /
                                           static_cast<uint128>(divisor))) {}

  /// @pre n >= 0
  index_t operator()(index_t n) const noexcept {
    return static_cast<index_t>(static_cast<uint128>(n) * factor_ >> shift_);
  }

 private:
  int shift_;
  std::uint64_t factor_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
