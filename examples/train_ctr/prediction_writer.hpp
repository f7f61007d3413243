// The predictions of rows, in their order, in one of these forms:
//
//   lines   0.25            csv   row,probability      raw   floats of 32 bits, little endian
//           0.75                  1,0.25
//
// In csv the names of rows, where a schema has a column of them, stand for their numbers.
#pragma once

#include <bit>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "models/ctr_data.hpp"
#include "options.hpp"
#include "output_file.hpp"

namespace ctr {

/// Throws a failure where they can't be written.
class prediction_writer {
 public:
  /// @param what  is predicted
  /// @param names  what the names of rows are; empty: rows have none
  prediction_writer(const options& o, const char* what, const std::string& names = {})
      : file_(o.output == "-" ? std::string() : o.output),
        is_csv_(o.output_format == "csv"),
        is_raw_(o.output_format == "raw"),
        has_names_(!names.empty()) {
    if (is_csv_) file_.line((has_names_ ? csv_field(names) : "row") + ',' + what);
  }
  void add(double prediction, std::string_view name = {}) {
    ++rows_;
    if (is_raw_) {
      static_assert(std::endian::native == std::endian::little);
      char bytes[sizeof(float)];
      const auto number = static_cast<float>(prediction);
      std::memcpy(bytes, &number, sizeof bytes);
      file_.write({bytes, sizeof bytes});
      return;
    }
    char text[64];
    if (is_csv_ && has_names_) file_.write(csv_field(name) + ',');
    const int length = is_csv_ && !has_names_ ? std::snprintf(text, sizeof text, "%lld,%.9g\n",
                                                              static_cast<long long>(rows_), prediction)
                                              : std::snprintf(text, sizeof text, "%.9g\n", prediction);
    file_.write({text, static_cast<std::size_t>(length)});
  }
  /// Whoever reads the file as it is written has all that was added.
  void flush() { file_.flush(); }
  void close() { file_.close(); }

 private:
  /// In quotes where it must be.
  static std::string csv_field(std::string_view text) {
    if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
    std::string field = "\"";
    for (const char c : text) field += c == '"' ? "\"\"" : std::string(1, c);
    return field + '"';
  }

  output_file file_;
  bool is_csv_, is_raw_, has_names_;
  index_t rows_ = 0;
};

}  // namespace ctr
