// Ranges of a file or a device: given out from the lowest on, and joined again when they are given back.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <optional>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// @threads exclusive
class mapped_ranges {
 public:
  /// Of [0, end).
  explicit mapped_ranges(std::uint64_t end = 0) : end_(end) {}

  /// The first place of so many bytes; none where there is none. Throws std::bad_alloc.
  [[nodiscard]] std::optional<std::uint64_t> take(std::uint64_t bytes) {
    for (auto& [at, one] : all_) {
      if (!one.is_free || one.bytes < bytes) continue;
      if (one.bytes > bytes) all_[at + bytes] = {one.bytes - bytes, true};
      one = {bytes, false};
      return at;
    }
    const std::uint64_t begin = used();
    if (bytes > end_ - begin) return std::nullopt;
    all_[begin] = {bytes, false};
    return begin;
  }
  /// @pre begin is what take() returned
  void give(std::uint64_t begin) noexcept {
    auto at = all_.find(begin);
    at->second.is_free = true;
    join(at);
    if (at != all_.begin()) join(std::prev(at));
  }
  /// Where the last range ends that was ever given.
  [[nodiscard]] std::uint64_t used() const noexcept {
    return all_.empty() ? 0 : all_.rbegin()->first + all_.rbegin()->second.bytes;
  }

 private:
  struct range {
    std::uint64_t bytes = 0;
    bool is_free = false;
  };
  void join(std::map<std::uint64_t, range>::iterator at) noexcept {
    const auto next = std::next(at);
    if (!at->second.is_free || next == all_.end() || !next->second.is_free) return;
    at->second.bytes += next->second.bytes;
    all_.erase(next);
  }

  std::uint64_t end_;
  std::map<std::uint64_t, range> all_;  // without gaps, by begin
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
