// What a text begins with: a byte order mark, empty lines, and the first row or the header, which tells its
// layout.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/data/detail/row_ends.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Length of a byte order mark at the start of a file: 0 or 3.
inline std::size_t byte_order_mark(std::string_view text) noexcept {
  return text.substr(0, 3) == "\xEF\xBB\xBF" ? 3 : 0;
}

/// Whether the empty lines of a format are no rows, also those before the first row or the header.
template <class Format>
inline constexpr bool ignores_empty_lines = requires { requires Format::ignores_empty_lines; };

struct empty_lines {
  std::size_t bytes = 0;
  index_t lines = 0;
};
/// The empty lines that a text begins with, behind a byte order mark; none of a format that has them as rows.
template <class Format>
empty_lines empty_lines_before(std::string_view text) noexcept {
  empty_lines found;
  for (std::size_t at = byte_order_mark(text); ignores_empty_lines<Format>;) {
    if (at == text.size()) found.bytes = at;  // also of a mark alone
    at += text.substr(at, 2) == "\r\n" ? 1 : 0;
    if (at == text.size() || text[at] != '\n') break;
    found.bytes = ++at;
    ++found.lines;
  }
  return found;
}

/// Bytes read to detect the layout of a text: byte order mark, a line within the limit, its end.
inline constexpr index_t head_bytes(index_t longest_line) noexcept {
  return std::clamp<index_t>(longest_line, 0, index_t{1} << 62) + 5;
}

/// The first line of the text, without line end and byte order mark; of a line beyond the limit only the
/// beginning. `quote`: within which a line end ends no row, or NUL.
inline std::string_view head_line(std::string_view text, index_t longest_line, char quote = '\0') noexcept {
  text = text.substr(0, static_cast<std::size_t>(head_bytes(longest_line)));
  text.remove_prefix(byte_order_mark(text));
  std::string_view line = text.substr(0, first_row_end(text, quote));
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  return line;
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
