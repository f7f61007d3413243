// The memory of a sharded step: blocks of its messages, and the batches that they hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <numeric>
#include <span>
#include <vector>

#include <deeprec/comm/message_room.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/sharding/detail/batch_cuts.hpp>
#include <deeprec/sharding/detail/step_layout.hpp>
#include <deeprec/support/growing_block.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// A message to or from another rank in a buffer of all.
struct block_place {
  index_t at = 0;
  index_t bytes = 0;
};
/// Bytes of the blocks that a rank asked for.
struct served_blocks {
  index_t reply = 0, gradients = 0;
};

/// A batch over the slots of its distinct ids.
template <class Bags>
using slot_bags = jagged_view<slot_number, typename Bags::offset_type>;

/// The bags of a feature that use an owner, in a request: factors of uses are null where all are 1.
struct bag_uses {
  std::int64_t* offsets = nullptr;
  std::int32_t* slots = nullptr;
  float* factors = nullptr;
  index_t bags = 0, count = 0;

  void add(index_t slot, float factor, bool begins_bag) noexcept {
    slots[count] = static_cast<std::int32_t>(slot);
    if (factors != nullptr) factors[count] = factor;
    bags += begins_bag ? 1 : 0;
    offsets[bags] = ++count;
  }
};

template <class Bags>
struct step_buffers {
  step_buffers(int ranks, std::pmr::memory_resource* from)
      : memory(from),
        to(static_cast<std::size_t>(ranks), from),
        from_ranks(static_cast<std::size_t>(ranks), from),
        reply_places(static_cast<std::size_t>(ranks), from),
        gradient_places(static_cast<std::size_t>(ranks), from),
        served_bytes(static_cast<std::size_t>(ranks), from),
        replies(from),
        gradients(from),
        wide_gradients(from),
        parts(from),
        slots(from),
        sums_of_bags(from),
        cuts(from),
        entries(from),
        served_entries(from),
        pooled_bags(from),
        served_bags(from),
        stepped_bags(from),
        stepped_ids(from),
        uses(from),
        one_each(from),
        iota(from) {
    for (int r = 0; r < ranks; ++r) {
      requests.emplace_back(from);
      requests_of.emplace_back(from);
      replies_of.emplace_back(from);
      gradients_of.emplace_back(from);
    }
  }

  /// 0, 1 ... count.
  const std::int64_t* numbers(index_t count) {
    const auto had = iota.size();
    if (had <= static_cast<std::size_t>(count)) {
      iota.resize(static_cast<std::size_t>(count) + 1);
      std::iota(iota.begin() + static_cast<std::ptrdiff_t>(had), iota.end(), static_cast<std::int64_t>(had));
    }
    return iota.data();
  }

  std::pmr::memory_resource* memory;
  std::vector<message_room> requests, requests_of, replies_of, gradients_of;  // by ranks
  std::pmr::vector<std::span<std::byte>> to, from_ranks;
  std::pmr::vector<block_place> reply_places, gradient_places;  // of each rank
  std::pmr::vector<served_blocks> served_bytes;
  growing_block replies, gradients;    // blocks of all owners
  growing_block wide_gradients;        // f32, before or after messages of narrower ones
  std::pmr::vector<slot_parts> parts;  // by features
  std::pmr::vector<std::pmr::vector<std::int64_t>> slots;
  std::pmr::vector<std::pmr::vector<typename Bags::offset_type>> sums_of_bags;  // offsets of received sums
  std::pmr::vector<batch_cuts> cuts;                                            // by features
  std::pmr::vector<request_entry> entries;         // [feature][rank]: what this rank asks
  std::pmr::vector<request_entry> served_entries;  // [feature][rank]: what it is asked
  std::pmr::vector<Bags> pooled_bags;
  std::pmr::vector<jagged_view<>> served_bags;
  std::pmr::vector<jagged_view<>> stepped_bags;  // of features whose sums are in order
  std::pmr::vector<std::int64_t> stepped_ids;
  std::pmr::vector<bag_uses> uses;  // [feature][rank]: where they are written
  std::pmr::vector<std::int64_t> one_each;
  std::pmr::vector<std::int64_t> iota;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
