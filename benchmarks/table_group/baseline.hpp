// The limits of the table_group suite: no header of deeprec is included here or in the .cpp files.
#pragma once

#include <cstdint>

struct one_hot_gather {
  const char* const* tables;       // one for each feature
  const std::int64_t* const* ids;  // of each feature, `rows` of them
  std::int64_t features;
  std::int64_t rows;
  std::int64_t distance;  // rows to prefetch ahead; 0: none
  bool into_all;          // prefetches fill every cache; else those from the second level on
  char* out;              // (rows, features * row)
};

/// Rows of 17 floats, one behind the other, that are read, changed and written, table by table.
struct one_hot_rewrite {
  char* const* tables;
  const std::int64_t* const* ids;
  std::int64_t features;
  std::int64_t rows;
  std::int64_t distance;
};

namespace o2 {
void gather_64_bytes(const one_hot_gather& plan);
void rewrite_68_bytes(const one_hot_rewrite& plan);
}  // namespace o2
namespace native {
void gather_64_bytes(const one_hot_gather& plan);
void rewrite_68_bytes(const one_hot_rewrite& plan);
}  // namespace native
