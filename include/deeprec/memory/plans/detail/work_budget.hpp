// How much a search may do: steps, counted, and beside them a time, where there is a limit.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// @threads one thread at a time
class work_budget {
 public:
  using clock = std::chrono::steady_clock;

  /// So much from now on.
  static clock::time_point after(std::chrono::nanoseconds limit) noexcept {
    const clock::time_point now = clock::now();
    return limit < (clock::time_point::max)() - now ? now + limit : (clock::time_point::max)();
  }

  explicit work_budget(std::uint64_t steps, std::optional<clock::time_point> deadline = {}) noexcept
      : most_(steps), deadline_(deadline), next_look_(deadline ? 0 : steps) {}

  /// Counts steps that were taken. The clock is read once in `look` steps, never without a deadline.
  void take(std::uint64_t steps) noexcept {
    used_ += steps;
    if (used_ < next_look_ || is_over()) return;
    next_look_ = used_ + look;
    late_ = deadline_ && clock::now() >= *deadline_;
  }
  [[nodiscard]] bool is_over() const noexcept { return late_ || used_ >= most_; }
  [[nodiscard]] std::uint64_t used() const noexcept { return used_; }

 private:
  static constexpr std::uint64_t look = std::uint64_t{1} << 18;  // about a millisecond
  std::uint64_t most_;
  std::optional<clock::time_point> deadline_;
  std::uint64_t used_ = 0;
  std::uint64_t next_look_;
  bool late_ = false;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
