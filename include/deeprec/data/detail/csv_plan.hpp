// What the fields of a table in text are, and where they are in a row. Part of csv_format.hpp.
//
//   scan_csv_row   64 bytes at a time: the places of the delimiters outside of quotes, up to the row's end
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/data/csv_column.hpp>
#include <deeprec/data/detail/byte_words.hpp>
#include <deeprec/data/detail/row_ends.hpp>

#include <deeprec/simd/begin_portable.hpp>

struct csv_scan {
  int delimiters = 0;        ///< written; more than `most`: there are too many
  std::uint32_t length = 0;  ///< of the row without its line end
  int quotes = 0;
  int line_ends = 0;   ///< within quotes
  bool nul = false;    ///< in it or right behind it
  bool ended = false;  ///< false: too many delimiters, or no end outside of quotes
};

/// Writes the places of a row's delimiters. @pre room for most + 64 places, left > 0
template <bool HasQuote>
DEEPREC_INLINE csv_scan scan_csv_row(const char* p, std::size_t left, char delimiter, char quote, int most,
                                     std::uint32_t* places) {
  csv_scan row;
  std::uint64_t carry = 0;
  left = (std::min)(left, std::size_t{1} << 31);  // a longer row has no end
  for (std::uint32_t at = 0; at < left && row.delimiters <= most; at += 64) {
    byte_block block;
    if (left - at >= 64) [[likely]] {
      block = load_block(p + at);
    } else {  // the text's last bytes, followed by a line end
      char tail[64];
      std::memset(tail, '\n', 64);
      std::memcpy(tail, p + at, left - at);
      block = load_block(tail);
    }
    row.nul |= any_nul(block);
    std::uint64_t ends = equal_bits(block, '\n');
    std::uint64_t bits = equal_bits(block, delimiter);
    if constexpr (HasQuote) {
      const std::uint64_t quotes = equal_bits(block, quote);
      if ((quotes | carry) != 0) {
        const std::uint64_t within = prefix_xor(quotes) ^ carry;
        carry = std::uint64_t{0} - (within >> 63);
        const std::uint64_t quoted_ends = ends & within;
        ends &= ~within;
        bits &= ~within;
        const std::uint64_t of_row = ends == 0 ? ~std::uint64_t{0} : (ends & (~ends + 1)) - 1;
        row.quotes += count_bits(quotes & of_row);
        if ((quoted_ends & of_row) != 0) row.line_ends += count_bits(quoted_ends & of_row);
      }
    }
    if (ends != 0) {
      row.delimiters += write_places(bits & ((ends & (~ends + 1)) - 1), at, places + row.delimiters);
      row.length = at + static_cast<std::uint32_t>(std::countr_zero(ends));
      row.ended = row.delimiters <= most;
      return row;
    }
    row.delimiters += write_places(bits, at, places + row.delimiters);
  }
  return row;
}

#include <deeprec/simd/end_portable.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Consecutive fields of one use.
struct csv_run {
  enum class kind : std::uint8_t { ignored, label, integers, tokens, any };
  kind is = kind::ignored;
  int first = 0, count = 0;
};

/// What each field of a file is, made once from its first line.
struct csv_plan {
  int fields = 0;
  index_t header_lines = 0;  ///< 0: no header
  bool labelled = false;
  bool whole = true;                 ///< no field is ignored
  status fault;                      ///< of the header
  std::vector<std::int32_t> column;  ///< of each field: of csv_format::columns, or -1
  std::vector<std::int32_t> out;     ///< of each field: dense column or feature
  std::vector<csv_run> runs;
};

/// The options that rows depend on.
struct csv_rules {
  std::span<const csv_column> columns;
  std::span<const std::string> missing;
  index_t longest_token;
  char delimiter, quote;
  bool trims;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
