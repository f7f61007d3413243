// The fault record in device memory: written by kernels, read by the host when it synchronizes.
#pragma once

#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// All zero: no fault. `lock` guards the other fields on the device.
struct device_fault {
  int lock;
  int code;  // an errc
  index_t table;
  index_t bag;
  index_t position;
  std::int64_t value;
  unsigned long long first;  // the largest order_of() so far; faults with a smaller one skip the lock

  /// A sort key, larger for a fault that takes precedence: by table, then bag, then, without a bag, position.
  [[nodiscard]] DEEPREC_HD static constexpr unsigned long long order_of(index_t table, index_t bag,
                                                                        index_t position) noexcept {
    constexpr auto most = (index_t{1} << 48) - 1;
    constexpr index_t tables = 32766;  // later tables share one key
    using word = unsigned long long;
    if (table >= tables) return ~(static_cast<word>(tables + 1) << 49);
    const index_t place = bag >= 0 ? bag : position >= 0 ? position : 0;
    const auto of_table = static_cast<word>(table < 0 ? 0 : table + 1);
    return ~(of_table << 49 | word{bag >= 0} << 48 | static_cast<word>(place < most ? place : most));
  }
  /// True when a fault at (t, b, k) takes precedence over the recorded one.
  [[nodiscard]] DEEPREC_HD constexpr bool comes_after(index_t t, index_t b, index_t k) const noexcept {
    if (code == 0) return true;
    if (t != table) return t < table;
    return b != bag ? b < bag : k < position;
  }
  [[nodiscard]] status as_status() const noexcept {
    if (code == 0) return {};
    return {static_cast<errc>(code), {.table = table, .bag = bag, .position = position, .value = value}};
  }
};

}}  // namespace deeprec::DEEPREC_ABI
