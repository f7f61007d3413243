// A batch of bags of ids: the sparse feature of B samples.
//
//   bag        0        1     2 (empty)   3
//   offsets    0        3     5           5      6           B + 1 of them
//   ids        7 1 9    4 4               8                  N of them
//   weights    .5 1 1   1 2               1                  N of them, or none
//
// Bag b holds the positions offsets[b] .. offsets[b+1]. A slice of a larger batch is a batch: the first
// offset may be above 0 and the last below N; positions outside are not read. So table t of FBGEMM's
// offsets (T*B+1) is jagged_view(offsets + t * B, B, ids, N).
// jagged_view<>::torch reads PyTorch's offsets (B), which lack the last one; fixed_hotness_view is a batch
// whose bags all have the same number of ids and needs no offsets.
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail { inline namespace DEEPREC_UNIT {

/// True when none of the offsets [0, last] is smaller than the one before. For non-negative a and b, a <= b
/// exactly when b - a has a clear sign bit. An offset with that bit set counts as out of order; the caller
/// checks again.
template <class Offset>
bool in_order(const Offset* offsets, index_t last) noexcept {
  using number = std::make_unsigned_t<Offset>;
  typedef number block __attribute__((vector_size(16)));
  constexpr index_t step = 16 / index_t{sizeof(Offset)};
  constexpr auto half = static_cast<number>(static_cast<number>(~number{0}) >> 1);
  block bad = {};
  index_t b = 0;
  for (; b + step <= last; b += step) {
    block here;
    block next;
    __builtin_memcpy(&here, offsets + b, sizeof(block));
    __builtin_memcpy(&next, offsets + b + 1, sizeof(block));
    bad |= (next - here) | next | here;
  }
  bool any = false;
  for (index_t lane = 0; lane < step; ++lane) any |= bad[lane] > half;
  for (; b < last; ++b) any |= offsets[b] > offsets[b + 1];
  return !any;
}

/// True when offsets[i] = offsets[0] + i for all of them.
template <class Offset>
bool consecutive(const Offset* offsets, index_t count) noexcept {
  using number = std::make_unsigned_t<Offset>;
  typedef number block __attribute__((vector_size(16)));
  constexpr index_t step = 16 / index_t{sizeof(Offset)};
  const auto expected_at = [first = static_cast<number>(offsets[0])](index_t i) {
    return static_cast<number>(first + static_cast<number>(i));
  };
  block expected = {};
  for (index_t lane = 0; lane < step; ++lane) expected[lane] = expected_at(lane);
  block bad = {};
  index_t i = 0;
  for (; i + step <= count; i += step) {
    block here;
    __builtin_memcpy(&here, offsets + i, sizeof(block));
    bad |= here ^ expected;
    expected += static_cast<number>(step);
  }
  bool any = false;
  for (index_t lane = 0; lane < step; ++lane) any |= bad[lane] != 0;
  for (; i < count; ++i) any |= static_cast<number>(offsets[i]) != expected_at(i);
  return !any;
}

}}  // namespace detail::DEEPREC_UNIT

namespace detail {

/// Ranges of bags given by offsets, of which the last may be implied.
template <class Offset>
struct offset_ranges {
  const Offset* offsets;
  index_t implied_bag;  // its end is implied_end; -1: no such bag
  index_t implied_end;
  [[nodiscard]] DEEPREC_HD DEEPREC_INLINE index_t begin(index_t bag) const noexcept {
    return static_cast<index_t>(offsets[bag]);
  }
  [[nodiscard]] DEEPREC_HD DEEPREC_INLINE index_t end(index_t bag) const noexcept {
    return bag == implied_bag ? implied_end : static_cast<index_t>(offsets[bag + 1]);
  }
};

/// Ranges of bags that all have the same number of ids.
struct fixed_ranges {
  index_t hotness;
  [[nodiscard]] DEEPREC_HD DEEPREC_INLINE index_t begin(index_t bag) const noexcept { return bag * hotness; }
  [[nodiscard]] DEEPREC_HD DEEPREC_INLINE index_t end(index_t bag) const noexcept {
    return (bag + 1) * hotness;
  }
};

}  // namespace detail

/// Non-owning jagged batch. Trivially copyable.
///
/// @dtype   Id and Offset: integers of 32 or 64 bits; weights: float
/// @threads as its memory: concurrent readers are safe
template <class Id = std::int64_t, class Offset = std::int64_t, MemorySpace Space = host_space>
class jagged_view {
 public:
  static_assert(BagId<Id> && IdInteger<Offset>,
                "deeprec::jagged_view: ids and offsets are integers of 32 or 64 bits. "
                "Fix: jagged_view<std::int64_t, std::int32_t>.");
  using id_type = Id;
  using offset_type = Offset;
  using space = Space;

  constexpr jagged_view() noexcept = default;
  /// @param offsets (B+1) @param ids (N) @param weights (N), or null for weight 1
  DEEPREC_HD constexpr jagged_view(const Offset* offsets, index_t bags, const Id* ids, index_t id_count,
                                   const float* weights = nullptr) noexcept
      : offsets_(offsets), ids_(ids), weights_(weights), bags_(bags), id_count_(id_count) {}

  /// PyTorch's convention without include_last_offset: B offsets, and the last bag ends with the ids.
  DEEPREC_HD static constexpr jagged_view torch(const Offset* offsets, index_t bags, const Id* ids,
                                                index_t id_count, const float* weights = nullptr) noexcept {
    jagged_view made(offsets, bags, ids, id_count, weights);
    made.implied_end_ = id_count;
    return made;
  }

  template <MemorySpace From>
    requires(reachable_as<From, Space> && !std::is_same_v<From, Space>)
  DEEPREC_HD constexpr jagged_view(const jagged_view<Id, Offset, From>& other) noexcept
      : jagged_view(other.offsets(), other.bags(), other.ids(), other.id_count(), other.weights()) {
    const detail::offset_ranges<Offset> theirs = other.ranges();
    if (theirs.implied_bag >= 0) implied_end_ = theirs.implied_end;
  }
  template <MemorySpace From>
    requires(!reachable_as<From, Space>)
  jagged_view(const jagged_view<Id, Offset, From>&) = delete;

  [[nodiscard]] DEEPREC_HD constexpr index_t bags() const noexcept { return bags_; }
  /// N, the number of ids in memory.
  [[nodiscard]] DEEPREC_HD constexpr index_t id_count() const noexcept { return id_count_; }
  [[nodiscard]] DEEPREC_HD constexpr const Offset* offsets() const noexcept { return offsets_; }
  [[nodiscard]] DEEPREC_HD constexpr const Id* ids() const noexcept { return ids_; }
  [[nodiscard]] DEEPREC_HD constexpr const float* weights() const noexcept { return weights_; }

  /// The first position of the batch and one past its last. Both read the offsets, so not for device memory.
  [[nodiscard]] DEEPREC_HD constexpr index_t first_position() const noexcept {
    static_assert(
        reachable_as<Space, host_space>,
        "deeprec::jagged_view: offsets in device memory read. Fix: kernels use ranges(); the host copies "
        "them first.");
    return bags_ == 0 ? 0 : static_cast<index_t>(offsets_[0]);
  }
  [[nodiscard]] DEEPREC_HD constexpr index_t end_position() const noexcept {
    static_assert(
        reachable_as<Space, host_space>,
        "deeprec::jagged_view: offsets in device memory read. Fix: kernels use ranges(); the host copies "
        "them first.");
    return bags_ == 0 ? 0 : ranges().end(bags_ - 1);
  }
  [[nodiscard]] DEEPREC_HD constexpr detail::offset_ranges<Offset> ranges() const noexcept {
    return {offsets_, implied_end_ < 0 ? -1 : bags_ - 1, implied_end_};
  }

  /// Bags [first, first + count), sharing ids and weights.
  [[nodiscard]] DEEPREC_HD constexpr jagged_view slice(index_t first, index_t count) const {
    DEEPREC_EXPECTS(0 <= first && 0 <= count && count <= bags_ - first);
    jagged_view part(offsets_ + first, count, ids_, id_count_, weights_);
    if (first + count == bags_) part.implied_end_ = implied_end_;
    return part;
  }

  /// True when the batch is valid and every bag holds exactly one id: bag b is position first_position() + b.
  ///
  /// @cost    O(1) when there are not as many ids as bags, else O(B)
  /// @threads reentrant
  /// @error   none
  [[nodiscard]] bool is_one_hot() const noexcept
    requires(!std::is_same_v<Space, device_space>)
  {
    if (bags_ <= 0 || bags_ > id_count_ || offsets_ == nullptr || ids_ == nullptr || !sizes_fit())
      return false;
    const index_t first = first_position();
    if (first < 0 || first > id_count_ - bags_ || end_position() != first + bags_) return false;
    return bags_ == 1 || detail::consecutive(offsets_, last_stored() + 1);
  }

  /// Reports the first fault of the offsets: negative, decreasing, or beyond the ids.
  ///
  /// @cost    O(B); reads the offsets
  /// @threads reentrant
  /// @error   shape_mismatch (a null pointer with a size, a size that memory can't hold), offsets_negative,
  ///          offsets_decreasing (bag, value = the smaller offset), offsets_beyond_ids (bag, value = the
  ///          offset)
  [[nodiscard]] status validate() const noexcept
    requires(!std::is_same_v<Space, device_space>)
  {
    if (bags_ < 0 || id_count_ < 0) {
      return {errc::shape_mismatch, "jagged_view: numbers of bags and ids must not be negative"};
    }
    if (!sizes_fit()) return {errc::shape_mismatch, "jagged_view: offsets and ids must fit in memory"};
    if (bags_ == 0) return {};
    if (offsets_ == nullptr) return {errc::shape_mismatch, "jagged_view: offsets must not be null"};
    if (id_count_ > 0 && ids_ == nullptr) return {errc::shape_mismatch, "jagged_view: ids must not be null"};
    if constexpr (std::is_signed_v<Offset>) {
      if (offsets_[0] < 0) {
        return {errc::offsets_negative, {.bag = 0, .value = static_cast<index_t>(offsets_[0])}};
      }
    }
    // Offsets in order are not negative from here on. Compared as unsigned, 2^63 is beyond the limit as well.
    const auto limit = static_cast<std::uint64_t>(id_count_);
    const index_t stored = last_stored();
    const bool beyond = static_cast<std::uint64_t>(offsets_[stored]) > limit;
    if (!beyond && detail::in_order(offsets_, stored)) [[likely]]
      return {};
    for (index_t b = 0; b <= stored; ++b) {
      const Offset offset = offsets_[b];
      const index_t bag = b == 0 ? 0 : b - 1;
      const fault_place place{.bag = bag, .value = static_cast<index_t>(offset)};
      if (b > 0 && offset < offsets_[b - 1]) return {errc::offsets_decreasing, place};
      if (static_cast<std::uint64_t>(offset) > limit) return {errc::offsets_beyond_ids, place};
    }
    return {};
  }

 private:
  [[nodiscard]] constexpr bool sizes_fit() const noexcept {
    return bags_ < most_size && fits_memory(bags_ + 1, sizeof(Offset)) && fits_memory(id_count_, sizeof(Id));
  }
  // The index of the last offset in memory.
  [[nodiscard]] constexpr index_t last_stored() const noexcept {
    return implied_end_ < 0 ? bags_ : bags_ - 1;
  }

  const Offset* offsets_ = nullptr;
  const Id* ids_ = nullptr;
  const float* weights_ = nullptr;
  index_t bags_ = 0;
  index_t id_count_ = 0;
  index_t implied_end_ = -1;
};

static_assert(std::is_trivially_copyable_v<jagged_view<>>);

/// A batch of B bags with L ids each: ids (B,L), row-major, and weights (B,L) or none. What PyTorch calls
/// a 2D input.
///
/// @threads as its memory: concurrent readers are safe
template <class Id = std::int64_t, MemorySpace Space = host_space>
class fixed_hotness_view {
 public:
  static_assert(BagId<Id>,
                "deeprec::fixed_hotness_view: ids are integers of 32 or 64 bits. "
                "Fix: fixed_hotness_view<std::int64_t>.");
  using id_type = Id;
  using space = Space;

  constexpr fixed_hotness_view() noexcept = default;
  DEEPREC_HD constexpr fixed_hotness_view(const Id* ids, index_t bags, index_t hotness,
                                          const float* weights = nullptr) noexcept
      : ids_(ids), weights_(weights), bags_(bags), hotness_(hotness) {}
  template <MemorySpace From>
    requires(reachable_as<From, Space> && !std::is_same_v<From, Space>)
  DEEPREC_HD constexpr fixed_hotness_view(const fixed_hotness_view<Id, From>& other) noexcept
      : fixed_hotness_view(other.ids(), other.bags(), other.hotness(), other.weights()) {}
  template <MemorySpace From>
    requires(!reachable_as<From, Space>)
  fixed_hotness_view(const fixed_hotness_view<Id, From>&) = delete;

  [[nodiscard]] DEEPREC_HD constexpr index_t bags() const noexcept { return bags_; }
  [[nodiscard]] DEEPREC_HD constexpr index_t hotness() const noexcept { return hotness_; }
  /// B * L, capped (sizes.hpp) where validate() refuses the batch.
  [[nodiscard]] DEEPREC_HD constexpr index_t id_count() const noexcept {
    return capped_product(bags_, hotness_);
  }
  [[nodiscard]] DEEPREC_HD constexpr const Id* ids() const noexcept { return ids_; }
  [[nodiscard]] DEEPREC_HD constexpr const float* weights() const noexcept { return weights_; }
  [[nodiscard]] DEEPREC_HD constexpr index_t first_position() const noexcept { return 0; }
  [[nodiscard]] DEEPREC_HD constexpr index_t end_position() const noexcept { return id_count(); }
  [[nodiscard]] DEEPREC_HD constexpr detail::fixed_ranges ranges() const noexcept { return {hotness_}; }

  /// True when the batch is valid and L = 1.
  [[nodiscard]] bool is_one_hot() const noexcept {
    return hotness_ == 1 && bags_ > 0 && ids_ != nullptr && fits_memory(bags_, sizeof(Id));
  }

  /// Reports a negative size, null ids, and more ids than memory can hold.
  ///
  /// @cost    O(1)
  /// @threads reentrant
  /// @error   shape_mismatch
  [[nodiscard]] status validate() const noexcept {
    if (bags_ < 0 || hotness_ < 0) {
      return {errc::shape_mismatch, "fixed_hotness_view: numbers of bags and ids must not be negative"};
    }
    if (!fits_memory(id_count(), sizeof(Id))) {
      return {errc::shape_mismatch, "fixed_hotness_view: ids must fit in memory"};
    }
    if (id_count() > 0 && ids_ == nullptr)
      return {errc::shape_mismatch, "fixed_hotness_view: ids must not be null"};
    return {};
  }

 private:
  const Id* ids_ = nullptr;
  const float* weights_ = nullptr;
  index_t bags_ = 0;
  index_t hotness_ = 0;
};

namespace detail {
template <class T>
inline constexpr bool is_ranges = std::is_same_v<T, detail::fixed_ranges>;
template <class Offset>
inline constexpr bool is_ranges<detail::offset_ranges<Offset>> = IdInteger<Offset>;
}  // namespace detail

/// Ranges of bags in one of the two forms that kernels take: offset_ranges or fixed_ranges.
template <class T>
concept BagRanges = detail::is_ranges<std::remove_cvref_t<T>>;

/// A batch of bags as lookups take it: ranges of ids given by offsets or by a hotness. A batch that the host
/// can read also has validate(), as jagged_view's, and is_one_hot(), which is true only when the batch is
/// valid and bag b is position first_position() + b.
template <class B>
concept BagBatch = requires(const B& bags) {
  requires BagId<typename B::id_type>;
  requires MemorySpace<typename B::space>;
  { bags.bags() } -> std::convertible_to<index_t>;
  { bags.id_count() } -> std::convertible_to<index_t>;
  { bags.first_position() } -> std::convertible_to<index_t>;
  { bags.end_position() } -> std::convertible_to<index_t>;
  { bags.ids() } -> std::convertible_to<const typename B::id_type*>;
  { bags.weights() } -> std::convertible_to<const float*>;
  { bags.ranges() } -> BagRanges;
} && (std::is_same_v<typename B::space, device_space> || requires(const B& bags) {
                     { bags.validate() } -> std::convertible_to<status>;
                     { bags.is_one_hot() } -> std::convertible_to<bool>;
                   });

static_assert(BagBatch<jagged_view<>> && BagBatch<fixed_hotness_view<>> &&
              BagBatch<jagged_view<std::int64_t, std::int32_t, device_space>> &&
              BagBatch<fixed_hotness_view<std::int32_t, device_space>>);

}}  // namespace deeprec::DEEPREC_ABI
