// Limits managed memory: never more than the device had free at the start, nor more than it has free now.
//
//   free at the start   |-------------------------|
//   handed out          |==========|                      resident on the device or not: unknown
//   requested                      |----|                 granted when both limits hold
#pragma once

#include <algorithm>
#include <cstddef>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// @threads one thread at a time
class managed_budget {
 public:
  explicit managed_budget(std::size_t free_at_start = 0) noexcept : limit_(free_at_start) {}

  /// True when the bytes are granted; they count until they are given back.
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

}}}  // namespace deeprec::DEEPREC_ABI::detail
