// Numbers for the pieces of several items, so that one parallel_for runs all of them.
//
//   items     |  0  |1|   2   |
//   pieces    |p0|p1|p2|p3|p4|p5|      starts_[t] is the first of item t
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory_resource>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Pieces of the items of a list, numbered consecutively.
class numbered_pieces {
 public:
  template <class Count>
  numbered_pieces(std::pmr::memory_resource* memory, std::size_t items, const Count& count)
      : starts_(items + 1, memory) {
    for (std::size_t t = 0; t < items; ++t) starts_[t + 1] = starts_[t] + count(t);
  }

  struct piece {
    index_t number;
    std::size_t item;
  };
  [[nodiscard]] index_t size() const noexcept { return starts_.back(); }
  [[nodiscard]] piece find(index_t number) const {
    const auto after = std::upper_bound(starts_.begin(), starts_.end(), number);
    return {number, static_cast<std::size_t>(after - starts_.begin()) - 1};
  }
  [[nodiscard]] piece next(piece at) const {
    ++at.number;
    while (at.item + 2 < starts_.size() && at.number >= starts_[at.item + 1]) ++at.item;
    return at;
  }
  /// The number of a piece within its item.
  [[nodiscard]] index_t within(piece at) const { return at.number - starts_[at.item]; }

 private:
  std::pmr::vector<index_t> starts_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
