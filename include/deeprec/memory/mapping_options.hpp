// How mapped memory gets its pages, and what it got: of mapped_resource and mapped_file.
#pragma once

#include <cstddef>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Options of mapped memory.
struct mapping_options {
  enum class pages : unsigned char {
    ordinary,
    huge,  ///< of 2 MB where there are any: RAM; tmpfs mounted with huge=always; fsdax; DAX devices
  };
  enum class faults : unsigned char {
    at_first_use,
    at_once,  ///< when it is mapped; a page that can't be had is a fault then
  };
  pages size = pages::huge;
  faults when = faults::at_first_use;
};

/// Mapped memory, in bytes.
struct mapped_report {
  std::size_t mapped = 0;
  std::size_t resident = 0;  ///< of these, touched
  std::size_t huge = 0;      ///< of these, on huge pages right now
  std::size_t direct = 0;    ///< of what is mapped: persistent memory without a page cache (DAX)
};

}}  // namespace deeprec::DEEPREC_ABI
