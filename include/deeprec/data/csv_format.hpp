// Tables in text with columns of one's own: CSV and TSV, with the quotes of RFC 4180.
//
//   click,price,city,tags               csv_format{.columns = {csv_column::label("click"),
//   1,2.5,"New York","a|b"                                     csv_column::dense("price"),
//   0,,Rome,                                                   csv_column::tokens("tags", '|', 1 << 16),
//                                                              csv_column::token("city", 1 << 16)}}
//
// With a header columns are found by their names, in any order; those that are not listed are ignored.
// Without one they have positions. Dense values and features of a batch come in the order of the list. A
// field in quotes may hold delimiters, line ends, and doubled quotes. CR before a line end and empty lines
// are ignored, also before the header.
//
// Where a row ends depends on the quotes before it (detail/row_ends.hpp), so files are read from begin to end
// by the caller, and parsed in parallel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/data/csv_column.hpp>
#include <deeprec/data/detail/csv_rows.hpp>
#include <deeprec/data/sparse_batch.hpp>
#include <deeprec/data/text_format.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

enum class csv_header : std::uint8_t { present, absent };

/// The format of tables in text: a value that holds the description of their columns.
///
/// @numerics numbers are the nearest floats to the decimal text, before their scale; the id of a token is
///           hash_bucket(hash_bytes(text, seed = feature), rows), with 0 rows the hash, or its number in the
///           vocabulary; a missing token is the empty text. The same columns as criteo_format has give its
///           bits
/// @threads  reentrant
struct csv_format {
  std::vector<csv_column> columns{};
  char delimiter = ',';
  char quote = '"';  ///< NUL: quotes are text
  csv_header header = csv_header::present;
  std::vector<std::string> missing{};           ///< texts that are as an empty field, such as NA
  label_column labels = label_column::present;  ///< by_fields: 0 where the header has no such column
  index_t longest_token = 1024;                 ///< bytes; a longer one is a fault
  bool trims = false;       ///< spaces and tabs around a field, and around its text in quotes, are left out
  index_t field_count = 0;  ///< of a row without a header, the label among them; 0: as the first row has

  static constexpr bool ignores_empty_lines = true;

  struct layout {
    bool has_header = false;
    std::shared_ptr<const detail::csv_plan> plan;
  };

  /// Fails (unsupported) for the first invalid option; place().item is the column in the list.
  ///
  /// @cost    O(columns log columns)
  /// @threads reentrant
  /// @error   none
  [[nodiscard]] status check() const {
    const auto is_bad = [](char c) { return c == '\n' || c == '\r'; };
    if (delimiter == '\0' || is_bad(delimiter) || is_bad(quote) || delimiter == quote)
      return {errc::unsupported, "csv_format: delimiter and quote must be two characters of a line"};
    index_t used[7] = {};
    std::vector<std::size_t> order(columns.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    for (const std::size_t c : order) {
      const csv_column& column = columns[c];
      const auto at = static_cast<index_t>(c);
      if (const status s = column.check(); !s) return {s.code(), s.detail(), {.item = at}};
      if (column.use == csv_use::token && (is_bad(column.separator) || column.separator == quote) &&
          column.separator != '\0') {
        return {errc::unsupported,
                "csv_format: a separator of tokens must be no quote and no line end",
                {.item = at}};
      }
      const bool once =
          column.use != csv_use::ignored && column.use != csv_use::dense && column.use != csv_use::token;
      if (++used[static_cast<int>(column.use)] > 1 && once)
        return {errc::unsupported, "csv_format: two columns are label, weight, group or name", {.item = at}};
    }
    if (used[0] == static_cast<index_t>(columns.size()))
      return {errc::unsupported, "csv_format: no column is used. Fix: list some in columns"};
    const auto is_before = [&](std::size_t a, std::size_t b) {
      return header == csv_header::present ? columns[a].name < columns[b].name : position(a) < position(b);
    };
    std::sort(order.begin(), order.end(), is_before);
    const bool has_header = header == csv_header::present;
    if (field_count < 0 || (field_count > 0 && (has_header || position(order.back()) >= field_count))) {
      return {errc::unsupported,
              "csv_format: field_count must be 0, or without a header above all positions",
              {.is = field_count}};
    }
    for (std::size_t i = 1; i < order.size(); ++i) {
      if (!is_before(order[i - 1], order[i])) {
        return {errc::unsupported,
                "csv_format: a column is listed twice. Fix: once",
                {.item = static_cast<index_t>((std::max)(order[i - 1], order[i]))}};
      }
    }
    return {};
  }

  [[nodiscard]] batch_shape shape() const noexcept {
    batch_shape made{.bags = bag_size::one};
    for (const csv_column& column : columns) {
      made.dense_columns += column.use == csv_use::dense ? 1 : 0;
      made.features += column.use == csv_use::token ? 1 : 0;
      if (column.use == csv_use::token && column.separator != '\0') made.bags = bag_size::any;
      made.extras.weights |= column.use == csv_use::weight;
      made.extras.groups |= column.use == csv_use::group;
      made.extras.names |= column.use == csv_use::name;
    }
    return made;
  }
  /// Within it a line end ends no row.
  [[nodiscard]] char row_quote() const noexcept { return quote; }

  /// The layout of a file with this first row. A header that lacks a column of the list, or has it twice, is
  /// a fault of parse().
  ///
  /// @cost    O(row + columns); allocates
  /// @threads reentrant
  /// @error   none (bad_alloc where exceptions are on)
  DEEPREC_PER_UNIT [[nodiscard]] layout detect(std::string_view first_row) const {
    auto plan = std::make_shared<detail::csv_plan>();
    const std::vector<std::string> fields = split(first_row);
    plan->fields = static_cast<int>(fields.size());
    plan->column.assign(fields.size(), -1);
    plan->out.assign(fields.size(), 0);
    if (header == csv_header::present)
      plan->header_lines = 1 + std::count(first_row.begin(), first_row.end(), '\n');
    std::unordered_map<std::string_view, std::int32_t> by_name;
    if (header == csv_header::present) {
      for (std::size_t c = 0; c < columns.size(); ++c)
        by_name.emplace(columns[c].name, static_cast<std::int32_t>(c));
    }
    std::vector<std::int32_t> field_of(columns.size(), -1);
    index_t byte = 1;
    for (std::size_t f = 0; f < fields.size() && header == csv_header::present; ++f) {
      const auto found = by_name.find(fields[f]);
      if (found != by_name.end() &&
          columns[static_cast<std::size_t>(found->second)].use != csv_use::ignored) {
        std::int32_t& field = field_of[static_cast<std::size_t>(found->second)];
        if (field >= 0 && plan->fault.ok()) {
          plan->fault = {
              errc::parse_error,
              "the header has a column of the list twice. Fix: name it once, or have it by position",
              {.line = 1, .column = byte, .item = found->second}};
        }
        field = static_cast<std::int32_t>(f);
      }
      byte += static_cast<index_t>(fields[f].size()) + 1;
    }
    // Rows with a field less than that lack the label, wherever it would be.
    const auto label = static_cast<std::size_t>(
        std::find_if(columns.begin(), columns.end(), [](const auto& c) { return c.use == csv_use::label; }) -
        columns.begin());
    const bool lacks_label = labels != label_column::present && label < columns.size() && field_count > 0 &&
                             plan->fields == field_count - 1;
    if (field_count > 0 && plan->fields != field_count && !lacks_label) {
      plan->fault = {
          errc::parse_error,
          "the first row has another number of fields than the list has columns. Fix: list all, or "
          "set their positions",
          {.line = 1, .is = plan->fields, .must_be = field_count}};
    }
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const csv_column& column = columns[c];
      if (column.use == csv_use::ignored || (lacks_label && c == label)) continue;
      const index_t place = position(c) - (lacks_label && position(c) > position(label) ? 1 : 0);
      if (header == csv_header::absent && place < plan->fields)
        field_of[c] = static_cast<std::int32_t>(place);
      if (field_of[c] >= 0) {
        plan->column[static_cast<std::size_t>(field_of[c])] = static_cast<std::int32_t>(c);
        plan->labelled |= column.use == csv_use::label;
      } else if (plan->fault.ok() && !(column.use == csv_use::label && labels != label_column::present)) {
        plan->fault = {errc::parse_error,
                       header == csv_header::present
                           ? "the header lacks a column of the list. Fix: its name, or the delimiter"
                           : "the first row lacks a column of the list. Fix: its position, or the delimiter",
                       {.line = 1, .item = static_cast<index_t>(c), .is = plan->fields}};
      }
    }
    const bool has_one_id = shape().bags == bag_size::one;
    std::int32_t dense = 0, features = 0;
    std::vector<std::int32_t> out(columns.size(), 0);
    for (std::size_t c = 0; c < columns.size(); ++c) {
      if (columns[c].use == csv_use::dense) out[c] = dense++;
      if (columns[c].use == csv_use::token) out[c] = features++;
    }
    for (std::size_t f = 0; f < fields.size(); ++f) {
      const std::int32_t c = plan->column[f];
      if (c >= 0) plan->out[f] = out[static_cast<std::size_t>(c)];
      const auto is =
          c < 0 ? detail::csv_run::kind::ignored : kind_of(columns[static_cast<std::size_t>(c)], has_one_id);
      plan->whole &= c >= 0;
      if (plan->runs.empty() || plan->runs.back().is != is)
        plan->runs.push_back({is, static_cast<int>(f), 0});
      ++plan->runs.back().count;
    }
    return {header == csv_header::present, std::move(plan)};
  }

  /// Appends the rows of a text that begins with a row to the batch.
  ///
  /// @post    rows before one that ended the parsing are in the batch; a bad row adds nothing
  /// @cost    one pass; allocates when the batch must grow, and some bytes for each field of a row
  /// @threads reentrant; needs exclusive access to the batch and the log
  /// @error   parse_error (the log has the location, but for a fault of the header), out_of_memory
  DEEPREC_PER_UNIT status parse(const layout& file_layout, std::string_view text, sparse_batch& batch,
                                line_log& log) const {
    const detail::csv_plan& plan = *file_layout.plan;
    if (!plan.fault) return detail::in_line(plan.fault, log.lines() + 1 - plan.header_lines);
    detail::csv_rows rows({columns, missing, longest_token, delimiter, quote, trims}, plan, batch, log);
    return quote == '\0' ? rows.parse<false>(text.data(), text.data() + text.size())
                         : rows.parse<true>(text.data(), text.data() + text.size());
  }

 private:
  [[nodiscard]] index_t position(std::size_t c) const noexcept {
    return columns[c].position >= 0 ? columns[c].position : static_cast<index_t>(c);
  }
  /// The quickest way to convert a column's fields that takes no missing value for another.
  [[nodiscard]] detail::csv_run::kind kind_of(const csv_column& column, bool has_one_id) const noexcept {
    const auto any_missing = [&](const auto& is) { return std::any_of(missing.begin(), missing.end(), is); };
    if (trims) return detail::csv_run::kind::any;
    if (column.use == csv_use::label && column.rule == csv_label::binary) return detail::csv_run::kind::label;
    if (column.use == csv_use::dense && column.scale == csv_scale::none &&
        !any_missing([](const std::string& text) {
          return !text.empty() && (text[0] == '-' || detail::is_digit(text[0]));
        }))
      return detail::csv_run::kind::integers;
    if (column.use == csv_use::token && column.vocabulary == nullptr && has_one_id && longest_token >= 8 &&
        !any_missing([](const std::string& text) { return text.size() == 8; }))
      return detail::csv_run::kind::tokens;
    return detail::csv_run::kind::any;
  }
  /// The fields of a row, without quotes.
  [[nodiscard]] std::vector<std::string> split(std::string_view row) const {
    std::vector<std::string> fields(1);
    bool inside = false;
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (row[i] == quote && quote != '\0') {
        if (inside && i + 1 < row.size() && row[i + 1] == quote)
          fields.back() += row[i++];
        else
          inside = !inside;
      } else if (row[i] == delimiter && !inside) {
        fields.emplace_back();
      } else {
        fields.back() += row[i];
      }
    }
    for (std::string& field : fields) {
      if (trims) field = detail::trimmed_csv(field);
    }
    return fields;
  }
};

static_assert(TextFormat<csv_format>);

}}  // namespace deeprec::DEEPREC_ABI
