// Options of save_tables and load_tables.
#pragma once

#include <memory_resource>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

struct save_options {
  index_t block_bytes = index_t{4} << 20;  ///< unit of writing and of checksums
  std::pmr::memory_resource* memory = std::pmr::get_default_resource();
};

struct load_options {
  /// When load_tables checks the rows.
  enum class check_at : unsigned char {
    before,   ///< the whole file first, then it is read again: a bad file leaves the tables as they are
    on_read,  ///< each block as it is read: one pass less, but a bad file leaves half-loaded tables
  };

  /// Handling of tables that are in the file but not passed to load_tables.
  enum class unknown : unsigned char { refuse, ignore };

  check_at check = check_at::before;
  unknown others = unknown::refuse;
  std::pmr::memory_resource* memory = std::pmr::get_default_resource();
};

}}  // namespace deeprec::DEEPREC_ABI
