// Numbers out of text: decimal, without locale, exact.
//
//   "260.0" ──> 260.0f      seven digits or fewer: one division, correctly rounded
//   anything else           std::from_chars
//
// Each function answers with null, or with the reason why the text is not such a number.
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <system_error>

#include <deeprec/core/config.hpp>

namespace deeprec::inline DEEPREC_ABI {
namespace detail {

inline constexpr bool is_digit(char c) noexcept { return static_cast<unsigned char>(c - '0') <= 9; }

/// A finite number; a number too small for a float becomes 0 or denormal.
inline const char* parse_float_slow(std::string_view text, float& value) noexcept {
  const char* begin = text.data();
  const char* end = begin + text.size();
  if (text.size() > 1 && *begin == '+' && (is_digit(begin[1]) || begin[1] == '.')) ++begin;
  if (begin == end) return "a number is missing";
  const auto [stop, code] = std::from_chars(begin, end, value);
  if (stop != end || code == std::errc::invalid_argument) return "not a number";
  if (code == std::errc::result_out_of_range) {
    double wide = 0;
    const auto again = std::from_chars(begin, end, wide);
    if (again.ec == std::errc{} && std::fabs(wide) < 1) {
      value = static_cast<float>(wide);
      return nullptr;
    }
    const bool tiny = again.ec != std::errc{} && (text.find("e-") != std::string_view::npos ||
                                                  text.find("E-") != std::string_view::npos);
    if (!tiny) return "the number is too large";
    value = 0.0F;
    return nullptr;
  }
  return std::isfinite(value) ? nullptr : "not a finite number";
}

inline const char* parse_float(std::string_view text, float& value) noexcept {
  constexpr float power[] = {1e0F, 1e1F, 1e2F, 1e3F, 1e4F, 1e5F, 1e6F, 1e7F};
  const char* p = text.data();
  const char* end = p + text.size();
  const bool negative = p != end && *p == '-';
  if (p != end && (*p == '-' || *p == '+')) ++p;
  std::uint32_t digits = 0;
  const char* const first = p;
  const char* point = nullptr;
  if (end - p <= 8) {
    for (; p != end; ++p) {
      if (is_digit(*p)) {
        digits = digits * 10 + static_cast<std::uint32_t>(*p - '0');
      } else if (*p == '.' && point == nullptr) {
        point = p;
      } else {
        break;
      }
    }
    const auto count = (p - first) - (point != nullptr ? 1 : 0);
    if (p == end && count > 0 && digits < (1U << 24)) {  // both operands exact: one rounding
      const float whole = static_cast<float>(digits);
      const auto decimals = point != nullptr ? end - point - 1 : 0;
      const float magnitude = whole / power[decimals];
      value = negative ? -magnitude : magnitude;
      return nullptr;
    }
  }
  return parse_float_slow(text, value);
}

inline const char* parse_unsigned(std::string_view text, std::uint64_t& value) noexcept {
  if (text.empty()) return "a number is missing";
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  if (stop != end || code == std::errc::invalid_argument) return "not an unsigned integer";
  if (code == std::errc::result_out_of_range) return "the integer does not fit in 64 bits";
  return nullptr;
}

/// An id that may be written as a float: "84", "84.0", "1.0020301E7".
inline const char* parse_id(std::string_view text, std::int64_t& value) noexcept {
  if (text.empty()) return "an id is missing";
  const char* begin = text.data();
  const char* end = begin + text.size();
  if (*begin == '-') return "an id is negative";
  if (end - begin <= 12) {  // the usual make: digits, perhaps with ".0"
    std::int64_t digits = 0;
    const char* p = begin;
    for (; p != end && is_digit(*p); ++p) digits = digits * 10 + (*p - '0');
    if (p != begin && (p == end || (end - p == 2 && p[0] == '.' && p[1] == '0'))) {
      value = digits;
      return nullptr;
    }
  }
  const auto [stop, code] = std::from_chars(begin, end, value);
  if (code == std::errc::result_out_of_range) return "the integer does not fit in 64 bits";
  if (stop == end && code == std::errc{}) return nullptr;
  double wide = 0;
  const auto [wide_stop, wide_code] = std::from_chars(begin, end, wide);
  if (wide_stop != end || wide_code != std::errc{}) return "not an id";
  if (!(wide < 0x1p53) || wide != std::floor(wide)) return "not an integer";
  value = static_cast<std::int64_t>(wide);
  return nullptr;
}

/// A feature that is an integer in principle but may be written as a float. An integer beyond 64
/// bits is a fault: nothing that counts something gets there.
inline const char* parse_count(std::string_view text, float& value) noexcept {
  if (text.size() >= 19) {
    std::int64_t whole = 0;
    const char* end = text.data() + text.size();
    const auto [stop, code] = std::from_chars(text.data() + (text[0] == '+' ? 1 : 0), end, whole);
    if (code == std::errc::result_out_of_range && stop == end) {
      return "the integer does not fit in 64 bits";
    }
  }
  return parse_float(text, value);
}

}  // namespace detail
}  // namespace deeprec::inline DEEPREC_ABI
