// Splits a line into fields, and writes the rows of a jagged batch one by one.
//
//   blank_fields   "a  b\tc"  -> a, b, c            spaces and tabs, any number of them
//   row_writer     reserves rows in advance, so that a row costs no more than its ids
#pragma once

#include <cstdint>
#include <string_view>

#include <deeprec/core/config.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/data/sparse_batch.hpp>
#include <deeprec/data/text_format.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The fields of a line, in order; a null data() at the end.
class blank_fields {
 public:
  explicit blank_fields(std::string_view line) noexcept : line_(line) {}

  std::string_view next() noexcept {
    while (at_ < line_.size() && blank(line_[at_])) ++at_;
    if (at_ == line_.size()) return {};
    const std::size_t begin = at_;
    while (at_ < line_.size() && !blank(line_[at_])) ++at_;
    return line_.substr(begin, at_ - begin);
  }

 private:
  static bool blank(char c) noexcept { return c == ' ' || c == '\t'; }

  std::string_view line_;
  std::size_t at_ = 0;
};

/// The fault of a bad field.
inline status bad_field(std::string_view line, std::string_view field, const char* reason,
                        fault_place place = {}) noexcept {
  place.column = field.data() - line.data() + 1;
  return {errc::parse_error, reason, place};
}

/// What a parser of rows returns for a line that holds none.
inline constexpr status no_row{errc::cancelled, nullptr};

/// Rows of bag_size::any, one by one: open(), push ids, then close(label) or the batch's
/// drop_row().
class row_writer {
 public:
  explicit row_writer(sparse_batch& batch) noexcept : batch_(batch) {}

  [[nodiscard]] status open() noexcept {
    if (room_ == 0) {
      if (const status s = batch_.reserve_rows(ahead); !s) return s;
      room_ = ahead;
    }
    return {};
  }
  void close(float label) noexcept {
    *batch_.next_label() = label;
    batch_.commit_rows(1);
    --room_;
  }

 private:
  static constexpr index_t ahead = 64;
  sparse_batch& batch_;
  index_t room_ = 0;
};

/// Runs parse_row(line, label) for each line that is not empty and keeps the rows of the good ones. parse_row
/// pushes ids into the batch and returns success, a bad_field, out_of_memory, or no_row.
template <class ParseRow>
status for_each_row(std::string_view text, sparse_batch& batch, line_log& log, ParseRow&& parse_row) {
  row_writer rows(batch);
  return for_each_line(text, log, [&](std::string_view line) -> status {
    if (const status s = rows.open(); !s) return s;
    float label = 0;
    const status parsed = parse_row(line, label);
    if (parsed.ok()) {
      rows.close(label);
      return {};
    }
    batch.drop_row();
    return parsed.code() == no_row.code() ? status() : parsed;
  });
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
