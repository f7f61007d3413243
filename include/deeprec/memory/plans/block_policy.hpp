// The ways in which plan_blocks places blocks (block_plan.hpp).
#pragma once

#include <cstdint>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The orders place one block after the other into the smallest gap that fits, among the blocks placed before
/// that are live at the same time.
enum class block_policy : std::uint8_t {
  by_size,         ///< the most bytes first
  by_size_lowest,  ///< the same order, into the lowest gap
  by_area,         ///< the largest product of bytes and lifetime first
  by_length,       ///< the longest lifetime first
  by_start,        ///< the earliest begin first, as an allocator that knows no future
  by_breadth,      ///< first the blocks of the time with the most live bytes, of those the most bytes first
  binned,          ///< DeepRec's: chunks of rounded sizes, each for blocks that don't overlap in time
  search,          ///< branch and bound, from the best plan of the others
};

/// A policy as text.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
constexpr const char* to_string(block_policy policy) noexcept {
  switch (policy) {
    case block_policy::by_size:
      return "by size";
    case block_policy::by_size_lowest:
      return "by size, lowest gap";
    case block_policy::by_area:
      return "by area";
    case block_policy::by_length:
      return "by length";
    case block_policy::by_start:
      return "by start";
    case block_policy::by_breadth:
      return "by breadth";
    case block_policy::binned:
      return "binned";
    case block_policy::search:
      return "search";
  }
  return "unknown policy";
}

}}  // namespace deeprec::DEEPREC_ABI
