// Rows of CSV to rows of a batch, in two ways that must agree.
//
//   scan_csv_row, convert   by words: the places of the delimiters, then the fields between them
//   careful_row             byte by byte: doubled quotes, the location of a fault
//
// The fields between the places are converted by runs of columns of one use. A row whose quotes are more than
// one pair for each field in quotes, and a row with a fault, is taken by the careful way. Part of
// csv_format.hpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/data/detail/csv_plan.hpp>
#include <deeprec/data/detail/csv_values.hpp>
#include <deeprec/data/detail/row_ends.hpp>
#include <deeprec/data/sparse_batch.hpp>
#include <deeprec/data/text_format.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The rows of one call of parse(): appended to a batch.
class csv_rows {
 public:
  csv_rows(const csv_rules& rules, const csv_plan& plan, sparse_batch& batch, line_log& log)
      : rules_(rules), plan_(plan), log_(log), values_(rules_, plan, batch) {
    const auto fields = static_cast<std::size_t>(plan.fields);
    fields_.resize(fields);
    places_.resize(1 + fields + 1 + 64);
    places_[0] = ~std::uint32_t{0};  // one before the row's first byte
  }

  /// Success, log.first() where the log ends the parsing, or out_of_memory.
  template <bool HasQuote>
  status parse(const char* p, const char* const end) {
    while (p < end) {
      if (!values_.room()) {
        if (const status s = values_.reserve(end - p); !s) return s;
      }
      const auto left = static_cast<std::size_t>(end - p);
      const auto row = DEEPREC_PORTABLE::scan_csv_row<HasQuote>(p, left, rules_.delimiter, rules_.quote,
                                                                plan_.fields, places_.data() + 1);
      std::size_t length = row.length;
      if (!row.ended) {
        const std::size_t found = first_row_end({p, left}, rules_.quote);
        length = found == std::string_view::npos ? left : found;
      }
      const char* const line = p;
      p = length < left ? line + length + 1 : end;
      bool good = row.ended && !row.nul && row.delimiters + 1 == plan_.fields &&
                  static_cast<index_t>(length) <= log_.longest_line();
      if (good) {
        const auto text_end =
            static_cast<std::uint32_t>(length - (length > 0 && line[length - 1] == '\r' ? 1 : 0));
        places_[static_cast<std::size_t>(plan_.fields)] = text_end;
        // Words of eight bytes are read from each field on.
        const bool words = end - line >= static_cast<std::ptrdiff_t>(length) + 16;
        const auto convert = [&](const auto& field) {
          return words ? values_.convert<true>(field) : values_.convert<false>(field);
        };
        const std::uint32_t* const places = places_.data();
        if (!HasQuote || row.quotes == 0) {
          good = text_end > 0 && convert([line, places](std::size_t f) {
                   const std::uint32_t begin = places[f] + 1;
                   return std::string_view(line + begin, places[f + 1] - begin);
                 });
        } else if (row.quotes == 2 * plan_.fields && plan_.whole &&
                   !rules_.trims) {  // a pair around each, or others
          std::uint32_t others = 0;
          good = convert([line, places, &others, quote = rules_.quote](std::size_t f) {
            const std::uint32_t bytes = places[f + 1] - places[f];  // with the delimiter
            const bool has_room = bytes >= 3;
            const char* const text = line + (has_room ? places[f] + 2 : 1);
            const std::size_t size = has_room ? bytes - 3 : 0;
            others |= static_cast<std::uint32_t>(!has_room) |
                      static_cast<std::uint32_t>((text[-1] ^ quote) | (text[size] ^ quote));
            return std::string_view(text, size);
          });
          good &= others == 0;
        } else {
          good = unquote(line, row.quotes) && convert([&](std::size_t f) { return fields_[f]; });
        }
      }
      if (values_.no_room()) return values_.close(no_room_for_rows);
      if (good) [[likely]] {
        log_.count_lines(1 + row.line_ends);
        values_.finish_row();
        continue;
      }
      values_.drop_row();
      const bool goes_on = careful_row({line, length});
      if (values_.no_room()) return values_.close(no_room_for_rows);
      if (!goes_on) return values_.close(log_.first());
    }
    return values_.close({});
  }

 private:
  /// The fields of a row with quotes; false: they are not one pair around each field that has them.
  bool unquote(const char* line, int quotes) noexcept {
    int pairs = 0;
    for (std::size_t f = 0; f < fields_.size(); ++f) {
      const std::uint32_t begin = places_[f] + 1, stop = places_[f + 1];
      std::string_view field(line + begin, stop - begin);
      if (rules_.trims) field = trimmed_csv(field);
      if (!field.empty() && field.front() == rules_.quote) {
        if (field.size() < 2 || field.back() != rules_.quote) return false;
        field = field.substr(1, field.size() - 2);
        ++pairs;
      }
      fields_[f] = field;
    }
    return 2 * pairs == quotes;
  }

  /// One row, byte by byte; false when the log ends the parsing.
  [[gnu::noinline]] bool careful_row(std::string_view line) {
    const index_t first_line = log_.lines() + 1;
    log_.count_lines(1 + std::count(line.begin(), line.end(), '\n'));
    const auto reject = [&](const char* reason, std::size_t at, fault_place place = {}) {
      const std::string_view before = line.substr(0, at);
      const std::size_t line_end = before.rfind('\n');
      place.line = first_line + std::count(before.begin(), before.end(), '\n');
      place.column = static_cast<index_t>(line_end == std::string_view::npos ? at : at - line_end - 1) + 1;
      values_.drop_row();
      return log_.reject({errc::parse_error, reason, place});
    };
    const auto skip_blanks = [&](std::size_t from) {
      while (rules_.trims && from < line.size() && (line[from] == ' ' || line[from] == '\t') &&
             line[from] != rules_.delimiter && line[from] != rules_.quote)
        ++from;
      return from;
    };
    const bool too_long = static_cast<index_t>(line.size()) > log_.longest_line();
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty()) return true;
    std::size_t count = 0, at = 0, surplus = 0;
    const char* reason = nullptr;
    std::size_t reason_at = 0;
    for (;; ++count) {
      const std::size_t begin = at;
      std::string_view field;
      const std::size_t opened = skip_blanks(at);
      if (rules_.quote != '\0' && opened < line.size() && line[opened] == rules_.quote) {
        unquoted_.clear();
        at = opened;
        for (++at;; ++at) {
          const std::size_t stop = line.find(rules_.quote, at);
          if (stop == std::string_view::npos) {
            return reject("the quote is not closed. Fix: close it, or quote = NUL where quotes are text",
                          opened, {.at_most = too_long ? log_.longest_line() : -1});
          }
          unquoted_ += line.substr(at, stop - at);
          at = stop + 1;
          if (at >= line.size() || line[at] != rules_.quote) break;
          unquoted_ += rules_.quote;
        }
        at = skip_blanks(at);
        if (at < line.size() && line[at] != rules_.delimiter)
          return reject("text behind a closing quote. Fix: double the quotes within a field", at);
        field = unquoted_;
      } else {
        at = (std::min)(line.find(rules_.delimiter, at), line.size());
        field = line.substr(begin, at - begin);
        const std::size_t quote = rules_.quote == '\0' ? std::string_view::npos : field.find(rules_.quote);
        if (quote != std::string_view::npos) {
          return reject(
              "a quote in a field that does not begin with one. Fix: quote = NUL where quotes are text",
              begin + quote);
        }
      }
      if (count < static_cast<std::size_t>(plan_.fields)) {
        const char* const found = reason == nullptr ? values_.field_reason(count, field) : nullptr;
        if (values_.no_room()) return false;
        if (found != nullptr) {
          reason = found;
          reason_at = begin;
        }
      } else if (count == static_cast<std::size_t>(plan_.fields)) {
        surplus = begin;
      }
      if (at == line.size()) break;
      ++at;
    }
    ++count;
    if (too_long) return reject("the line is too long", 0, {.at_most = log_.longest_line()});
    if (const std::size_t nul = line.find('\0'); nul != std::string_view::npos)
      return reject("a NUL byte", nul);
    if (count != static_cast<std::size_t>(plan_.fields)) {
      return reject("wrong number of fields", surplus > 0 ? surplus : line.size(),
                    {.is = static_cast<index_t>(count), .must_be = plan_.fields});
    }
    if (reason != nullptr) return reject(reason, reason_at);
    values_.finish_row();
    return true;
  }

  csv_rules rules_;
  const csv_plan& plan_;
  line_log& log_;
  csv_values values_;
  std::vector<std::uint32_t> places_;     // of the delimiters, from -1 on
  std::vector<std::string_view> fields_;  // of a row with quotes
  std::string unquoted_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
