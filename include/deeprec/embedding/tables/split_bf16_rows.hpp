// Rows of floats split into halves, so that one table serves f32 training and lookups that read half of it.
//
//   | hi0 hi1 ... hi(D-1) | lo0 lo1 ... lo(D-1) | state (floats, optional) | gap |      float = hi << 16 | lo
//
//   lookup(ctx, table, ...)                 reads both halves: the exact floats
//   lookup(ctx, high_halves(table), ...)    reads the upper ones only: bf16, half of the bytes
//
// The upper half is the float truncated, not rounded: as bf16 its error is below one unit in the last place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/embedding/detail/row_elements.hpp>
#include <deeprec/embedding/tables/row_format.hpp>
#include <deeprec/embedding/tables/table_view.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Split rows.
///
/// @threads immutable; thread-safe
class split_bf16_rows {
 public:
  using element = detail::split_float;
  using high_format = plain_rows<bf16>;

  split_bf16_rows() = default;
  DEEPREC_HD constexpr explicit(false) split_bf16_rows(index_t width, row_layout layout = {})
      : width_(width),
        state_floats_(layout.state_floats),
        stride_bytes_(layout.stride_bytes),
        state_owner_(layout.state_owner) {
    const index_t needed = capped_sum(row_bytes(), capped_product(state_floats_, index_t{sizeof(float)}));
    if (stride_bytes_ == 0) stride_bytes_ = needed;
    DEEPREC_EXPECTS(stride_bytes_ >= needed && stride_bytes_ % (state_floats_ > 0 ? 4 : 2) == 0);
  }

  [[nodiscard]] DEEPREC_HD constexpr index_t width() const noexcept { return width_; }
  [[nodiscard]] DEEPREC_HD constexpr index_t row_bytes() const noexcept { return capped_product(4, width()); }
  [[nodiscard]] DEEPREC_HD constexpr index_t stride_bytes() const noexcept { return stride_bytes_; }
  [[nodiscard]] DEEPREC_HD constexpr index_t state_floats() const noexcept { return state_floats_; }
  [[nodiscard]] DEEPREC_HD constexpr const char* state_owner() const noexcept { return state_owner_; }
  /// The optimizer state of a row; null when the format has none.
  [[nodiscard]] DEEPREC_HD float* state(std::byte* row) const noexcept {
    return state_floats_ == 0 ? nullptr : reinterpret_cast<float*>(static_cast<void*>(row + row_bytes()));
  }
  /// Name of the format in table files.
  [[nodiscard]] static constexpr const char* file_name() noexcept { return "split_bf16"; }
  /// Offsets of the upper halves (values) and the lower halves (others).
  [[nodiscard]] DEEPREC_HD constexpr detail::row_parts parts() const noexcept {
    return {0, capped_product(2, width())};
  }
  /// The same rows with their upper halves only.
  [[nodiscard]] DEEPREC_HD constexpr high_format high() const {
    return high_format(width_, {.stride_bytes = stride_bytes_});
  }

  DEEPREC_HD DEEPREC_INLINE void decode(const std::byte* row, float* values) const noexcept {
    detail::row_loops::decode(*this, row, values);
  }
  /// Exact; a NaN becomes quiet, so that its upper half is a NaN as well.
  DEEPREC_HD DEEPREC_INLINE void encode(const float* values, std::byte* row) const noexcept {
    detail::row_loops::encode(*this, values, row);
  }

 private:
  friend struct detail::row_loops;

  DEEPREC_HD DEEPREC_INLINE void decode_row(const std::byte* row, float* values) const noexcept {
    const detail::row_parts at = parts();
    for (index_t j = 0; j < width(); ++j) {
      values[j] = detail::stored_value<element>::at(row, at, j);
    }
  }
  DEEPREC_HD DEEPREC_INLINE void encode_row(const float* values, std::byte* row) const noexcept {
    const detail::row_parts at = parts();
    for (index_t j = 0; j < width(); ++j) {
      auto bits = detail::bit_cast_to<std::uint32_t>(values[j]);
      if ((bits & 0x7fffffffU) > 0x7f800000U) bits |= 0x00400000U;
      const auto high = static_cast<std::uint16_t>(bits >> 16);
      const auto low = static_cast<std::uint16_t>(bits);
      std::memcpy(row + at.values + 2 * j, &high, 2);
      std::memcpy(row + at.others + 2 * j, &low, 2);
    }
  }

  index_t width_ = 0;
  index_t state_floats_ = 0;
  index_t stride_bytes_ = 0;
  const char* state_owner_ = nullptr;
};

static_assert(RowFormat<split_bf16_rows>);

/// The upper halves of a table of split rows, as a table of bf16 in the same memory.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
template <MemorySpace Space, class Byte>
auto high_halves(const basic_table_view<split_bf16_rows, Space, Byte>& table) {
  return basic_table_view<plain_rows<bf16>, Space, Byte>(table.data(), table.rows(), table.format().high());
}

}}  // namespace deeprec::DEEPREC_ABI
