// Where rows end: at a line end, and in a format with quotes only outside of them.
//
//   a,"b \n c",d \n e,f \n        bit i of a block is inside where an odd number of quotes lies before it:
//     └─inside─┘                   the prefix xor of the quotes' bits, 12 operations for 64 bytes
//
// Each quote toggles, a doubled one twice. So what ends a row depends on the text before it alone, whatever
// the pieces in which it is read; and the last end of a text on the parity of all its quotes, and on the
// bytes behind that end. A row with a quote in a field that doesn't begin with one is malformed, and ends
// where the number of quotes is even again.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include <deeprec/core/config.hpp>
#include <deeprec/data/detail/byte_words.hpp>

#include <deeprec/simd/begin_portable.hpp>

/// Bit i: the parity of the bits up to i.
DEEPREC_INLINE std::uint64_t prefix_xor(std::uint64_t bits) {
  bits ^= bits << 1;
  bits ^= bits << 2;
  bits ^= bits << 4;
  bits ^= bits << 8;
  bits ^= bits << 16;
  bits ^= bits << 32;
  return bits;
}

/// One past the last end of a row in the text, 0: there is none. `inside`: whether its first byte is within
/// quotes, then whether the byte behind it is.
inline std::size_t last_row_end(std::string_view text, char quote, bool& inside) {
  std::uint64_t odd = 0;  // of each place in a block: whether the number of its quotes is odd
  for (std::size_t at = 0; at < text.size(); at += 64) {
    byte_block block;
    if (text.size() - at >= 64) [[likely]] {
      block = load_block(text.data() + at);
    } else {
      char tail[64] = {};
      std::memcpy(tail, text.data() + at, text.size() - at);
      block = load_block(tail);
    }
    odd ^= equal_bits(block, quote);
  }
  inside ^= (std::popcount(odd) & 1) != 0;
  bool within = inside;
  for (std::size_t at = text.size(); at > 0; --at) {
    if (text[at - 1] == '\n' && !within) return at;
    within ^= text[at - 1] == quote;
  }
  return 0;
}

#include <deeprec/simd/end_portable.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The quote of a format within which a line end ends no row; NUL: it has none.
template <class Format>
constexpr char row_quote(const Format& format) noexcept {
  if constexpr (requires { format.row_quote(); }) {
    return format.row_quote();
  } else {
    return '\0';
  }
}

/// The line end of the first row of a text that begins with a row or, `inside`, within quotes; npos: it has
/// none.
inline std::size_t first_row_end(std::string_view text, char quote, bool inside = false) noexcept {
  if (quote == '\0') return text.find('\n');
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == quote) inside = !inside;
    if (text[at] == '\n' && !inside) return at;
  }
  return std::string_view::npos;
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
