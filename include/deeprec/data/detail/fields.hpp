// Splits a line into fields, and writes the rows of a jagged batch one by one.
//
//   blank_fields   "a  b\tc"  -> a, b, c            spaces and tabs, any number of them
//   row_writer     reserves rows in advance, so that a row costs no more than its ids
#pragma once

#include <cstdint>
#include <string_view>

#include <deeprec/core/config.hpp>
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

/// Fills in the fault of a bad field; returns parse_error.
inline errc bad_field(line_fault& fault, std::string_view line, std::string_view field,
                      const char* reason) noexcept {
  fault.column = field.data() - line.data() + 1;
  fault.reason = reason;
  return errc::parse_error;
}

/// Rows of bag_size::any, one by one: open(), push ids, then close(label) or the batch's
/// drop_row().
class row_writer {
 public:
  explicit row_writer(sparse_batch& batch) noexcept : batch_(batch) {}

  [[nodiscard]] bool open() noexcept {
    if (room_ == 0) {
      if (!batch_.reserve_rows(ahead)) return false;
      room_ = ahead;
    }
    return true;
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

/// Runs parse_row(line, label, fault) for each line that is not empty and keeps the rows of the
/// good ones. parse_row pushes ids into the batch and returns ok, parse_error, out_of_memory, or
/// cancelled for a line that holds no row.
template <class ParseRow>
errc for_each_row(std::string_view text, sparse_batch& batch, line_log& log, ParseRow&& parse_row) {
  row_writer rows(batch);
  const errc code = for_each_line(text, log, [&](std::string_view line, line_fault& fault) {
    if (!rows.open()) return errc::out_of_memory;
    float label = 0;
    const errc answer = parse_row(line, label, fault);
    if (answer == errc::ok) {
      rows.close(label);
      return errc::ok;
    }
    batch.drop_row();
    return answer == errc::cancelled ? errc::ok : answer;
  });
  return code;
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
