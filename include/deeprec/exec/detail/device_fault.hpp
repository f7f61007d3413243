// The record that kernels write what they find wrong to, and the host reads when it synchronizes.
#pragma once

#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec::inline DEEPREC_ABI {

/// Zeroed: nothing found. `lock` guards the other fields on the device.
struct device_fault {
  int lock;
  int code;  // an errc
  index_t table;
  index_t bag;
  index_t slot;
  std::int64_t value;

  /// Whether another place comes before this one.
  [[nodiscard]] DEEPREC_HD constexpr bool is_behind(index_t t, index_t b, index_t k) const noexcept {
    if (code == 0) return true;
    if (t != table) return t < table;
    return b != bag ? b < bag : k < slot;
  }
  [[nodiscard]] status as_status() const noexcept {
    if (code == 0) return {};
    return {static_cast<errc>(code), {.table = table, .bag = bag, .slot = slot, .value = value}};
  }
};

}  // namespace deeprec::inline DEEPREC_ABI
