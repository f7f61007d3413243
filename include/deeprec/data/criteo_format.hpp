// Criteo's click logs: a label, 13 integers, 26 tokens.
//
//   0 \t 1 \t \t -2 ... \t 68fd1e64 \t \t ...    label I1..I13 C1..C26, by tab or comma
//   │    └──────┬─────┘    └───────┬───────
//   labels    dense (B, 13)    26 features of one id: hash_bucket(hash_bytes(token, feature), rows[feature]),
//                              or where rows[feature] = 0 the 64-bit hash itself, a key of a growing table
//
// With the option bucket a function of the caller computes the rows instead. A missing token is hashed as the
// empty string; a missing integer becomes missing_dense. A header is skipped unread, also one of column
// numbers as pandas writes it (0, 1, 2 ... or 1, 2, 3 ...), and so is the Id column that it may name first:
// the order of the columns is always the one above. CR before the line end and empty lines are ignored. Rows
// to predict may lack the label: label_column.
// Not here: CSV quoting. "" alone is understood, as a missing value; any other field in quotes makes its line
// malformed (a token of six characters where the first line has such a field too). Feature scaling.
#pragma once

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <string_view>

#include <deeprec/core/config.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/data/detail/criteo_lines.hpp>
#include <deeprec/data/detail/numbers.hpp>
#include <deeprec/data/sparse_batch.hpp>
#include <deeprec/data/text_format.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Whether lines have an id before the label. by_header: if the header's first field is "Id".
enum class id_column : std::uint8_t { by_header, present, absent };

/// The format of Criteo's logs: a value that holds the options.
///
/// @numerics dense values are the nearest floats to the decimal text; the id of a token is
///           hash_bucket(hash_bytes(token, seed = 0 for C1 ... 25 for C26), rows of that table), with 0 rows
///           the hash, or bucket(token, 0 for C1 ... 25 for C26, rows of that table)
/// @threads  reentrant
/// @example  read_files(pool, criteo_format{.rows = criteo_format::same_size(1 << 20)}, {"train.txt"})
struct criteo_format {
  static constexpr bool ignores_empty_lines = true;

  /// The 26 table sizes of Criteo's features.
  using table_sizes = std::array<index_t, 26>;

  /// One size for all 26 tables.
  ///
  /// @cost    O(1)
  /// @threads reentrant
  /// @error   none
  static constexpr table_sizes same_size(index_t rows) noexcept {
    table_sizes sizes{};
    sizes.fill(rows);
    return sizes;
  }

  table_sizes rows = same_size(index_t{1} << 20);  ///< 0: the id of a token is its 64-bit hash
  token_use tokens = token_use::hashed;            ///< as_is: row numbers, also written as "84.0"
  bucket_function bucket = nullptr;  ///< computes the row of a token, such as farmhash_bucket; null: the hash
  float missing_dense = 0.0F;
  char delimiter = '\0';  ///< '\0': tab if the first line has one, else comma
  id_column ids = id_column::by_header;
  label_column labels = label_column::present;
  index_t longest_token = 1024;  ///< bytes; a longer one is a fault

  /// The layout of a file, from its first line.
  struct layout {
    char delimiter = '\t';
    bool has_header = false;
    bool has_quotes = false;  ///< fields of the first line are in quotes
    int id_columns = 0;
    int label_columns = 1;
  };

  /// Fails (unsupported) for the first invalid option.
  ///
  /// @cost    O(1)
  /// @threads reentrant
  /// @error   none
  [[nodiscard]] status check() const noexcept {
    for (const index_t size : rows) {
      const bool is_hash = size == 0 && tokens == token_use::hashed && bucket == nullptr;
      if (size <= 0 && !is_hash) {
        return {
            errc::unsupported,
            "criteo_format: a table without rows. Fix: set rows, 26 sizes above 0, or 0 for the hash of a "
            "token, without bucket"};
      }
    }
    if (bucket != nullptr && tokens == token_use::as_is)
      return {errc::unsupported, "criteo_format: tokens must be hashed where bucket is set (are as_is)"};
    if (delimiter == '\n' || delimiter == '\r' || delimiter == '-' || delimiter == '+' || delimiter == '.' ||
        delimiter == '"' || std::isalnum(static_cast<unsigned char>(delimiter))) {
      return {errc::unsupported,
              "criteo_format: the delimiter may be part of a field. Fix: tab, comma, semicolon or "
              "space"};
    }
    return {};
  }

  [[nodiscard]] static constexpr batch_shape shape() noexcept {
    return {.dense_columns = detail::criteo_dense,
            .features = detail::criteo_features,
            .bags = bag_size::one,
            .weights = id_weights::absent};
  }

  /// The layout of a file with this first line. A header is a line with the right number of fields
  /// of which those for the label and the integers are neither empty nor numbers: a line of data
  /// with a broken label is a fault, not a header. Numbers that count the fields from 0 or 1 are a header
  /// too. label_column::by_fields: a line of neither number of
  /// fields counts as one with a label.
  ///
  /// @cost    O(line)
  /// @threads reentrant
  /// @error   none
  DEEPREC_PER_UNIT [[nodiscard]] layout detect(std::string_view first_line) const noexcept {
    layout found;
    found.delimiter = delimiter != '\0'                                 ? delimiter
                      : first_line.find('\t') != std::string_view::npos ? '\t'
                      : first_line.empty()                              ? '\t'
                                                                        : ',';
    const auto separators = std::count(first_line.begin(), first_line.end(), found.delimiter);
    index_t names = 0;    // leading fields that are neither empty nor numbers
    index_t counted = 0;  // leading fields that are 0, 1, 2 ... or 1, 2, 3 ...
    std::string_view rest = first_line;
    for (index_t f = 0; f <= separators; ++f) {
      const std::string_view field = rest.substr(0, rest.find(found.delimiter));
      float number = 0;
      const bool is_number = detail::parse_float(field, number) == nullptr;
      const index_t from_one = first_line.starts_with('1') ? 1 : 0;
      counted += is_number && number == static_cast<float>(f + from_one) ? 1 : 0;
      names += !is_number && !detail::criteo_missing(field) ? 1 : 0;
      if (names != f + 1 && counted != f + 1) break;
      rest.remove_prefix((std::min)(field.size() + 1, rest.size()));
    }
    const bool all_counted = counted == separators + 1;
    for (std::size_t at = 0, stop = 0; at <= first_line.size(); at = stop + 1) {
      stop = (std::min)(first_line.find(found.delimiter, at), first_line.size());
      found.has_quotes |= detail::criteo_quoted(first_line.substr(at, stop - at)) != nullptr;
    }
    const std::string_view head = first_line.substr(0, first_line.find(found.delimiter));
    const bool id_named = head == "Id" || head == "id" || head == "ID" || head == "\"Id\"" ||
                          head == "\"id\"" || head == "\"ID\"";
    const int with_id = ids == id_column::present || (ids == id_column::by_header && id_named) ? 1 : 0;
    constexpr int columns = detail::criteo_dense + detail::criteo_features;
    const bool label_lacks = labels == label_column::absent ||
                             (labels == label_column::by_fields && separators + 1 == columns + with_id);
    found.label_columns = label_lacks ? 0 : 1;
    found.has_header = (names >= detail::criteo_dense + found.label_columns || all_counted) &&
                       separators + 1 == columns + found.label_columns + with_id;
    found.id_columns = found.has_header || ids == id_column::present ? with_id : 0;
    return found;
  }

  /// Appends the rows of whole lines to the batch.
  ///
  /// @post    rows before a line that ended the parsing are in the batch; a bad line adds nothing
  /// @cost    one pass; about 150 ns for a line of 243 bytes, and 26 calls of bucket; allocates when the
  ///          batch must grow
  /// @threads reentrant; needs exclusive access to the batch and the log
  /// @error   parse_error (the log has the location), out_of_memory
  DEEPREC_PER_UNIT status parse(const layout& file_layout, std::string_view text, sparse_batch& batch,
                                line_log& log) const noexcept {
    detail::criteo_plan plan;
    for (int s = 0; s < detail::criteo_features; ++s) {
      plan.rows[s] = rows[static_cast<std::size_t>(s)];
      plan.hash_starts[s] = detail::hash_start(static_cast<std::uint64_t>(s));
      plan.missing_row[s] = plan.id_of_hash(s, hash_bytes({}, static_cast<std::uint64_t>(s)));
    }
    plan.longest_token = longest_token;
    plan.missing_dense = missing_dense;
    plan.id_columns = file_layout.id_columns;
    plan.label_columns = file_layout.label_columns;
    plan.delimiter = file_layout.delimiter;
    const bool any_hash = std::find(rows.begin(), rows.end(), index_t{0}) != rows.end();
    plan.tokens = tokens == token_use::as_is ? detail::criteo_tokens::as_is
                  : bucket != nullptr        ? detail::criteo_tokens::by_function
                  : file_layout.has_quotes   ? detail::criteo_tokens::hashed_one_by_one
                  : any_hash                 ? detail::criteo_tokens::hashes
                                             : detail::criteo_tokens::hashed;
    plan.bucket = bucket;
    // In pieces: room is reserved for the most rows that a piece can hold.
    while (!text.empty()) {
      std::size_t end = text.size();
      if (end > piece_bytes) end = (std::min)(text.find('\n', piece_bytes), end - 1) + 1;
      const std::string_view piece = text.substr(0, end);
      text.remove_prefix(end);
      // The shortest good line has 38 separators and an end, or with a label a separator and a digit more.
      const index_t shortest = 39 + 2 * file_layout.label_columns;
      if (const status s = batch.reserve_rows(static_cast<index_t>(end) / shortest + 1); !s) return s;
      detail::criteo_rows out;
      out.labels = batch.next_label();
      out.dense = batch.next_dense();
      for (int s = 0; s < detail::criteo_features; ++s) out.ids[s] = batch.next_id(s);
      out.count = 0;
      const char* const first = piece.data();
      const bool finished = plan.label_columns == 0
                                ? DEEPREC_PORTABLE::parse_criteo_lines<0>(plan, first, first + end, out, log)
                                : DEEPREC_PORTABLE::parse_criteo_lines<1>(plan, first, first + end, out, log);
      batch.commit_rows(out.count);
      if (!finished) return log.first();
    }
    return {};
  }

 private:
  static constexpr std::size_t piece_bytes = std::size_t{1} << 19;
};

static_assert(TextFormat<criteo_format>);

}}  // namespace deeprec::DEEPREC_ABI
