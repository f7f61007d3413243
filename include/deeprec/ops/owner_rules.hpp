// Which of n owners an id belongs to, and what it is called there: the rules of partition_unique.
//
//   owner_by_modulo(3)   id      7 -1  4        owner_by_slots{table, 3}   owner   table[mix64(id) % 65536]
//                        owner   1  2  1                                   local   the id
//                        local   2 -1  1
//
// A rule of your own is a type with owners() and operator(): see OwnerRule. Not here: rows of a table in
// parts (embedding/batches/partition_strategy.hpp).
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The owner of an id, and the id that it has there.
template <class Id>
struct owned_id {
  index_t owner;
  Id local;

  friend constexpr bool operator==(const owned_id&, const owned_id&) = default;
};

/// owners() is n; rule(id) is the same in every call, and its owner in [0, n). Different ids have different
/// places. A rule may have a member check(), whose status a verb returns before it reads an id.
template <class Rule, class Id>
concept OwnerRule = requires(const Rule& rule, const Id& id) {
  { rule.owners() } -> std::convertible_to<index_t>;
  { rule(id) } -> std::convertible_to<owned_id<Id>>;
};

/// Owner id mod n, local id id / n; both round down, so that owner -1 mod n is n - 1 and its local id -1.
///
/// @threads reentrant
class owner_by_modulo {
 public:
  /// @pre owners > 0; check() reports it
  explicit constexpr owner_by_modulo(index_t owners) noexcept
      : owners_(owners < 1 ? 0 : static_cast<std::uint64_t>(owners)),
        reciprocal_(owners < 1 ? 0 : ~std::uint64_t{0} / owners_ + 1),
        shift_(std::has_single_bit(owners_) ? std::countr_zero(owners_) : -1) {}

  [[nodiscard]] constexpr index_t owners() const noexcept { return static_cast<index_t>(owners_); }
  [[nodiscard]] constexpr status check() const noexcept {
    return owners_ > 0 ? status() : status(errc::invalid_value, "owner_by_modulo: owners must be at least 1");
  }

  template <IdInteger Id>
  [[nodiscard]] constexpr owned_id<Id> operator()(Id id) const noexcept {
    const auto bits = static_cast<std::uint64_t>(id);
    if (shift_ >= 0) {
      return {static_cast<index_t>(bits & (owners_ - 1)),
              static_cast<Id>(shift_ < most_shift<Id> ? id >> shift_
                              : id < 0                ? -1
                                                      : 0)};
    }
    // Of a negative id by its complement: floor(id / n) = ~floor(~id / n).
    const std::uint64_t flipped = id < 0 ? ~std::uint64_t{0} : 0;
    const std::uint64_t x = bits ^ flipped;
    // The quotient by a product: at most one too large, and that for large ids only.
    auto quotient = static_cast<std::uint64_t>((static_cast<detail::uint128>(x) * reciprocal_) >> 64);
    std::uint64_t rest = x - quotient * owners_;
    if (rest >= owners_) [[unlikely]] {
      --quotient;
      rest += owners_;
    }
    return {static_cast<index_t>((rest ^ flipped) + (flipped & owners_)),
            static_cast<Id>(quotient ^ flipped)};
  }

 private:
  template <class Id>
  static constexpr int most_shift = static_cast<int>(sizeof(Id) * 8);

  std::uint64_t owners_;
  std::uint64_t reciprocal_;  // 2^64 / owners, rounded up
  int shift_;                 // -1: owners is no power of two
};

/// Owner by a table of 65,536 virtual slots, local id the id: rows move to other owners by another table.
///
/// @space   the table on the host; it outlives the rule
/// @threads reentrant
struct owner_by_slots {
  static constexpr std::size_t slots = 65536;

  std::span<const std::uint16_t> owner_of;  ///< (65,536): of each slot, in [0, n)
  index_t n;

  [[nodiscard]] constexpr index_t owners() const noexcept { return n; }
  [[nodiscard]] constexpr status check() const noexcept {
    if (n < 1) return {errc::invalid_value, "owner_by_slots: owners must be at least 1"};
    if (owner_of.data() == nullptr)
      return {errc::shape_mismatch, "owner_by_slots: owner_of must not be null"};
    return detail::expect_size(owner_of.size(), slots, "owner_by_slots: owner_of must have 65,536 owners");
  }

  /// The slot of an id.
  ///
  /// @cost    two multiplications
  /// @threads reentrant
  /// @error   none
  template <IdInteger Id>
  [[nodiscard]] static constexpr std::size_t slot_of(Id id) noexcept {
    return static_cast<std::size_t>(mix64(static_cast<std::uint64_t>(id))) % slots;
  }
  template <IdInteger Id>
  [[nodiscard]] constexpr owned_id<Id> operator()(Id id) const noexcept {
    return {index_t{owner_of[slot_of(id)]}, id};
  }
};

}}  // namespace deeprec::DEEPREC_ABI
