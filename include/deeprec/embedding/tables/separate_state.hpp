// Rows whose optimizer state is stored in a separate matrix, as in frameworks that keep weights and moments
// in separate tensors.
//
//   update(ctx, with_state(weights_view, moments_view), bags, combiner::sum, gradient, adam{});
//
//   weights   | w0 w1 ... w(D-1) |  row r          state   | row state, element states |  row r
//
// An update touches two memory locations per row instead of one: where you have the choice, store the state
// with the row (row_layout::state_floats).
#pragma once

#include <cstddef>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/embedding/tables/row_format.hpp>
#include <deeprec/embedding/tables/table_view.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// A row format and the location of its rows' state.
///
/// @threads immutable; thread-safe
template <RowFormat Format>
class separate_state : public Format {
 public:
  separate_state() = default;
  /// For the table whose row 0 is at `first`; `state` has one row for each of its rows.
  DEEPREC_HD constexpr separate_state(const Format& rows, const std::byte* first, matrix_view<float> state,
                                      const char* state_owner = nullptr) noexcept
      : Format(rows), first_(first), state_(state), state_owner_(state_owner) {}

  [[nodiscard]] DEEPREC_HD constexpr index_t state_floats() const noexcept { return state_.extent(1); }
  [[nodiscard]] DEEPREC_HD constexpr const char* state_owner() const noexcept { return state_owner_; }
  [[nodiscard]] DEEPREC_HD float* state(std::byte* row) const noexcept {
    return state_of((row - first_) / this->stride_bytes());
  }
  /// The state of row number `row`.
  [[nodiscard]] DEEPREC_HD constexpr float* state_of(index_t row) const noexcept { return state_.row(row); }

 private:
  const std::byte* first_ = nullptr;
  matrix_view<float> state_;
  const char* state_owner_ = nullptr;
};

/// The table with its optimizer state in `state`.
///
/// @param   state_owner as in row_layout
/// @shape   table (R,D) · state (R, row_state + element_state * D), any row stride
/// @space   host
/// @pre     the state of rows not updated yet is zeros
/// @cost    O(1)
/// @threads reentrant
/// @error   a state with another number of rows than the table, with overlapping rows, or with more elements
///          than memory can hold counts as absent: update returns shape_mismatch
/// @example @snippet tests/embedding/separate_state_test.cpp with_state
template <RowFormat Format>
[[nodiscard]] table_view<separate_state<Format>> with_state(table_view<Format> table,
                                                            matrix_view<float> state,
                                                            const char* state_owner = nullptr) noexcept {
  if (state.extent(0) != table.rows() || !detail::well_formed(state))
    state = {state.data_handle(), state.extent(0), 0};
  return {table.data(), table.rows(),
          separate_state<Format>(table.format(), table.data(), state, state_owner)};
}

}}  // namespace deeprec::DEEPREC_ABI
