// What a pipeline needs besides its line: how much lies between two threads, and what becomes of bad items.
//
//   pipeline_options options{.capacity = 2, .byte_budget = 64 << 20, .on_bad_item = bad_items::skip};
//
// A bad item is one for which a callable returned a failed status or a fault. An exception is no bad item: it
// always ends the run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include <deeprec/core/config.hpp>
#include <deeprec/core/result.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

struct bad_item {
  const char* stage;     ///< its name
  std::uint64_t number;  ///< of the item, among those that entered the stage's segment, from 0
  const deeprec::fault& why;
};

enum class bad_item_action : unsigned char {
  stop,  ///< the run ends; items before this one are delivered
  skip,  ///< the item is left out and counted in stage_statistics::bad; a source is called again
};

namespace bad_items {

/// The policy of a pipeline that has none.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
inline bad_item_action stop(const bad_item&) noexcept { return bad_item_action::stop; }
/// Leaves every bad item out.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
inline bad_item_action skip(const bad_item&) noexcept { return bad_item_action::skip; }

}  // namespace bad_items

struct pipeline_options {
  std::size_t capacity = 2;      ///< items between two segments. After n ordered threads at least n, since an
                                 ///< item that is still made counts
  std::size_t max_capacity = 0;  ///< above capacity: the depth is tuned between both while the pipeline runs
                                 ///< (depth_controller.hpp)
  std::size_t byte_budget = 0;   ///< bytes between two segments; 0: no limit. One item may exceed it alone
  /// Decides on bad items, on the threads of the stages, so it must be thread-safe; empty: stop.
  std::function<bad_item_action(const bad_item&)> on_bad_item{};
};

}}  // namespace deeprec::DEEPREC_ABI
