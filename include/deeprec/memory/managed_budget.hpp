// How much managed memory may be handed out: never more than the card had free, and never more than it has.
//
//   free at the start   |-------------------------|
//   handed out          |==========|                      lives on the card or not: nobody can tell
//   asked for                      |----|                 granted when both ends fit
#pragma once

#include <algorithm>
#include <cstddef>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {

/// @threads one thread at a time
class managed_budget {
 public:
  explicit managed_budget(std::size_t free_at_start = 0) noexcept : limit_(free_at_start) {}

  /// True when the bytes may be handed out; they count until they are given back.
  [[nodiscard]] bool take(std::size_t bytes, std::size_t free_now) noexcept {
    if (bytes > free_now || bytes > limit_ || held_ > limit_ - bytes) return false;
    held_ += bytes;
    return true;
  }
  void give_back(std::size_t bytes) noexcept { held_ -= (std::min)(bytes, held_); }
  [[nodiscard]] std::size_t held() const noexcept { return held_; }

 private:
  std::size_t limit_;
  std::size_t held_ = 0;
};

}  // namespace detail

}}  // namespace deeprec::DEEPREC_ABI
