// The predictions of rows, in their order, in one of these forms:
//
//   lines   0.25            csv   row,probability      raw   floats of 32 bits, little endian
//           0.75                  1,0.25
#pragma once

#include <bit>
#include <cstdio>
#include <cstring>
#include <string>

#include "models/ctr_data.hpp"
#include "options.hpp"
#include "output_file.hpp"

namespace ctr {

/// Throws a failure where they can't be written.
class prediction_writer {
 public:
  /// @param what  is predicted
  prediction_writer(const options& o, const char* what)
      : file_(o.output == "-" ? std::string() : o.output),
        is_csv_(o.output_format == "csv"),
        is_raw_(o.output_format == "raw") {
    if (is_csv_) file_.line(std::string("row,") + what);
  }
  void add(double prediction) {
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
    const int length =
        is_csv_ ? std::snprintf(text, sizeof text, "%lld,%.9g\n", static_cast<long long>(rows_), prediction)
                : std::snprintf(text, sizeof text, "%.9g\n", prediction);
    file_.write({text, static_cast<std::size_t>(length)});
  }
  /// Whoever reads the file as it is written has all that was added.
  void flush() { file_.flush(); }
  void close() { file_.close(); }

 private:
  output_file file_;
  bool is_csv_, is_raw_;
  index_t rows_ = 0;
};

}  // namespace ctr
