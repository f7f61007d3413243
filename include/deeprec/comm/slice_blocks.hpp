// The blocks of an ordered sum at a rank.
//
//   slices   | slice of rank 0 | of rank 1 | ...     this rank's values, by the ranks that sum them
//   parts    | from rank 0     | from 1    | ...     values of this rank's slice, by ranks
//
// What goes out first as slices comes back as parts; then the parts go out, with the sums or what follows
// from them, and the slices come back. The own slice is not sent: it lies in slices both times.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory_resource>
#include <span>
#include <vector>

#include <deeprec/comm/message_header.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/support/growing_block.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Keeps its memory, of the largest size.
///
/// @threads one thread at a time
class slice_blocks {
 public:
  explicit slice_blocks(std::pmr::memory_resource* memory)
      : memory_(memory), slices_(memory), parts_(memory) {}

  /// @param   borders  (n+1): slice r has the values [borders[r], borders[r + 1]); from 0, ascending
  /// @post    what was in the blocks is lost
  /// @cost    O(n); allocates where no earlier blocks were as large
  /// @threads as the blocks
  /// @error   throws what the resource throws
  void make(std::span<const index_t> borders, int rank) {
    const std::size_t n = borders.size() - 1;
    rank_ = static_cast<std::size_t>(rank);
    const auto block = [&](std::size_t r) {
      return index_t{sizeof(message_header)} + (borders[r + 1] - borders[r]) * index_t{sizeof(float)};
    };
    const auto room = [](index_t bytes) { return capped_round_up(bytes, 64); };
    index_t all = static_cast<index_t>(n) * room(block(rank_));
    for (std::size_t r = 0; r < n; ++r) all += room(block(r));
    slices_.resize(n);
    parts_.resize(n);
    std::byte* at = memory_.make(all);
    for (std::size_t r = 0; r < n; at += room(block(r)), ++r)
      slices_[r] = {at, static_cast<std::size_t>(block(r))};
    for (std::size_t r = 0; r < n; at += room(block(rank_)), ++r)
      parts_[r] = {at, static_cast<std::size_t>(block(rank_))};
  }

  [[nodiscard]] std::span<std::span<std::byte>> slices() noexcept { return slices_; }
  [[nodiscard]] std::span<std::span<std::byte>> parts() noexcept { return parts_; }
  /// Values in a block.
  [[nodiscard]] std::span<float> slice(int rank) const noexcept {
    return floats(slices_[static_cast<std::size_t>(rank)]);
  }
  [[nodiscard]] std::span<float> part(int rank) const noexcept {
    return floats(parts_[static_cast<std::size_t>(rank)]);
  }

  /// The parts and the own slice, added in the order of the ranks: in the place of part 0, which is lost.
  ///
  /// @cost    O(values of the own slice * n)
  /// @threads as the blocks
  /// @error   none
  std::span<float> sum() noexcept {
    const std::span<float> sums = floats(parts_[0]);
    if (sums.empty()) return sums;
    if (rank_ == 0) std::memcpy(sums.data(), floats(slices_[0]).data(), sums.size_bytes());
    for (std::size_t r = 1; r < parts_.size(); ++r) {
      const float* const from = floats(r == rank_ ? slices_[r] : parts_[r]).data();
      for (std::size_t k = 0; k < sums.size(); ++k) sums[k] += from[k];
    }
    return sums;
  }

 private:
  static std::span<float> floats(std::span<std::byte> block) noexcept {
    const std::span<std::byte> payload = payload_of(block);
    return {reinterpret_cast<float*>(payload.data()), payload.size() / sizeof(float)};
  }

  detail::growing_block memory_;
  std::pmr::vector<std::span<std::byte>> slices_, parts_;
  std::size_t rank_ = 0;
};

}}  // namespace deeprec::DEEPREC_ABI
