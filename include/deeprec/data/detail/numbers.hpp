// Numbers from text: decimal, without locale, exact.
//
//   "260.0" ──> 260.0f      seven digits or fewer: one division, correctly rounded
//   anything else           std::from_chars
//   a thousand characters   shortened first: libraries count such exponents in too few bits
//
// Each function returns null, or the reason why the text is not such a number.
#pragma once

#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <system_error>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

inline constexpr bool is_digit(char c) noexcept { return static_cast<unsigned char>(c - '0') <= 9; }

/// A decimal number of any length, normalised: 0.d1 d2 d3 ... x 10^scale, d1 not 0.
class decimal_text {
 public:
  explicit decimal_text(std::string_view text) noexcept : negative_(text.starts_with('-')) {
    if (negative_) text.remove_prefix(1);
    std::int64_t whole = 0;  // digits before the point, from the first that is not 0
    std::int64_t zeros = 0;  // after the point, before the first digit that is not 0
    bool any = false, point = false, more = false;
    std::size_t at = 0;
    for (; at < text.size(); ++at) {
      const char c = text[at];
      if (c == '.' && !point) {
        point = true;
        continue;
      }
      if (!is_digit(c)) break;
      any = true;
      if (c == '0' && size_ == 0) {
        zeros += point ? 1 : 0;
        continue;
      }
      whole += point ? 0 : 1;
      if (size_ < most_digits) {
        digits_[size_++] = c;
      } else {
        more = more || c != '0';
      }
    }
    if (more) digits_[size_++] = '1';  // rounding depends only on whether more follows
    scale_ = whole > 0 ? whole : -zeros;
    sound_ = any && exponent(text.substr(at));
  }

  /// Whether the text is a number.
  [[nodiscard]] bool sound() const noexcept { return sound_; }
  /// Whether its magnitude is below 1.
  [[nodiscard]] bool below_one() const noexcept { return size_ == 0 || scale_ <= 0; }

  /// The nearest number of a floating-point type.
  template <class T>
  std::errc nearest(T& value) const noexcept {
    char text[most_digits + 32];
    char* end = text;
    if (negative_) *end++ = '-';
    *end++ = '0';
    if (size_ > 0) {
      *end++ = '.';
      for (std::size_t i = 0; i < size_; ++i) *end++ = digits_[i];
      *end++ = 'e';
      end = std::to_chars(end, text + sizeof(text), scale_).ptr;
    }
    return std::from_chars(text, end, value).ec;
  }

 private:
  static constexpr std::size_t most_digits = 800;  // a double's ties have 767
  static constexpr std::int64_t farthest = 9999;   // no floating-point type has such powers of ten

  /// Adds the exponent, the text after the digits.
  bool exponent(std::string_view text) noexcept {
    std::int64_t power = 0;
    if (!text.empty()) {
      if (text[0] != 'e' && text[0] != 'E') return false;
      text.remove_prefix(1);
      const bool down = text.starts_with('-');
      if (down || text.starts_with('+')) text.remove_prefix(1);
      if (text.empty()) return false;
      for (const char c : text) {
        if (!is_digit(c)) return false;
        if (power < (std::int64_t{1} << 58)) power = power * 10 + (c - '0');
      }
      if (down) power = -power;
    }
    scale_ += power;  // a text has fewer than 2^62 digits
    scale_ = scale_ > farthest ? farthest : scale_ < -farthest ? -farthest : scale_;
    return true;
  }

  char digits_[most_digits + 1];
  std::size_t size_ = 0;
  std::int64_t scale_ = 0;
  bool negative_;
  bool sound_ = false;
};

inline constexpr std::size_t longest_plain_number = 1024;

/// The nearest floating-point number. Where it is out of range, `tiny` tells underflow from overflow.
template <class T>
[[gnu::noinline]] std::errc parse_nearest(std::string_view text, T& value, bool& tiny) noexcept {
  tiny = false;
  std::errc code{};
  if (text.size() > longest_plain_number) {
    const decimal_text number(text);
    if (!number.sound()) return std::errc::invalid_argument;
    code = number.nearest(value);
    tiny = number.below_one();
    return code;
  }
  const char* end = text.data() + text.size();
  const auto [stop, answer] = std::from_chars(text.data(), end, value);
  if (stop != end || answer == std::errc::invalid_argument) return std::errc::invalid_argument;
  if (answer == std::errc::result_out_of_range) tiny = decimal_text(text).below_one();
  return answer;
}

/// A finite number; a number too small for a float becomes 0 or denormal.
inline const char* parse_float_slow(std::string_view text, float& value) noexcept {
  if (text.size() > 1 && text[0] == '+' && (is_digit(text[1]) || text[1] == '.')) {
    text.remove_prefix(1);
  }
  if (text.empty()) return "a number is missing";
  bool tiny = false;
  const std::errc code = parse_nearest(text, value, tiny);
  if (code == std::errc::invalid_argument) return "not a number";
  if (code == std::errc::result_out_of_range) {
    if (!tiny) return "the number is too large";
    double wide = 0;  // some libraries report denormal numbers so as well
    value = 0.0F;
    if (parse_nearest(text, wide, tiny) == std::errc{}) value = static_cast<float>(wide);
    if (text[0] == '-') value = -std::fabs(value);
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
      const auto whole = static_cast<float>(digits);
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
  if (end - begin <= 12) {  // the usual form: digits, perhaps with ".0"
    std::int64_t digits = 0;
    const char* p = begin;
    for (; p != end && is_digit(*p); ++p) digits = digits * 10 + (*p - '0');
    if (p != begin && (p == end || (end - p == 2 && p[0] == '.' && p[1] == '0'))) {
      value = digits;
      return nullptr;
    }
  }
  const auto [stop, code] = std::from_chars(begin, end, value);
  if (stop == end) {
    return code == std::errc{} ? nullptr : "the integer does not fit in 64 bits";
  }
  double wide = 0;
  bool tiny = false;
  const std::errc wide_code = parse_nearest(text, wide, tiny);
  if (wide_code != std::errc{}) return tiny ? "not an integer" : "not an id";
  if (!(wide < 0x1p53) || wide != std::floor(wide)) return "not an integer";
  value = static_cast<std::int64_t>(wide);
  return nullptr;
}

/// A dense value that is an integer in principle but may be written as a float. An integer beyond 64
/// bits is a fault: no count is that large.
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

}}}  // namespace deeprec::DEEPREC_ABI::detail
