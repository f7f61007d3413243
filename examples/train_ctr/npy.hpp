// Matrices as .npy files, which NumPy and what reads its format load without a copy.
//
//   npy_file file(folder / "labels.npy", 1);     (rows, 1), float or std::int32_t
//   file.add(row);  ...  file.close();
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <type_traits>

#include <deeprec/core/dtypes.hpp>

#include "output_file.hpp"

namespace ctr {

/// Rows of T, written one by one. Throws a failure where they can't be written.
template <class T>
class npy_file {
 public:
  npy_file(const std::filesystem::path& path, index_t columns) : columns_(columns), file_(path) {
    write_header();  // its length does not depend on the number of rows
  }

  void add(const T* row) {
    ++rows_;
    file_.write({reinterpret_cast<const char*>(row), sizeof(T) * static_cast<std::size_t>(columns_)});
  }
  void close() {
    file_.rewind();
    write_header();
    file_.close();
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
    file_.write({text, bytes});
  }

  index_t columns_, rows_ = 0;
  output_file file_;
};

}  // namespace ctr
