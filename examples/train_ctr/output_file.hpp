// Lines of text to a file, or to the standard output.
#pragma once

#include <cmath>
#include <cstdio>
#include <string>
#include <utility>

#include "models/ctr_data.hpp"

namespace ctr {

inline double probability_of(float logit) { return 1 / (1 + std::exp(-static_cast<double>(logit))); }

/// Throws a failure where a line can't be written.
class output_file {
 public:
  /// @param path  empty: the standard output
  explicit output_file(std::string path) : path_(std::move(path)) {
    file_ = path_.empty() ? stdout : std::fopen(path_.c_str(), "we");
    if (file_ == nullptr) throw failure("cannot write " + path_);
  }
  ~output_file() {
    if (file_ != nullptr && !path_.empty()) std::fclose(file_);
  }
  output_file(const output_file&) = delete;
  output_file& operator=(const output_file&) = delete;

  void number(double value) {
    if (std::fprintf(file_, "%.9g\n", value) < 0) throw_unwritten();
  }
  void line(const std::string& text) {
    if (std::fprintf(file_, "%s\n", text.c_str()) < 0) throw_unwritten();
  }
  void close() {
    std::FILE* const file = std::exchange(file_, nullptr);
    if (std::fflush(file) != 0 || (!path_.empty() && std::fclose(file) != 0)) throw_unwritten();
  }

 private:
  [[noreturn]] void throw_unwritten() const {
    throw failure("cannot write " + (path_.empty() ? "the standard output" : path_));
  }

  std::string path_;
  std::FILE* file_ = nullptr;
};

}  // namespace ctr
