// What the lookup kernels of every region are given: plain pointers and sizes, no views.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/embedding/pooling.hpp>

namespace deeprec::inline DEEPREC_ABI::detail {

/// Row of a slot by arithmetic on its id.
template <class Id>
struct direct_rows {
  const std::byte* base;
  index_t stride;
  const Id* ids;
  DEEPREC_INLINE const std::byte* operator()(index_t slot) const {
    return base + static_cast<index_t>(ids[slot]) * stride;
  }
};

/// Row of a slot as a row source resolved it.
struct resolved_rows {
  const std::byte* const* addresses;  // of slot first_slot
  index_t first_slot;
  DEEPREC_INLINE const std::byte* operator()(index_t slot) const {
    return addresses[slot - first_slot];
  }
};

/// True for an id outside [0, rows): one comparison for both ends.
template <class Id>
DEEPREC_INLINE bool is_bad_id(Id id, index_t rows) {
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(id)) >= static_cast<std::uint64_t>(rows);
}

/// A bag with more ids than this is summed in chunks of this many, and the chunks by a fixed tree.
inline constexpr index_t chunk_slots = 4096;

template <class Rows, class Id, class Offset, class Out>
struct pool_args {
  Rows row_of;
  const Id* ids;
  const Offset* offsets;
  const float* weights;  // null: all 1
  index_t rows;          // ids are valid in [0, rows)
  index_t width;         // D
  index_t row_bytes;
  index_t last_slot;     // one past the last slot of the batch: how far prefetching may look
  Out* out;
  index_t out_stride;
};

/// What pooling a range of slots leaves besides the sums.
struct pool_counts {
  index_t used = 0;       // ids that were added
  double weight_sum = 0;  // of those
};

/// What the sums of a finished bag are divided by (sum: 1); 0 stands for "the bag becomes zeros".
template <class Combiner>
DEEPREC_HD DEEPREC_INLINE double denominator(const pool_counts& counts) {
  if constexpr (std::is_same_v<Combiner, mean_t<by_count_t>>) {
    return static_cast<double>(counts.used);
  } else if constexpr (std::is_same_v<Combiner, mean_t<by_weight_t>>) {
    return counts.weight_sum;
  } else {
    return 1.0;
  }
}

}  // namespace deeprec::inline DEEPREC_ABI::detail
