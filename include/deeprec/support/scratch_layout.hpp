// Where arrays begin in one block of scratch of a device call.
#pragma once

#include <cstddef>
#include <limits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The layout of arrays in one block of memory, each aligned to 256 bytes. Where their sum exceeds an address
/// space, or a count is negative, bytes() is the largest std::size_t, which every runtime refuses.
class scratch_layout {
 public:
  /// Appends `count` elements of T; returns their offset.
  template <class T>
  std::size_t add(index_t count) {
    constexpr std::size_t most = (std::numeric_limits<std::size_t>::max)();
    const std::size_t at = bytes_;
    const std::size_t room = (most - at) / 256 * 256;  // so a piece that fits can be rounded up
    if (count < 0 || static_cast<std::size_t>(count) > room / sizeof(T)) {
      bytes_ = most;
    } else {
      bytes_ += (static_cast<std::size_t>(count) * sizeof(T) + 255) / 256 * 256;
    }
    return at;
  }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
