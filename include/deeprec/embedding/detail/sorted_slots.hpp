// The slots of a batch grouped by row: what a backward pass needs to touch every row once.
//
//   ids      7 1 9 1 7        sorted   (1: slots 1 3) (7: slots 0 4) (9: slot 2)
//
// Stable: the slots of a row stay in order, so sums over them are reproducible.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory_resource>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/embedding/detail/lookup_args.hpp>

namespace deeprec::inline DEEPREC_ABI::detail {

class sorted_slots {
 public:
  explicit sorted_slots(std::pmr::memory_resource* memory)
      : keys_(memory), spare_(memory), starts_(memory) {}

  /// Groups the slots [begin, end) by id. Ids outside [0, rows), and `padding`, are left out.
  /// Cost: O(N) per 8 bits of `rows`.
  template <class Id>
  void build(const Id* ids, index_t begin, index_t end, index_t rows, std::int64_t padding) {
    const auto slot_bits =
        static_cast<int>(std::bit_width(static_cast<std::uint64_t>(end > begin ? end - begin : 1)));
    const auto row_bits =
        static_cast<int>(std::bit_width(static_cast<std::uint64_t>(rows > 0 ? rows - 1 : 0)));
    first_slot_ = begin;
    slot_bits_ = slot_bits;
    keys_.clear();
    for (index_t k = begin; k < end; ++k) {
      if (!is_absent(ids[k], rows, padding)) {
        keys_.push_back(static_cast<std::uint64_t>(ids[k]) << slot_bits |
                        static_cast<std::uint64_t>(k - begin));
      }
    }
    spare_.resize(keys_.size());
    for (int shift = slot_bits; shift < slot_bits + row_bits; shift += 8) {
      std::uint32_t next[257] = {};
      for (const std::uint64_t key : keys_) ++next[(key >> shift & 255) + 1];
      if (std::find(next, next + 257, keys_.size()) != next + 257) continue;  // one digit only
      for (int d = 0; d < 256; ++d) next[d + 1] += next[d];
      for (const std::uint64_t key : keys_) spare_[next[key >> shift & 255]++] = key;
      keys_.swap(spare_);
    }
    starts_.clear();
    for (std::size_t i = 0; i < keys_.size(); ++i) {
      if (i == 0 || keys_[i] >> slot_bits != keys_[i - 1] >> slot_bits) {
        starts_.push_back(static_cast<index_t>(i));
      }
    }
    starts_.push_back(static_cast<index_t>(keys_.size()));
  }

  /// How many different rows there are.
  [[nodiscard]] index_t groups() const noexcept { return static_cast<index_t>(starts_.size()) - 1; }
  /// Group g holds the positions [start(g), start(g + 1)).
  [[nodiscard]] index_t start(index_t g) const noexcept { return starts_[static_cast<std::size_t>(g)]; }
  [[nodiscard]] index_t row(index_t position) const noexcept {
    return static_cast<index_t>(keys_[static_cast<std::size_t>(position)] >> slot_bits_);
  }
  [[nodiscard]] index_t slot(index_t position) const noexcept {
    const std::uint64_t mask = (std::uint64_t{1} << slot_bits_) - 1;
    return first_slot_ + static_cast<index_t>(keys_[static_cast<std::size_t>(position)] & mask);
  }

  /// True when an id and a slot number fit one 64-bit key.
  [[nodiscard]] static bool fits(index_t slots, index_t rows) noexcept {
    return std::bit_width(static_cast<std::uint64_t>(slots)) +
                   std::bit_width(static_cast<std::uint64_t>(rows)) <= 64 &&
           slots < (index_t{1} << 32);
  }

 private:
  std::pmr::vector<std::uint64_t> keys_;
  std::pmr::vector<std::uint64_t> spare_;
  std::pmr::vector<index_t> starts_;
  index_t first_slot_ = 0;
  int slot_bits_ = 0;
};

}  // namespace deeprec::inline DEEPREC_ABI::detail
