// What the rows of a batch have, whatever their number.
#pragma once

#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// What rows of a format have beside labels, dense values and ids.
struct row_extras {
  bool weights = false;  ///< of the row in a loss
  bool groups = false;   ///< rows of one query or user, for metrics by group
  bool names = false;    ///< text that goes with the row to its prediction

  [[nodiscard]] constexpr bool any() const noexcept { return weights || groups || names; }
  friend constexpr bool operator==(const row_extras&, const row_extras&) = default;
};

/// one: each bag holds exactly one id (then all features share their offsets); any: zero or more.
enum class bag_size : std::uint8_t { one, any };

/// Whether the ids of a format come with weights.
enum class id_weights : std::uint8_t { absent, present };

/// The contents of every row of a format.
struct batch_shape {
  index_t dense_columns = 0;
  index_t features = 0;
  bag_size bags = bag_size::any;
  id_weights weights = id_weights::absent;
  row_extras extras{};

  friend constexpr bool operator==(const batch_shape&, const batch_shape&) = default;
};

}}  // namespace deeprec::DEEPREC_ABI
