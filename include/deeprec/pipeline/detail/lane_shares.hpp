// Which lane takes which part of a batch: each those that follow each other, then what others leave.
#pragma once

#include <atomic>
#include <cstddef>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// @threads begin: one; for_each: a thread for each lane
class lane_shares {
 public:
  /// @error bad_alloc
  void begin(index_t lanes, index_t parts) {
    if (next_.size() < static_cast<std::size_t>(lanes)) {
      next_ = std::vector<position>(static_cast<std::size_t>(lanes));
    }
    lanes_ = lanes;
    parts_ = parts;
    for (index_t lane = 0; lane < lanes; ++lane) at(lane).store(first_of(lane), std::memory_order_relaxed);
  }
  /// Calls use(part) for parts that no other lane takes, until none is left or it returns false.
  template <class Use>
  void for_each(index_t lane, const Use& use) {
    for (index_t k = 0; k < lanes_; ++k) {
      const index_t of = (lane + k) % lanes_, end = first_of(of + 1);
      while (true) {
        const index_t part = at(of).fetch_add(1, std::memory_order_relaxed);  // a number carries no data
        if (part >= end) break;
        if (!use(part)) return;
      }
    }
  }

 private:
  struct alignas(64) position {
    std::atomic<index_t> next{0};
  };
  std::atomic<index_t>& at(index_t lane) { return next_[static_cast<std::size_t>(lane)].next; }
  [[nodiscard]] index_t first_of(index_t lane) const { return lane * parts_ / lanes_; }

  std::vector<position> next_;
  index_t lanes_ = 0, parts_ = 0;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
