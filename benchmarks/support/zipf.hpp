// Ids by zipf(1.05).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/hash.hpp>

namespace deeprec_bench {

/// The id of a draw: the inverse of the continuous zipf(1.05) on [1, rows + 1), its ranks scattered over the
/// table.
inline std::int64_t zipf_id(std::uint64_t draw, deeprec::index_t rows) {
  constexpr double exponent = -0.05;
  const double top = std::pow(static_cast<double>(rows) + 1, exponent);
  const double u = static_cast<double>(draw >> 11) * 0x1p-53;
  const double rank = std::pow(1 + u * (top - 1), 1 / exponent) - 1;
  const auto place = std::min(static_cast<deeprec::index_t>(rank), rows - 1);
  return deeprec::hash_bucket(deeprec::mix64(static_cast<std::uint64_t>(place)), rows);
}

}  // namespace deeprec_bench
