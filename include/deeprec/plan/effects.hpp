// The memory that an op of a task list accesses, as it is declared where the op is added.
//
//   work.affects(op, reads(bags), updates(table.view()), writes(out));
//
// Ops whose effects overlap, one of them not a read, keep the order in which they were added. Ranges are
// taken at the call: declare a container after it has its size, or the container itself, and not a view of
// it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/plan/detail/operand_bytes.hpp>
#include <deeprec/support/overlap.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// How an op accesses memory. Ops are ordered alike for writes and updates.
enum class access_mode : unsigned char { reads, writes, updates };

/// Access to the bytes [begin, end).
struct effect {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  access_mode mode = access_mode::reads;
};

/// The effects on the memory of one operand.
///
/// @threads a value type
class effects {
 public:
  constexpr effects() = default;
  constexpr explicit(false) effects(const effect& one) : all_{one}, count_(1) {}

  [[nodiscard]] const effect* begin() const noexcept { return all_.data(); }
  [[nodiscard]] const effect* end() const noexcept { return all_.data() + count_; }
  [[nodiscard]] std::size_t size() const noexcept { return count_; }

 private:
  template <class Operand>
  friend effects effects_on(const Operand& operand, access_mode mode) noexcept;

  std::array<effect, 4> all_{};  // an owner and offsets, ids and weights of its view
  std::size_t count_ = 0;
};

/// The bytes of an operand. A matrix has those of its rows and of the gaps between them; a batch has offsets,
/// ids and weights; a table has its rows, and the state that is stored apart; a source with identity() has
/// that address. A container has its elements and itself, an owner with view() itself and the view. Any other
/// object has its own bytes: declare what it points to as well.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
template <class Operand>
[[nodiscard]] effects effects_on(const Operand& operand, access_mode mode) noexcept {
  effects found;
  detail::bytes_of_operand(operand, [&](const detail::byte_range& bytes) {
    if (bytes.begin < bytes.end) found.all_[found.count_++] = {bytes.begin, bytes.end, mode};
  });
  return found;
}
/// The same, for access that changes nothing.
template <class Operand>
[[nodiscard]] effects reads(const Operand& operand) noexcept {
  return effects_on(operand, access_mode::reads);
}
/// The same, for access that needs nothing of what is there.
template <class Operand>
[[nodiscard]] effects writes(const Operand& operand) noexcept {
  return effects_on(operand, access_mode::writes);
}
/// The same, for access that reads and changes.
template <class Operand>
[[nodiscard]] effects updates(const Operand& operand) noexcept {
  return effects_on(operand, access_mode::updates);
}

}}  // namespace deeprec::DEEPREC_ABI
