// Rows of integer codes with one scale and one bias each: x = code * scale + bias, of which the product is
// rounded, and then the sum.
//
//   scale_bias::last    | codes (D, or D/2 bytes) | scale bias | gap |
//   scale_bias::first   | scale bias | codes (D, or D/2 bytes) | gap |
//
//   int8_rows(D)                                             FBGEMM's fused 8-bit rows: f32 scale/bias, last
//   quantized_rows<8, f16>(D, {.place = scale_bias::first})  8-bit rows of its table-batched kernels
//   int4_rows(D)                                             its fused 4-bit rows: f16 scale/bias, last
//   int4_rows(D, {.place = scale_bias::first})               4-bit rows of its table-batched kernels
//
// Any D; with odd D the unused last nibble is 0. Not here: training (see update.hpp), fp8 (row_format.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/embedding/detail/row_elements.hpp>
#include <deeprec/embedding/tables/row_format.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Whether scale and bias follow a row's codes or precede them.
enum class scale_bias : unsigned char { last, first };

struct quantized_layout {
  scale_bias place = scale_bias::last;
  index_t stride_bytes = 0;  ///< bytes from a row to the next; 0: no gap
};

/// Rows of codes of Bits bits; Scale (float or f16) is the type of scale and bias.
///
/// @threads immutable; thread-safe
template <int Bits, class Scale>
class quantized_rows {
  static_assert(Bits == 8 || Bits == 4,
                "deeprec::quantized_rows: codes have 8 or 4 bits. Fix: int8_rows or int4_rows.");
  static_assert(std::is_same_v<Scale, float> || std::is_same_v<Scale, f16>,
                "deeprec::quantized_rows: scale and bias of another type. Fix: float or f16.");

 public:
  using element = detail::scaled_code<Bits, Scale>;
  /// The largest code.
  static constexpr int levels = (1 << Bits) - 1;

  quantized_rows() = default;
  DEEPREC_HD constexpr explicit(false) quantized_rows(index_t width, quantized_layout layout = {})
      : width_(width),
        stride_bytes_(layout.stride_bytes == 0 ? row_bytes() : layout.stride_bytes),
        place_(layout.place) {
    DEEPREC_EXPECTS(stride_bytes_ >= row_bytes());
  }

  [[nodiscard]] DEEPREC_HD constexpr index_t width() const noexcept { return width_; }
  [[nodiscard]] DEEPREC_HD constexpr index_t row_bytes() const noexcept {
    return capped_sum(code_bytes(), 2 * index_t{sizeof(Scale)});
  }
  [[nodiscard]] DEEPREC_HD constexpr index_t stride_bytes() const noexcept { return stride_bytes_; }
  [[nodiscard]] DEEPREC_HD constexpr scale_bias place() const noexcept { return place_; }
  [[nodiscard]] DEEPREC_HD constexpr index_t state_floats() const noexcept { return 0; }
  [[nodiscard]] DEEPREC_HD float* state(std::byte*) const noexcept { return nullptr; }

  /// Name of the format in table files; it determines everything that decoding depends on except the width.
  [[nodiscard]] static constexpr const char* file_name(scale_bias place) noexcept {
    constexpr bool wide = std::is_same_v<Scale, float>;
    if (place == scale_bias::last) {
      return Bits == 8 ? (wide ? "int8_f32" : "int8_f16") : (wide ? "int4_f32" : "int4_f16");
    }
    return Bits == 8 ? (wide ? "f32_int8" : "f16_int8") : (wide ? "f32_int4" : "f16_int4");
  }
  [[nodiscard]] constexpr const char* file_name() const noexcept { return file_name(place_); }

  /// Offsets of the codes (values) and of scale and bias (others).
  [[nodiscard]] DEEPREC_HD constexpr detail::row_parts parts() const noexcept {
    if (place_ == scale_bias::first) return {2 * index_t{sizeof(Scale)}, 0};
    return {0, code_bytes()};
  }
  [[nodiscard]] DEEPREC_HD float scale(const std::byte* row) const noexcept { return stored(row, 0); }
  [[nodiscard]] DEEPREC_HD float bias(const std::byte* row) const noexcept { return stored(row, 1); }
  [[nodiscard]] DEEPREC_HD int code(const std::byte* row, index_t column) const noexcept {
    return static_cast<int>(detail::code_at<Bits>(row + parts().values, column));
  }

  DEEPREC_HD DEEPREC_INLINE void decode(const std::byte* row, float* values) const noexcept {
    detail::row_loops::decode(*this, row, values);
  }

  /// bias = the smallest value, scale = (largest - bias) / levels; the bias is stored rounded down and the
  /// scale rounded up, so that codes reach every value: |value - decoded| <= scale / 2, apart from the
  /// rounding of decode itself. A row for which first_unfit finds a column decodes to NaN.
  DEEPREC_HD DEEPREC_INLINE void encode(const float* values, std::byte* row) const noexcept {
    detail::row_loops::encode(*this, values, row);
  }

  /// The first column that is NaN or infinite; the column of the smallest or the largest value when bias or
  /// scale are too large for Scale, or levels * scale for float; -1 when the row can be encoded.
  [[nodiscard]] DEEPREC_HD DEEPREC_INLINE index_t first_unfit(const float* values) const noexcept {
    return detail::row_loops::first_unfit(*this, values);
  }

 private:
  friend struct detail::row_loops;

  struct range_of_row {
    Scale scale{};
    Scale bias{};
    index_t unfit = -1;
  };

  DEEPREC_HD DEEPREC_INLINE void decode_row(const std::byte* row, float* values) const noexcept {
    for (index_t j = 0; j < width(); ++j) {
      values[j] = detail::stored_value<element>::at(row, parts(), j);
    }
  }

  DEEPREC_HD DEEPREC_INLINE void encode_row(const float* values, std::byte* row) const noexcept {
    const range_of_row range = scan(values);
    const Scale pair[2] = {range.unfit < 0 ? range.scale : Scale(__builtin_nanf("")),
                           range.unfit < 0 ? range.bias : Scale(__builtin_nanf(""))};
    std::memcpy(row + parts().others, pair, sizeof(pair));
    std::byte* const codes = row + parts().values;
    const auto scale = static_cast<double>(static_cast<float>(range.scale));
    const auto bias = static_cast<double>(static_cast<float>(range.bias));
    const double codes_per_unit = range.unfit < 0 && scale > 0 ? 1.0 / scale : 0.0;
    unsigned even = 0;
    for (index_t j = 0; j < width(); ++j) {
      const unsigned code =
          codes_per_unit == 0 ? 0U : nearest_code((static_cast<double>(values[j]) - bias) * codes_per_unit);
      if constexpr (Bits == 8) {
        codes[j] = static_cast<std::byte>(code);
      } else {
        if (j % 2 == 0) even = code;
        if (j % 2 == 1 || j + 1 == width()) {
          codes[j / 2] = static_cast<std::byte>(even | (j % 2 == 1 ? code << 4 : 0U));
        }
      }
    }
  }

  [[nodiscard]] DEEPREC_HD DEEPREC_INLINE index_t first_unfit_of(const float* values) const noexcept {
    return scan(values).unfit;
  }

  [[nodiscard]] DEEPREC_HD constexpr index_t code_bytes() const noexcept {
    return Bits == 8 ? width() : width() / 2 + width() % 2;
  }
  [[nodiscard]] DEEPREC_HD float stored(const std::byte* row, index_t i) const noexcept {
    Scale value;
    std::memcpy(&value, row + parts().others + i * index_t{sizeof(Scale)}, sizeof(Scale));
    return static_cast<float>(value);
  }

  /// Nearest, ties to even.
  DEEPREC_HD DEEPREC_INLINE static unsigned nearest_code(double steps) noexcept {
    const auto below = static_cast<int>(steps);
    const double beyond = steps - below;
    const int code = below + (beyond > 0.5 || (beyond == 0.5 && below % 2 == 1) ? 1 : 0);
    return static_cast<unsigned>(code < 0 ? 0 : code > levels ? levels : code);
  }

  /// The next value of Scale above (step 1) or below (step -1).
  DEEPREC_HD static Scale neighbour(Scale value, int step) noexcept {
    using bits_type = std::conditional_t<sizeof(Scale) == 4, std::uint32_t, std::uint16_t>;
    auto bits = detail::bit_cast_to<bits_type>(value);
    const bool negative = bits >> (8 * sizeof(Scale) - 1) != 0;
    bits = static_cast<bits_type>(negative == (step < 0) ? bits + 1U : bits - 1U);
    return detail::bit_cast_to<Scale>(bits);
  }

  DEEPREC_HD DEEPREC_INLINE range_of_row scan(const float* values) const noexcept {
    range_of_row found;
    if (width() == 0) return found;
    index_t smallest = 0, largest = 0;
    for (index_t j = 0; j < width(); ++j) {
      if (!detail::is_finite(values[j])) {
        found.unfit = j;
        return found;
      }
      if (values[j] < values[smallest]) smallest = j;
      if (values[j] > values[largest]) largest = j;
    }
    found.bias = Scale(values[smallest]);
    if (static_cast<float>(found.bias) > values[smallest]) found.bias = neighbour(found.bias, -1);
    if (!detail::is_finite(static_cast<float>(found.bias))) {
      found.unfit = smallest;
      return found;
    }
    const double range =
        static_cast<double>(values[largest]) - static_cast<double>(static_cast<float>(found.bias));
    const double wanted = range / levels;
    found.scale = Scale(static_cast<float>(wanted));
    if (static_cast<double>(static_cast<float>(found.scale)) < wanted) {
      found.scale = neighbour(found.scale, 1);
    }
    const double reach = static_cast<double>(static_cast<float>(found.scale)) * levels;
    if (!detail::is_finite(static_cast<float>(found.scale)) || reach > 0x1.fffffep127) found.unfit = largest;
    return found;
  }

  index_t width_ = 0;
  index_t stride_bytes_ = 0;
  scale_bias place_ = scale_bias::last;
};

using int8_rows = quantized_rows<8, float>;
using int4_rows = quantized_rows<4, f16>;

static_assert(RowFormat<int8_rows> && RowFormat<int4_rows>);

}}  // namespace deeprec::DEEPREC_ABI
