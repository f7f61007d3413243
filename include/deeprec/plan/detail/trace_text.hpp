// Parts of a trace in the Chrome Trace Event format: strings, and times in microseconds.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// A string as JSON, with its quotes. Bytes above 127 pass through: names are UTF-8.
inline void append_json(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (code < 0x20 || code == 0x7f) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", code);
      out += escaped;
    } else {
      out += c;
    }
  }
  out += '"';
}

/// |b - a|: no difference is too large for it.
constexpr std::uint64_t time_between(std::int64_t a, std::int64_t b) noexcept {
  const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
  return a < b ? y - x : x - y;
}

/// Nanoseconds as microseconds with three decimals.
inline void append_microseconds(std::string& out, bool negative, std::uint64_t ns) {
  char number[32];
  std::snprintf(number, sizeof(number), "%s%llu.%03llu", negative ? "-" : "",
                static_cast<unsigned long long>(ns / 1000), static_cast<unsigned long long>(ns % 1000));
  out += number;
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
