// The distinct ids of each part of a rank's batch, where gradients are summed in more parts than there are
// ranks.
//
//   batch of the rank   slots 0 1 0 | 1 2           owner 0 has slots 0 1, owner 1 slot 2
//   part 0              slots 0 1 0                 of_batch 0 1     first 0 2 2
//   part 1              slots       | 0 1           of_batch 1 2     first 0 1 2
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/ops/partition_unique.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The distinct ids of a batch. Slots of 32 bits: half the memory to pass over.
using slot_number = std::int32_t;
using slot_parts = unique_parts<std::int64_t, slot_number>;

/// The distinct ids of a part, owner after owner.
struct batch_part {
  explicit batch_part(std::pmr::memory_resource* memory) : of_batch(memory), first(memory), counts(memory) {}

  std::pmr::vector<slot_number> of_batch;  ///< (U): slots of the batch
  std::pmr::vector<index_t> first;         ///< (n+1): owner o has [first[o], first[o+1])
  std::pmr::vector<slot_number> counts;    ///< (U)

  [[nodiscard]] index_t ids_of(std::size_t owner) const noexcept { return first[owner + 1] - first[owner]; }
};

/// Parts of a batch, as equal in bags as may be.
class batch_cuts {
 public:
  explicit batch_cuts(std::pmr::memory_resource* memory) : parts_(memory), slots_(memory), seen_(memory) {}

  [[nodiscard]] const std::pmr::vector<batch_part>& parts() const noexcept { return parts_; }
  /// (N): of each position, among the ids of its part.
  [[nodiscard]] const std::pmr::vector<slot_number>& slots() const noexcept { return slots_; }
  /// The first bag of a part.
  [[nodiscard]] index_t first_bag(index_t bags, std::size_t part) const noexcept {
    return bags * static_cast<index_t>(part) / static_cast<index_t>(parts_.size());
  }

  template <class Bags>
  void cut(const Bags& bags, const slot_parts& all, std::size_t parts) {
    while (parts_.size() < parts) parts_.emplace_back(parts_.get_allocator().resource());
    slots_.resize(all.slots.size());
    seen_.assign(all.ids.size(), 0);
    const auto ranges = bags.ranges();
    for (std::size_t p = 0; p < parts; ++p) {
      batch_part& part = parts_[p];
      const index_t from = first_bag(bags.bags(), p), to = first_bag(bags.bags(), p + 1);
      const index_t begin = from == to ? 0 : ranges.begin(from), end = from == to ? 0 : ranges.end(to - 1);
      for (index_t k = begin; k < end; ++k) ++seen_[index(all.slots[index(k)])];
      part.of_batch.clear();
      part.counts.clear();
      part.first.assign(1, 0);
      for (std::size_t owner = 0; owner + 1 < all.first.size(); ++owner) {
        for (auto s = index(all.first[owner]); s < index(all.first[owner + 1]); ++s) {
          if (seen_[s] == 0) continue;
          part.counts.push_back(seen_[s]);
          seen_[s] = static_cast<slot_number>(part.of_batch.size());
          part.of_batch.push_back(static_cast<slot_number>(s));
        }
        part.first.push_back(static_cast<index_t>(part.of_batch.size()));
      }
      for (index_t k = begin; k < end; ++k) slots_[index(k)] = seen_[index(all.slots[index(k)])];
      for (const slot_number s : part.of_batch) seen_[index(s)] = 0;
    }
  }

 private:
  template <class Number>
  static std::size_t index(Number n) noexcept {
    return static_cast<std::size_t>(n);
  }

  std::pmr::vector<batch_part> parts_;  // of a step sequence: always as many
  std::pmr::vector<slot_number> slots_;
  std::pmr::vector<slot_number> seen_;  // by slots of the batch: how often, then the number in the part
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
