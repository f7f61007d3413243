// Matrices as .npy files, which NumPy and what reads its format load without a copy.
//
//   npy_file file(folder / "labels.npy", 1);     (rows, 1), float or std::int32_t
//   file.add(row);  ...  file.close();
#pragma once

#include <bit>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/dtypes.hpp>

#include "models/ctr_data.hpp"

namespace ctr {

/// Rows of T, written one by one. Throws a failure where they can't be written.
template <class T>
class npy_file {
 public:
  npy_file(std::filesystem::path path, index_t columns)
      : path_(std::move(path)), columns_(columns), file_(std::fopen(path_.c_str(), "wbe")) {
    write_header();  // its length does not depend on the number of rows
  }
  ~npy_file() {
    if (file_ != nullptr) std::fclose(file_);
  }
  npy_file(const npy_file&) = delete;
  npy_file& operator=(const npy_file&) = delete;

  void add(const T* row) {
    ++rows_;
    write(row, sizeof(T) * static_cast<std::size_t>(columns_));
  }
  void close() {
    if (std::fseek(file_, 0, SEEK_SET) != 0) throw_unwritten();
    write_header();
    if (std::fclose(std::exchange(file_, nullptr)) != 0) throw_unwritten();
  }

 private:
  static_assert(std::endian::native == std::endian::little);
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, std::int32_t> ||
                std::is_same_v<T, std::int64_t>);

  void write_header() {
    constexpr std::size_t bytes = 128;  // of magic, version, length and text
    char text[bytes];
    std::fill_n(text, bytes, ' ');
    const char* const type = std::is_same_v<T, float> ? "<f4" : sizeof(T) == 4 ? "<i4" : "<i8";
    const int length = std::snprintf(
        text, bytes, "%cNUMPY%c%c%c%c{'descr': '%s', 'fortran_order': False, 'shape': (%lld, %lld), }",
        '\x93', 1, 0, static_cast<int>(bytes - 10), 0, type, static_cast<long long>(rows_),
        static_cast<long long>(columns_));
    text[length] = ' ';
    text[bytes - 1] = '\n';
    write(text, bytes);
  }
  void write(const void* from, std::size_t bytes) {
    if (file_ == nullptr || std::fwrite(from, 1, bytes, file_) != bytes) throw_unwritten();
  }
  [[noreturn]] void throw_unwritten() const { throw failure("cannot write " + path_.string()); }

  std::filesystem::path path_;
  index_t columns_, rows_ = 0;
  std::FILE* file_;
};

}  // namespace ctr
