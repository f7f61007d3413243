// The ways in which plan_blocks places blocks (block_plan.hpp).
#pragma once

#include <cstdint>
#include <initializer_list>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The orders place one block after the other into the smallest gap that fits, among the blocks placed before
/// that are live at the same time. Where an order decides nothing: by begin, end, bytes, alignment.
enum class block_policy : std::uint8_t {
  by_size,         ///< the most bytes first
  by_size_lowest,  ///< the same order, into the lowest gap
  by_area,         ///< the largest product of bytes and lifetime first
  by_length,       ///< the longest lifetime first
  by_start,        ///< the earliest begin first, as an allocator that knows no future does
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

/// A set of policies.
///
/// @threads a value type
class block_policies {
 public:
  constexpr block_policies(std::initializer_list<block_policy> policies) noexcept {
    for (const block_policy p : policies) bits_ |= bit(p);
  }
  [[nodiscard]] constexpr block_policies with(block_policy p) const noexcept {
    block_policies all = *this;
    all.bits_ |= bit(p);
    return all;
  }
  [[nodiscard]] constexpr block_policies without(block_policy p) const noexcept {
    block_policies rest = *this;
    rest.bits_ &= ~bit(p);
    return rest;
  }
  [[nodiscard]] constexpr bool has(block_policy p) const noexcept { return (bits_ & bit(p)) != 0; }
  [[nodiscard]] constexpr bool empty() const noexcept { return bits_ == 0; }
  /// False where a number that is no policy was added.
  [[nodiscard]] constexpr bool are_known() const noexcept { return bits_ < 2 * bit(block_policy::search); }

 private:
  static constexpr std::uint32_t bit(block_policy p) noexcept {
    return std::uint32_t{1} << (p > block_policy::search ? 31 : static_cast<int>(p));
  }
  std::uint32_t bits_ = 0;
};

}}  // namespace deeprec::DEEPREC_ABI
