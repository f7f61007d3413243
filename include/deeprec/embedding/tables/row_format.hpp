// Memory layout of one row of a table. A table is rows of bytes; only the format interprets them.
//
//   plain_rows<T>:   | x0 x1 ... x(D-1) | gap | state (floats, optional) | gap |
//                    |<-- row_bytes --->|                                     |
//                    |<------------------------ stride_bytes --------------->|
//
// Optimizer state is stored with the row (state_floats > 0) or in a separate matrix (separate_state.hpp).
// Kernels are selected by a format's `element` (the type of one stored value). Other formats define their
// own element and the offsets of their parts: quantized_rows.hpp (int8, int4), split_bf16_rows.hpp.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/sizes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Requirements of tables and lookups on a format. encode and decode are the scalar reference codec.
template <class F>
concept RowFormat =
    std::is_trivially_copyable_v<F> &&
    requires(const F& format, std::byte* row, const std::byte* stored, float* values, const float* source) {
      typename F::element;
      { format.width() } -> std::convertible_to<index_t>;
      { format.row_bytes() } -> std::convertible_to<index_t>;
      { format.stride_bytes() } -> std::convertible_to<index_t>;
      { format.state_floats() } -> std::convertible_to<index_t>;
      { format.state(row) } -> std::same_as<float*>;
      format.decode(stored, values);
      format.encode(source, row);
    };

/// Options for the layout of rows. Zero means no state, and rows packed as tightly as possible.
struct row_layout {
  index_t state_floats = 0;  ///< floats of optimizer state stored with each row
  index_t stride_bytes = 0;  ///< bytes from a row to the next
  /// A literal, the name of the optimizer whose state it is (optimizer_name); null: whoever steps it. update
  /// of another optimizer is refused, and files keep the name.
  const char* state_owner = nullptr;
};

namespace detail { inline namespace DEEPREC_UNIT {

/// The loops of formats over a whole row, in a namespace that names the unit's compiler flags: the members of
/// a format are shared by units compiled with different flags.
struct row_loops {
  template <class Format>
  DEEPREC_HD DEEPREC_APART static void decode(const Format& format, const std::byte* row,
                                              float* values) noexcept {
    format.decode_row(row, values);
  }
  template <class Format>
  DEEPREC_HD DEEPREC_APART static void encode(const Format& format, const float* values,
                                              std::byte* row) noexcept {
    format.encode_row(values, row);
  }
  template <class Format>
  DEEPREC_HD DEEPREC_APART static index_t first_unfit(const Format& format, const float* values) noexcept {
    return format.first_unfit_of(values);
  }
};

}}  // namespace detail::DEEPREC_UNIT

/// Rows of T without a header. As in all formats, sizes that memory can't hold saturate at a largest number
/// of bytes, for which no table can be allocated.
///
/// @threads immutable; thread-safe
template <Storage T>
class plain_rows {
 public:
  using element = T;

  plain_rows() = default;
  DEEPREC_HD constexpr explicit(false) plain_rows(index_t width, row_layout layout = {})
      : width_(width),
        state_floats_(layout.state_floats),
        stride_bytes_(layout.stride_bytes),
        state_owner_(layout.state_owner) {
    const index_t needed = state_floats_ == 0
                               ? row_bytes()
                               : capped_sum(capped_round_up(row_bytes(), index_t{alignof(float)}),
                                            capped_product(state_floats_, index_t{sizeof(float)}));
    const index_t tight = capped_round_up(needed, alignment());
    if (stride_bytes_ == 0) stride_bytes_ = tight;
    DEEPREC_EXPECTS(stride_bytes_ >= needed && stride_bytes_ % alignment() == 0);
  }

  [[nodiscard]] DEEPREC_HD constexpr index_t width() const noexcept { return width_; }
  [[nodiscard]] DEEPREC_HD constexpr index_t row_bytes() const noexcept {
    return capped_product(width(), index_t{sizeof(T)});
  }
  [[nodiscard]] DEEPREC_HD constexpr index_t stride_bytes() const noexcept { return stride_bytes_; }
  [[nodiscard]] DEEPREC_HD constexpr index_t state_floats() const noexcept { return state_floats_; }
  [[nodiscard]] DEEPREC_HD constexpr const char* state_owner() const noexcept { return state_owner_; }

  /// The optimizer state of a row; null when the format has none.
  [[nodiscard]] DEEPREC_HD float* state(std::byte* row) const noexcept {
    if (state_floats_ == 0) return nullptr;
    constexpr index_t unit = alignof(float);
    const index_t bytes = width() * index_t{sizeof(T)};  // needs no cap: the row is in memory
    return reinterpret_cast<float*>(static_cast<void*>(row + ((bytes + unit - 1) & -unit)));
  }

  DEEPREC_HD DEEPREC_INLINE void decode(const std::byte* row, float* values) const noexcept {
    detail::row_loops::decode(*this, row, values);
  }
  DEEPREC_HD DEEPREC_INLINE void encode(const float* values, std::byte* row) const noexcept {
    detail::row_loops::encode(*this, values, row);
  }

 private:
  friend struct detail::row_loops;

  DEEPREC_HD DEEPREC_INLINE void decode_row(const std::byte* row, float* values) const noexcept {
    for (index_t j = 0; j < width(); ++j) {
      T stored;
      std::memcpy(&stored, row + j * index_t{sizeof(T)}, sizeof(T));
      values[j] = static_cast<float>(stored);
    }
  }
  DEEPREC_HD DEEPREC_INLINE void encode_row(const float* values, std::byte* row) const noexcept {
    for (index_t j = 0; j < width(); ++j) {
      const T stored = static_cast<T>(values[j]);
      std::memcpy(row + j * index_t{sizeof(T)}, &stored, sizeof(T));
    }
  }

  [[nodiscard]] DEEPREC_HD constexpr index_t alignment() const noexcept {
    return state_floats_ > 0 ? index_t{alignof(float)} : index_t{alignof(T)};
  }

  index_t width_ = 0;
  index_t state_floats_ = 0;
  index_t stride_bytes_ = 0;
  const char* state_owner_ = nullptr;
};

namespace detail {

/// Whose state the rows of a format hold; empty where it does not tell.
template <class Format>
constexpr std::string_view state_owner_of(const Format& format) noexcept {
  if constexpr (requires { format.state_owner(); }) {
    const char* const owner = format.state_owner();
    return owner == nullptr ? std::string_view() : std::string_view(owner);
  } else {
    return {};
  }
}

template <class Format>
inline constexpr const char* plain_format_name = nullptr;
template <>
inline constexpr const char* plain_format_name<plain_rows<float>> = "f32";
template <>
inline constexpr const char* plain_format_name<plain_rows<f16>> = "f16";
template <>
inline constexpr const char* plain_format_name<plain_rows<bf16>> = "bf16";
template <>
inline constexpr const char* plain_format_name<plain_rows<double>> = "f64";
template <>
inline constexpr const char* plain_format_name<plain_rows<e4m3>> = "e4m3";
template <>
inline constexpr const char* plain_format_name<plain_rows<e5m2>> = "e5m2";

/// The name of a format in files.
template <class Format>
std::string format_name(const Format& format) {
  if constexpr (requires { std::string(format.file_name()); }) {
    return std::string(format.file_name());
  } else {
    static_assert(plain_format_name<Format> != nullptr,
                  "deeprec: this row format has no name for files. Fix: give it a member "
                  "file_name() that names all that decoding depends on, or pass the name.");
    return plain_format_name<Format>;
  }
}

}  // namespace detail

using f32_rows = plain_rows<float>;
using f16_rows = plain_rows<f16>;
using bf16_rows = plain_rows<bf16>;
/// FP8 rows, without a scale: for lookups, not for training.
using e4m3_rows = plain_rows<e4m3>;
using e5m2_rows = plain_rows<e5m2>;

static_assert(RowFormat<f32_rows> && RowFormat<f16_rows> && RowFormat<bf16_rows> && RowFormat<e4m3_rows> &&
              RowFormat<e5m2_rows>);

}}  // namespace deeprec::DEEPREC_ABI
