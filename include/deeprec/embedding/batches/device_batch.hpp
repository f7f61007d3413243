// Batches in device memory whose number of ids only the device knows: what the stages of a lookup write
// there.
//
//   room for N   | 7 1 9 4 . . . . |      offsets (B+1) say where it ends; offsets[B] is read by the device alone,
//                                         so a step of stages can be enqueued, and captured, without a look at it
//
// Plain pointers that the caller owns. The stages: device_batches.cuh.
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

  /// As a lookup takes it.
  [[nodiscard]] jagged_view<Id, index_t, device_space> view() const noexcept {
    return {offsets, bags, ids, room, weights};
  }
};

namespace detail {

/// Whether room that is promised is nowhere.
template <class Id>
bool is_null(const device_bags<Id>& out) noexcept {
  return (out.bags > 0 && out.offsets == nullptr) || (out.room > 0 && out.ids == nullptr);
}

}  // namespace detail

}}  // namespace deeprec::DEEPREC_ABI
