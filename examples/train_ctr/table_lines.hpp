// Numbers of text in columns: in each file a line of the columns' names, then lines of fields with tabs
// between them.
//
//   user_id  item_id  time       table_lines lines(path, {"item_id", "time"});
//   7        30       1          while (lines.next()) use(lines[0], lines[1]);      30, 1
//
// Empty lines are ignored. A field may hold a list of numbers, with commas between them. What goes wrong is
// thrown as a failure, with the line.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <vector>

#include "models/ctr_data.hpp"
#include "opened_text.hpp"
#include "progress.hpp"

namespace ctr {

class table_lines {
 public:
  /// `inputs`: one a line, as files_of() has them.
  table_lines(const std::string& inputs, const std::vector<std::string_view>& names,
              bool shows_progress = true)
      : names_(names.begin(), names.end()),
        lines_(files_of(inputs)),
        bar_("read", static_cast<double>(lines_.bytes()), progress::unit::bytes, shows_progress) {
    read_names();
  }
  /// To the next line, of the next file where this one has none; false: there is none.
  bool next() {
    for (;;) {
      if (lines_.next()) {
        if (!lines_.line().empty()) break;
      } else {
        if (!lines_.open_next()) return false;
        read_names();
      }
    }
    if ((++read_ & 0x3ff) == 0) bar_.show(static_cast<double>(lines_.bytes_read()));
    split();
    for (const std::size_t column : columns_) {
      if (column >= fields_.size()) fail("too few fields (" + std::to_string(fields_.size()) + ")");
    }
    return true;
  }
  /// The number in the named column `c`.
  [[nodiscard]] std::int64_t operator[](std::size_t c) const { return number_of(fields_[columns_[c]]); }
  /// The list in the named column `c`; an empty field has no number.
  void list(std::size_t c, std::vector<std::int64_t>& numbers) const {
    numbers.clear();
    std::string_view rest = fields_[columns_[c]];
    if (rest.empty()) return;
    for (;;) {
      const std::size_t comma = rest.find(',');
      numbers.push_back(number_of(rest.substr(0, comma)));
      if (comma == std::string_view::npos) return;
      rest.remove_prefix(comma + 1);
    }
  }
  /// The file of the line, and its number from 1.
  [[nodiscard]] std::string place() const { return lines_.path() + ':' + std::to_string(lines_.number()); }
  [[noreturn]] void fail(const std::string& what) const { lines_.fail(what); }

 private:
  /// The columns of a file, from its first line that is not empty.
  void read_names() {
    do {
      if (!lines_.next()) throw failure(lines_.path() + ": has no line");
    } while (lines_.line().empty());
    split();
    columns_.clear();
    for (const std::string& name : names_) {
      const auto found = std::find(fields_.begin(), fields_.end(), name);
      if (found == fields_.end()) {
        const bool has_tab = lines_.line().find('\t') != std::string_view::npos;
        fail("no column " + name + (has_tab ? "" : " (and no tab, which separates fields)"));
      }
      columns_.push_back(static_cast<std::size_t>(found - fields_.begin()));
    }
  }
  [[nodiscard]] std::int64_t number_of(std::string_view text) const {
    std::int64_t value = 0;
    const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (wrong != std::errc() || end != text.data() + text.size())
      fail("no number: '" + std::string(text) + "'");
    if (value < 0) fail("a negative number: " + std::string(text));
    return value;
  }
  void split() {
    fields_.clear();
    std::string_view rest = lines_.line();
    for (;;) {
      const std::size_t tab = rest.find('\t');
      fields_.push_back(rest.substr(0, tab));
      if (tab == std::string_view::npos) return;
      rest.remove_prefix(tab + 1);
    }
  }

  std::vector<std::string> names_;
  text_lines lines_;
  progress bar_;
  std::uint64_t read_ = 0;
  std::vector<std::size_t> columns_;
  std::vector<std::string_view> fields_;  // of the line
};

/// Numbers 0, 1, ... for ids, in the order in which they appear.
class id_numbers {
 public:
  row_id operator()(std::int64_t id) {
    return number_.try_emplace(id, static_cast<row_id>(number_.size())).first->second;
  }
  [[nodiscard]] index_t size() const { return static_cast<index_t>(number_.size()); }

 private:
  std::unordered_map<std::int64_t, row_id> number_;
};

}  // namespace ctr
