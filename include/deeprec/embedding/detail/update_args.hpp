// What the update kernels of every region are given.
#pragma once

#include <cstddef>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/embedding/detail/sorted_slots.hpp>

namespace deeprec::inline DEEPREC_ABI::detail {

template <class Format>
struct update_args {
  const sorted_slots& slots;
  const index_t* bag_of;    // of a slot, counted from the batch's first slot
  const float* bag_scale;   // 1 / denominator of a bag
  const float* weights;     // null: all 1
  const float* gradient;    // (B, D)
  index_t gradient_stride;
  index_t first_slot;
  std::byte* rows;
  Format format;
};

}  // namespace deeprec::inline DEEPREC_ABI::detail
