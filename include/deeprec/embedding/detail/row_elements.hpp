// Element types of rows that are not an array of one type, and the scalar read of a column of any row.
// A format's `element` selects the code of the kernels (row_codec.inl).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Codes of 8 or 4 bits (two in a byte, the even column in its low nibble) with one scale and one bias for
/// the row, stored side by side as Scale.
template <int Bits, class Scale>
struct scaled_code {
  static_assert(Bits == 8 || Bits == 4);
};

/// Floats in two halves: the upper 16 bits of all columns, then the lower ones.
struct split_float {};

/// Offsets of the parts of such a row, in bytes from its address. Plain rows have no parts.
struct row_parts {
  index_t values = 0;  // codes, or upper halves
  index_t others = 0;  // scale and bias, or lower halves
};

template <class Format>
DEEPREC_HD constexpr row_parts parts_of(const Format& format) noexcept {
  if constexpr (requires { format.parts(); }) {
    return format.parts();
  } else {
    return {};
  }
}

/// Scalar reference for reading one column of a row.
template <class Element>
struct stored_value {
  DEEPREC_HD static float at(const std::byte* row, row_parts, index_t column) noexcept {
    return static_cast<float>(static_cast<const Element*>(static_cast<const void*>(row))[column]);
  }
};

template <int Bits>
DEEPREC_HD unsigned code_at(const std::byte* codes, index_t column) noexcept {
  if constexpr (Bits == 8) {
    return static_cast<unsigned>(codes[column]);
  } else {
    return static_cast<unsigned>(codes[column / 2]) >> (column % 2 * 4) & 15U;
  }
}

/// code * scale, rounded, plus bias, rounded: the same bits on every ISA and device. No compiler fuses the
/// product with the bias, because 0 is added to it in between; that can be fused, and rounds nothing.
DEEPREC_HD DEEPREC_INLINE float value_of_code(unsigned code, float scale, float bias) noexcept {
  return static_cast<float>(code) * scale + 0.0F + bias;
}

template <int Bits, class Scale>
struct stored_value<scaled_code<Bits, Scale>> {
  DEEPREC_HD static float at(const std::byte* row, row_parts parts, index_t column) noexcept {
    Scale scale_bias[2];
    std::memcpy(scale_bias, row + parts.others, sizeof(scale_bias));
    return value_of_code(code_at<Bits>(row + parts.values, column), static_cast<float>(scale_bias[0]),
                         static_cast<float>(scale_bias[1]));
  }
};

template <>
struct stored_value<split_float> {
  DEEPREC_HD static float at(const std::byte* row, row_parts parts, index_t column) noexcept {
    std::uint16_t high, low;
    std::memcpy(&high, row + parts.values + 2 * column, 2);
    std::memcpy(&low, row + parts.others + 2 * column, 2);
    return bit_cast_to<float>(static_cast<std::uint32_t>(high) << 16 | low);
  }
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
