// The memory that an op of a task list accesses, as it is declared where the op is added.
//
//   work.affects(op, reads(bags), updates(table.view()), writes(out));
//
// Ops whose effects overlap, one of them not a read, keep the order in which they were added.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>

#include <deeprec/core/config.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/support/overlap.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

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

 private:
  template <class Operand>
  friend effects effects_on(const Operand& operand, access_mode mode) noexcept;

  std::array<effect, 3> all_{};  // offsets, ids and weights of a batch
  std::size_t count_ = 0;
};

/// Of a view: the memory that it is a view of, of a matrix with the gaps between its rows; of a batch:
/// offsets, ids and weights; of a table: its rows; of a row source with identity(): that; of a container: its
/// elements; of any other object: its own bytes.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
template <class Operand>
[[nodiscard]] effects effects_on(const Operand& operand, access_mode mode) noexcept {
  effects made;
  const auto add = [&](const detail::byte_range& bytes) {
    if (bytes.begin < bytes.end) made.all_[made.count_++] = {bytes.begin, bytes.end, mode};
    return false;
  };
  if constexpr (requires { operand.identity(); }) {
    add(detail::bytes_at(static_cast<const char*>(operand.identity()), 1));
  } else if constexpr (requires {
                         operand.format().stride_bytes();
                         operand.data();
                       }) {
    const index_t bytes = capped_product(operand.rows(), operand.format().stride_bytes());
    add(detail::bytes_at(operand.data(), bytes));
  } else if constexpr (
      BagBatch<Operand> || requires { operand.row_stride(); } || requires { operand.data_handle(); } ||
      requires {
        std::data(operand);
        std::size(operand);
      }) {
    detail::any_array(operand, add);
  } else {
    add(detail::bytes_at(std::addressof(operand), 1));
  }
  return made;
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
