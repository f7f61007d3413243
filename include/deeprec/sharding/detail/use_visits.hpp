// The bags of a batch that use rows of each owner: what is sent where gradients are summed in the order of
// bags.
//
//   bags (7 2 9) (2)     owner 0: rows 2, of bags 0 and 1        owner 1: rows 7 9, of bag 0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/embedding/kernels/host/pool_rules.hpp>
#include <deeprec/sharding/detail/step_buffers.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The factor of a bag's gradient at each of its rows, as backward passes have it.
template <class Bags>
float factor_of_bag(divide_by divide, const Bags& bags, index_t bag) noexcept {
  const auto ranges = bags.ranges();
  pool_counts counts;
  for (index_t k = ranges.begin(bag), end = ranges.end(bag); k < end; ++k)
    counts.add(bags.weights() == nullptr ? 1.0 : static_cast<double>(bags.weights()[k]));
  const double divisor = counts.divisor(divide);
  return divisor == 0.0 ? 0.0F : static_cast<float>(1.0 / divisor);
}

template <class Bags>
class use_visits {
 public:
  use_visits(int ranks, std::pmr::memory_resource* memory)
      : owners_(memory), seen_(static_cast<std::size_t>(ranks), memory) {}

  /// each(owner, bag, position, slot among the owner's rows, number of the bag among those that use the
  /// owner, whether the bag begins), in the order of positions.
  template <class Each>
  void each_use(const slot_parts& parts, const Bags& bags, const Each& each) {
    owners_.resize(parts.ids.size());
    for (std::size_t o = 0; o + 1 < parts.first.size(); ++o) {
      seen_[o] = {};
      std::fill(owners_.begin() + parts.first[o], owners_.begin() + parts.first[o + 1], static_cast<int>(o));
    }
    const auto ranges = bags.ranges();
    for (index_t bag = 0; bag < bags.bags(); ++bag) {
      for (index_t k = ranges.begin(bag), end = ranges.end(bag); k < end; ++k) {
        const auto slot = static_cast<std::size_t>(parts.slots[static_cast<std::size_t>(k)]);
        const int owner = owners_[slot];
        last_bag& last = seen_[static_cast<std::size_t>(owner)];
        const bool begins = last.bag != bag;
        last.number += begins ? 1 : 0;
        last.bag = bag;
        each(owner, bag, k, static_cast<index_t>(slot) - parts.first[static_cast<std::size_t>(owner)],
             last.number, begins);
      }
    }
  }

 private:
  struct last_bag {
    index_t bag = -1, number = -1;
  };
  std::pmr::vector<int> owners_;  // of slots
  std::pmr::vector<last_bag> seen_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
