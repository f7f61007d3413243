// Batches in device memory whose number of ids is known only on the device: the outputs of sparse operations.
//
//   room for N   | 7 1 9 4 . . . . |      the number of ids is offsets[B], which only the device reads:
//                                         a sequence of operations can be enqueued, and captured,
//                                         without reading it on the host
//
// Plain pointers; the caller owns the memory. The operations: device_batches.cuh.
#pragma once

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/space.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Room for B bags.
template <class Id = std::int64_t>
struct device_bags {
  using id_type = Id;
  index_t* offsets = nullptr;  ///< (bags + 1)
  Id* ids = nullptr;           ///< (room)
  float* weights = nullptr;    ///< (room), or null for weight 1
  index_t bags = 0;
  index_t room = 0;

  /// The batch as input of a lookup.
  [[nodiscard]] jagged_view<Id, index_t, device_space> view() const noexcept {
    return {offsets, bags, ids, room, weights};
  }
};

namespace detail {

/// True when an array that must have elements is null.
template <class Id>
bool is_null(const device_bags<Id>& out) noexcept {
  return (out.bags > 0 && out.offsets == nullptr) || (out.room > 0 && out.ids == nullptr);
}

}  // namespace detail

}}  // namespace deeprec::DEEPREC_ABI
