// The bytes that an operand of an op stands for, by what its type offers.
#pragma once

#include <concepts>
#include <iterator>
#include <memory>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/support/overlap.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

template <class Operand>
concept HasElements = requires(const Operand& operand) {
  std::data(operand);
  std::size(operand);
};
/// Views whose arrays any_array visits.
template <class Operand>
concept HasArrays = BagBatch<Operand> || requires(const Operand& operand) { operand.row_stride(); } ||
                    requires(const Operand& operand) { operand.data_handle(); };

/// Calls add for the bytes of each array of an operand.
template <class Operand, class Add>
void bytes_of_operand(const Operand& operand, const Add& add) noexcept {
  static_assert(
      !std::is_pointer_v<Operand>,
      "deeprec::effects: a pointer has no extent. Fix: array_view(data, size), or the object itself.");
  if constexpr (requires {
                  { operand.identity() } -> std::convertible_to<const void*>;
                }) {
    add(bytes_at(static_cast<const char*>(static_cast<const void*>(operand.identity())), 1));
  } else if constexpr (requires {
                         operand.format().stride_bytes();
                         operand.data();
                       }) {
    const auto& format = operand.format();
    const index_t rows = operand.rows();
    add(bytes_at(operand.data(), capped_product(rows, format.stride_bytes())));
    if constexpr (requires { format.state_of(rows); }) {  // the state of its optimizer, in other memory
      if (rows > 0 && format.state_floats() > 0) {
        const float* const first = format.state_of(0);
        add(bytes_at(first, capped_sum(format.state_of(rows - 1) - first, format.state_floats())));
      }
    }
  } else if constexpr (requires { Operand::bits_of_word; }) {
    const index_t words = operand.stride(0) / Operand::bits_of_word;
    if (!operand.empty()) add(bytes_at(operand.data_handle(), capped_product(operand.extent(0), words)));
  } else if constexpr (HasArrays<Operand>) {
    any_array(operand, [&add](const byte_range& bytes) {
      add(bytes);
      return false;
    });
  } else if constexpr (HasElements<Operand>) {
    static_assert(
        !requires { typename std::remove_cvref_t<decltype(*std::data(operand))>::space; },
        "deeprec::effects: a list of views. Fix: affects(op, reads(view)) for each of them.");
    add(bytes_at(std::data(operand), static_cast<index_t>(std::size(operand))));
    if constexpr (requires { operand.capacity(); }) add(bytes_at(std::addressof(operand), 1));  // may grow
  } else if constexpr (requires { operand.view(); }) {
    add(bytes_at(std::addressof(operand), 1));
    bytes_of_operand(operand.view(), add);
  } else {
    static_assert(
        !requires { typename Operand::space; },
        "deeprec::effects: this view does not name its memory. Fix: declare what it is a view of, and "
        "of a feature_group its tables.");
    add(bytes_at(std::addressof(operand), 1));
  }
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
