// Chooses how many items may lie between two segments, while they run.
//
//   window of 16 items ──> both sides waited, in two     the times vary, and depth absorbs that
//                          windows of about four: deeper
//                          never full, four times: less  what is never used only holds memory
//                          else: as before               a producer that never waits is the slow side, and
//                                                        no depth makes it faster
//
// Where a depth was lowered and is needed again, twice as many windows in a row (at most 1024) must not use
// it before it is lowered the next time: bursts that come back find the depth that they need.
//
// A depth is at least `least`, at most `most`, and never above what the byte budget holds of the largest item
// seen. Not here: the edge that counts, and its threads (detail/edge.hpp).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

enum class depth_reason : unsigned char { both_sides_waited, never_full };

/// A change of a depth.
struct depth_decision {
  const char* stage = "";  ///< the stage that takes the items
  std::uint64_t item = 0;  ///< how many it had taken
  std::size_t from = 0;
  std::size_t to = 0;
  depth_reason reason = depth_reason::both_sides_waited;
};

/// What happened at an edge since the last decision.
struct depth_window {
  std::uint64_t items = 0;
  std::uint64_t consumer_waits = 0;
  std::uint64_t producer_waits = 0;
  std::size_t deepest = 0;       ///< the most items that lay there
  std::size_t largest_item = 0;  ///< bytes; 0 where they are not measured
};

/// @threads one thread at a time
class depth_controller {
 public:
  static constexpr std::size_t window = 16;    ///< items
  static constexpr std::size_t recorded = 64;  ///< decisions that are kept, the last ones
  static constexpr int least_patience = 4;     ///< windows in a row that don't use a depth, at first
  static constexpr int most_patience = 1024;   ///< and at most, before it is lowered

  struct bounds {
    std::size_t least = 1;
    std::size_t most = 1;
    std::size_t byte_budget = 0;  ///< 0: no limit
  };

  depth_controller(const char* stage, const bounds& allowed) noexcept
      : stage_(stage), allowed_(allowed), depth_(allowed.least) {}

  [[nodiscard]] std::size_t depth() const noexcept { return depth_; }
  /// The changes so far, also those that are no longer kept.
  [[nodiscard]] std::uint64_t changes() const noexcept { return changes_; }

  /// The depth from now on.
  ///
  /// @param item how many items were taken, for the record
  /// @cost    some ns
  /// @threads one thread at a time
  /// @error   none
  std::size_t decide(const depth_window& seen, std::uint64_t item) noexcept {
    // Once is enough: one item that is very late costs as much as many that are a little late. A thread that
    // lost its core has waited as well, but not in one window after the other.
    const bool both_waited = seen.consumer_waits > 0 && seen.producer_waits > 0;
    if (!both_waited && uneven_ > 0) --uneven_;
    largest_item_ = (std::max)(largest_item_, seen.largest_item);
    std::size_t most = allowed_.most;
    if (allowed_.byte_budget != 0 && largest_item_ != 0)
      most = (std::min)(most, (std::max)(allowed_.byte_budget / largest_item_, allowed_.least));
    if (depth_ > most) {
      change(most, item, depth_reason::never_full);
    } else if (both_waited) {
      quiet_ = 0;
      deepest_ = 0;
      uneven_ += 4;
      if (uneven_ >= 8 && depth_ < most) {
        change((std::min)(most, 2 * depth_), item, depth_reason::both_sides_waited);
        uneven_ = 4;  // the next such window is enough
        if (lowered_) patience_ = (std::min)(2 * patience_, most_patience);
        lowered_ = false;
      }
      uneven_ = (std::min)(uneven_, 8);
    } else if (seen.deepest < depth_) {
      deepest_ = (std::max)(deepest_, seen.deepest);
      if (++quiet_ >= patience_) {
        const std::size_t used = (std::max)(deepest_, allowed_.least);
        if (used < depth_) {
          change(used, item, depth_reason::never_full);
          lowered_ = true;
        }
        quiet_ = 0;
        deepest_ = 0;
      }
    } else {
      quiet_ = 0;
      deepest_ = 0;
    }
    return depth_;
  }

  /// Appends the changes that are kept, in order.
  ///
  /// @cost    allocates where `to` has no room
  /// @threads one thread at a time
  /// @error   throws std::bad_alloc
  void append_to(std::vector<depth_decision>& to) const {
    const std::uint64_t kept = (std::min)(changes_, std::uint64_t{recorded});
    for (std::uint64_t k = changes_ - kept; k < changes_; ++k)
      to.push_back(record_[static_cast<std::size_t>(k % recorded)]);
  }

 private:
  void change(std::size_t to, std::uint64_t item, depth_reason why) noexcept {
    record_[static_cast<std::size_t>(changes_ % recorded)] = {stage_, item, depth_, to, why};
    ++changes_;
    depth_ = to;
  }

  const char* stage_;
  bounds allowed_;
  std::size_t depth_;
  std::size_t largest_item_ = 0;
  std::size_t deepest_ = 0;
  int quiet_ = 0;  // windows in a row in which the depth was not used
  int patience_ = least_patience;
  bool lowered_ = false;  // since the last time it was raised
  int uneven_ = 0;        // 4 for a window in which both sides waited, 1 less for one in which they did not
  std::uint64_t changes_ = 0;
  std::array<depth_decision, recorded> record_{};
};

}}  // namespace deeprec::DEEPREC_ABI
