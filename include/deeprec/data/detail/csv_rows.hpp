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
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/data/csv_column.hpp>
#include <deeprec/data/detail/csv_plan.hpp>
#include <deeprec/data/detail/fast_fields.hpp>
#include <deeprec/data/detail/numbers.hpp>
#include <deeprec/data/detail/row_ends.hpp>
#include <deeprec/data/sparse_batch.hpp>
#include <deeprec/data/text_format.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

inline constexpr char csv_no_room[] = "no room";

/// The rows of one call of parse(): appended to a batch.
class csv_rows {
 public:
  csv_rows(const csv_rules& rules, const csv_plan& plan, sparse_batch& batch, line_log& log)
      : rules_(rules), plan_(plan), batch_(batch), log_(log), shape_(batch.shape()) {
    const auto fields = static_cast<std::size_t>(plan.fields);
    starts_.resize(fields);
    sizes_.resize(fields);
    ids_.resize(static_cast<std::size_t>(shape_.features));
    for (index_t s = 0; s < shape_.features; ++s)
      hash_starts_.push_back(hash_start(static_cast<std::uint64_t>(s)));
    places_.resize(fields + 1 + 64);
    missing_.resize(fields);
    rows_.resize(fields);
    for (std::size_t f = 0; f < fields; ++f) {
      if (plan.column[f] < 0) continue;
      missing_[f] = rules.columns[static_cast<std::size_t>(plan.column[f])].missing;
      rows_[f] = rules.columns[static_cast<std::size_t>(plan.column[f])].rows;
    }
  }

  /// Success, log.first() where the log ends the parsing, or out_of_memory.
  template <bool HasQuote>
  status parse(const char* p, const char* const end) {
    while (p < end) {
      if (filled_ == room_) {
        if (const status s = reserve(end - p); !s) return s;
      }
      const auto left = static_cast<std::size_t>(end - p);
      const auto row = DEEPREC_PORTABLE::scan_csv_row<HasQuote>(p, left, rules_.delimiter, rules_.quote,
                                                                plan_.fields, places_.data());
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
        good = text_end > 0 && fields(line, text_end, row.quotes);
      }
      // Words of eight bytes are read from each field on.
      if (good)
        good = end - line >= static_cast<std::ptrdiff_t>(length) + 16 ? convert<true>() : convert<false>();
      if (no_room_) return close(no_room_for_rows);
      if (good) [[likely]] {
        log_.count_lines(1 + row.line_ends);
        finish_row();
        continue;
      }
      drop_row();
      const bool goes_on = careful_row({line, length});
      if (no_room_) return close(no_room_for_rows);
      if (!goes_on) return close(log_.first());
    }
    return close({});
  }

 private:
  using run_kind = csv_run::kind;

  status reserve(index_t bytes) {
    if (shape_.bags == bag_size::one) batch_.commit_rows(filled_);
    filled_ = 0;
    const index_t shortest = std::max<index_t>(plan_.fields, 2);
    room_ = std::clamp<index_t>(bytes / shortest + 1, 1, shape_.bags == bag_size::one ? 4096 : 256);
    if (const status s = batch_.reserve_rows(room_); !s) {
      room_ = 0;
      return s;
    }
    labels_ = batch_.next_label();
    dense_ = batch_.next_dense();
    if (shape_.bags == bag_size::one) {
      for (index_t s = 0; s < shape_.features; ++s) ids_[static_cast<std::size_t>(s)] = batch_.next_id(s);
    }
    if (shape_.extras.weights) weights_ = batch_.next_row_weight();
    if (shape_.extras.groups) groups_ = batch_.next_group();
    return {};
  }
  void finish_row() noexcept {
    if (!plan_.labelled) labels_[filled_] = 0;
    ++filled_;
    if (shape_.bags == bag_size::any) batch_.commit_rows(1);
  }
  void drop_row() noexcept {
    if (shape_.bags == bag_size::any) batch_.drop_row();
  }
  status close(const status& found) noexcept {
    if (shape_.bags == bag_size::one) batch_.commit_rows(filled_);
    drop_row();
    filled_ = room_ = 0;
    return found;
  }

  /// Where each field is; false: quotes that are not one pair around each field that has them.
  bool fields(const char* line, std::uint32_t end, int quotes) noexcept {
    std::uint32_t begin = 0;
    int pairs = 0;
    for (int f = 0; f < plan_.fields; ++f) {
      const std::uint32_t stop = f + 1 < plan_.fields ? places_[static_cast<std::size_t>(f)] : end;
      const char* from = line + begin;
      std::uint32_t size = stop - begin;
      if (quotes > 0 && size > 0 && *from == rules_.quote) {
        if (size < 2 || line[stop - 1] != rules_.quote) return false;
        ++from;
        size -= 2;
        ++pairs;
      }
      starts_[static_cast<std::size_t>(f)] = from;
      sizes_[static_cast<std::size_t>(f)] = size;
      begin = stop + 1;
    }
    return 2 * pairs == quotes;
  }

  /// Converts the fields, false: one of them is malformed. Words: eight bytes can be read from each on.
  template <bool Words>
  bool convert() noexcept {
    bool good = true;
    const char* const* const starts = starts_.data();
    const std::uint32_t* const sizes = sizes_.data();
    const std::int32_t* const outs = plan_.out.data();
    const auto general = [&](std::size_t f) { good &= field_reason(f, {starts[f], sizes[f]}) == nullptr; };
    for (const csv_run& run : plan_.runs) {
      if (run.is == run_kind::ignored) continue;
      const auto first = static_cast<std::size_t>(run.first),
                 last = first + static_cast<std::size_t>(run.count);
      if (Words && run.is == run_kind::integers) {
        float* const dense = dense_ + filled_ * shape_.dense_columns;
        const float* const missing = missing_.data();
        for (std::size_t f = first; f < last; ++f) {
          if (!DEEPREC_PORTABLE::parse_small_integer(starts[f], sizes[f], missing[f], dense[outs[f]]))
              [[unlikely]]
            general(f);
        }
      } else if (Words && run.is == run_kind::tokens) {
        std::int64_t* const* const ids = ids_.data();
        const index_t* const rows = rows_.data();
        const std::uint64_t* const hash_starts = hash_starts_.data();
        const index_t to = filled_;
        for (std::size_t f = first; f < last; ++f) {
          if (sizes[f] != 8) [[unlikely]] {
            general(f);
            continue;
          }
          const std::uint64_t hash = hash_of_eight(hash_starts[outs[f]], read_u64(starts[f]));
          ids[outs[f]][to] = rows[f] == 0 ? static_cast<std::int64_t>(hash) : hash_bucket(hash, rows[f]);
        }
      } else {
        for (std::size_t f = first; f < last; ++f) general(f);
      }
    }
    return good;
  }

  [[nodiscard]] bool is_missing(std::string_view text) const noexcept {
    return text.empty() ||
           std::find(rules_.missing.begin(), rules_.missing.end(), text) != rules_.missing.end();
  }

  /// Converts one field; null, or why it is malformed.
  const char* field_reason(std::size_t f, std::string_view text) noexcept {
    const std::int32_t number = plan_.column[f];
    if (number < 0) return nullptr;
    const csv_column& column = rules_.columns[static_cast<std::size_t>(number)];
    const index_t out = plan_.out[f];
    switch (column.use) {
      case csv_use::ignored:
        return nullptr;
      case csv_use::label:
        return label_reason(column, text, labels_[filled_]);
      case csv_use::dense: {
        float& value = dense_[filled_ * shape_.dense_columns + out];
        if (is_missing(text)) {
          value = column.missing;
          return nullptr;
        }
        if (const char* const reason = parse_float(text, value)) return reason;
        if (column.scale != csv_scale::none) value = column.scaled(value);
        return nullptr;
      }
      case csv_use::token:
        return tokens_reason(column, out, text);
      case csv_use::weight: {
        if (const char* const reason = parse_float(text, weights_[filled_])) return reason;
        return weights_[filled_] < 0 ? "the weight of a row is negative" : nullptr;
      }
      case csv_use::group:
        groups_[filled_] = static_cast<std::int64_t>(hash_bytes(text));
        return nullptr;
      case csv_use::name: {
        const index_t ahead = shape_.bags == bag_size::one ? filled_ : 0;
        return batch_.set_name(ahead, text) ? nullptr : out_of_room();
      }
    }
    return nullptr;
  }
  static const char* label_reason(const csv_column& column, std::string_view text, float& label) noexcept {
    if (column.rule == csv_label::one_of) {
      const auto among = [&](const std::vector<std::string>& words) {
        return std::find(words.begin(), words.end(), text) != words.end();
      };
      const bool positive = among(column.positive);
      label = positive ? 1.0F : 0.0F;
      if (positive || column.negative.empty() || among(column.negative)) return nullptr;
      return "the label is none of its words";
    }
    if (const char* const reason = parse_float(text, label)) return reason;
    if (column.rule == csv_label::binary && label != 0.0F && label != 1.0F)
      return "the label is neither 0 nor 1";
    if (column.rule == csv_label::at_least) label = label >= column.threshold ? 1.0F : 0.0F;
    return nullptr;
  }
  const char* tokens_reason(const csv_column& column, index_t out, std::string_view text) noexcept {
    if (column.separator == '\0') return token_reason(column, out, is_missing(text) ? "" : text);
    if (is_missing(text)) return nullptr;  // an empty bag
    for (;;) {
      const std::size_t stop = text.find(column.separator);
      const std::string_view one = text.substr(0, stop);
      if (!one.empty()) {
        if (const char* const reason = token_reason(column, out, one)) return reason;
      }
      if (stop == std::string_view::npos) return nullptr;
      text.remove_prefix(stop + 1);
    }
  }
  const char* token_reason(const csv_column& column, index_t out, std::string_view text) noexcept {
    if (static_cast<index_t>(text.size()) > rules_.longest_token) return "the token is too long";
    std::int64_t id = 0;
    if (column.vocabulary != nullptr) {
      id = text.empty() ? 0 : column.vocabulary->number_of(text);
    } else {
      const std::uint64_t hash = hash_bytes(text, static_cast<std::uint64_t>(out));
      id = column.rows == 0 ? static_cast<std::int64_t>(hash) : hash_bucket(hash, column.rows);
    }
    if (shape_.bags == bag_size::one) {
      ids_[static_cast<std::size_t>(out)][filled_] = id;
      return nullptr;
    }
    return batch_.push_id(out, id) ? nullptr : out_of_room();
  }
  const char* out_of_room() noexcept {
    no_room_ = true;
    return csv_no_room;
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
      drop_row();
      return log_.reject({errc::parse_error, reason, place});
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
      if (rules_.quote != '\0' && at < line.size() && line[at] == rules_.quote) {
        unquoted_.clear();
        for (++at;; ++at) {
          const std::size_t stop = line.find(rules_.quote, at);
          if (stop == std::string_view::npos) {
            return reject("the quote is not closed. Fix: close it, or quote = NUL where quotes are text",
                          begin, {.at_most = too_long ? log_.longest_line() : -1});
          }
          unquoted_ += line.substr(at, stop - at);
          at = stop + 1;
          if (at >= line.size() || line[at] != rules_.quote) break;
          unquoted_ += rules_.quote;
        }
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
        const char* const found = reason == nullptr ? field_reason(count, field) : nullptr;
        if (no_room_) return false;
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
    finish_row();
    return true;
  }

  csv_rules rules_;
  const csv_plan& plan_;
  sparse_batch& batch_;
  line_log& log_;
  batch_shape shape_;
  std::vector<std::uint32_t> places_;
  std::vector<const char*> starts_;
  std::vector<std::uint32_t> sizes_;
  std::vector<float> missing_;  // of each field: the value of a missing number
  std::vector<index_t> rows_;   // of each field: of a token's table
  std::vector<std::int64_t*> ids_;
  std::vector<std::uint64_t> hash_starts_;
  std::string unquoted_;
  float* labels_ = nullptr;
  float* dense_ = nullptr;
  float* weights_ = nullptr;
  std::int64_t* groups_ = nullptr;
  index_t filled_ = 0, room_ = 0;  // rows of the reserved ones
  bool no_room_ = false;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
