// What rows of a batch may have beside labels, dense values and ids: a weight, a group, a name.
#pragma once

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Which of them the rows of a format have.
struct row_extras {
  bool weights = false;  ///< of the row in a loss
  bool groups = false;   ///< rows of one query or user, for metrics by group
  bool names = false;    ///< text that goes with the row to its prediction

  [[nodiscard]] constexpr bool any() const noexcept { return weights || groups || names; }
  friend constexpr bool operator==(const row_extras&, const row_extras&) = default;
};

}}  // namespace deeprec::DEEPREC_ABI
