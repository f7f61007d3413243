// A batch of bags of ids: the sparse feature of B samples.
//
//   bag        0        1     2 (empty)   3
//   offsets    0        3     5           5      6           B + 1 of them
//   ids        7 1 9    4 4               8                  N of them
//   weights    .5 1 1   1 2               1                  N of them, or none
//
// Bag b holds the slots offsets[b] .. offsets[b+1]. A slice of a larger batch is a batch: the first
// offset may be above 0 and the last below N; slots outside are not read.
// PyTorch's offsets without include_last_offset lack the last one; append N.
#pragma once

#include <cstdint>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec::inline DEEPREC_ABI {

/// Non-owning jagged batch. Trivially copyable.
///
/// @dtype   Id and Offset: integers of 32 or 64 bits; weights: float
/// @threads as its memory: concurrent readers are safe
template <class Id = std::int64_t, class Offset = std::int64_t, MemorySpace Space = host_space>
class jagged_view {
 public:
  static_assert(IdInteger<Id> && IdInteger<Offset>,
                "deeprec::jagged_view: ids and offsets are integers of 32 or 64 bits. "
                "Fix: jagged_view<std::int64_t, std::int32_t>.");
  using id_type = Id;
  using offset_type = Offset;
  using space = Space;

  constexpr jagged_view() noexcept = default;
  /// @param offsets (B+1) @param ids (N) @param weights (N), or null for weight 1
  DEEPREC_HD constexpr jagged_view(const Offset* offsets, index_t bags, const Id* ids,
                                   index_t id_count, const float* weights = nullptr) noexcept
      : offsets_(offsets), ids_(ids), weights_(weights), bags_(bags), id_count_(id_count) {}

  template <MemorySpace From>
    requires(reachable_as<From, Space> && !std::is_same_v<From, Space>)
  DEEPREC_HD constexpr jagged_view(const jagged_view<Id, Offset, From>& other) noexcept
      : jagged_view(other.offsets(), other.bags(), other.ids(), other.id_count(), other.weights()) {}
  template <MemorySpace From>
    requires(!reachable_as<From, Space>)
  jagged_view(const jagged_view<Id, Offset, From>&) = delete;

  [[nodiscard]] DEEPREC_HD constexpr index_t bags() const noexcept { return bags_; }
  /// N: how many ids the memory holds.
  [[nodiscard]] DEEPREC_HD constexpr index_t id_count() const noexcept { return id_count_; }
  [[nodiscard]] DEEPREC_HD constexpr const Offset* offsets() const noexcept { return offsets_; }
  [[nodiscard]] DEEPREC_HD constexpr const Id* ids() const noexcept { return ids_; }
  [[nodiscard]] DEEPREC_HD constexpr const float* weights() const noexcept { return weights_; }

  /// The first slot of the batch and one past its last.
  [[nodiscard]] DEEPREC_HD constexpr index_t first_slot() const noexcept {
    return bags_ == 0 ? 0 : static_cast<index_t>(offsets_[0]);
  }
  [[nodiscard]] DEEPREC_HD constexpr index_t last_slot() const noexcept {
    return bags_ == 0 ? 0 : static_cast<index_t>(offsets_[bags_]);
  }

  /// Bags [first, first + count), sharing ids and weights.
  [[nodiscard]] DEEPREC_HD constexpr jagged_view slice(index_t first, index_t count) const {
    DEEPREC_EXPECTS(0 <= first && 0 <= count && first + count <= bags_);
    return {offsets_ + first, count, ids_, id_count_, weights_};
  }

  /// Reports the first fault of the offsets: negative, decreasing, or beyond the ids.
  ///
  /// @cost    O(B); reads the offsets
  /// @threads reentrant
  /// @error   shape_mismatch (a null pointer with a size), offsets_negative, offsets_decreasing (bag,
  ///          value = the smaller offset), offsets_beyond_ids (bag, value = the offset)
  [[nodiscard]] status validate() const noexcept
    requires(!std::is_same_v<Space, device_space>)
  {
    if (bags_ < 0 || id_count_ < 0) {
      return {errc::shape_mismatch, "a batch with a negative number of bags or ids"};
    }
    if (bags_ == 0) return {};
    if (offsets_ == nullptr) return {errc::shape_mismatch, "offsets are null"};
    if (id_count_ > 0 && ids_ == nullptr) return {errc::shape_mismatch, "ids are null"};
    if constexpr (std::is_signed_v<Offset>) {
      if (offsets_[0] < 0) {
        return {errc::offsets_negative, {.bag = 0, .value = static_cast<index_t>(offsets_[0])}};
      }
    }
    // From here on no offset in order is negative; compared without a sign, 2^63 is beyond as well.
    const auto limit = static_cast<std::uint64_t>(id_count_);
    bool in_order = true;
    for (index_t b = 0; b < bags_; ++b) in_order &= offsets_[b] <= offsets_[b + 1];
    if (in_order && static_cast<std::uint64_t>(offsets_[bags_]) <= limit) [[likely]] return {};
    for (index_t b = 0; b <= bags_; ++b) {
      const Offset offset = offsets_[b];
      const index_t bag = b == 0 ? 0 : b - 1;
      const fault_place place{.bag = bag, .value = static_cast<index_t>(offset)};
      if (b > 0 && offset < offsets_[b - 1]) return {errc::offsets_decreasing, place};
      if (static_cast<std::uint64_t>(offset) > limit) return {errc::offsets_beyond_ids, place};
    }
    return {};
  }

 private:
  const Offset* offsets_ = nullptr;
  const Id* ids_ = nullptr;
  const float* weights_ = nullptr;
  index_t bags_ = 0;
  index_t id_count_ = 0;
};

static_assert(std::is_trivially_copyable_v<jagged_view<>>);

}  // namespace deeprec::inline DEEPREC_ABI
