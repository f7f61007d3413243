// The roofline of the table_group suite: no header of deeprec is included here or in the .cpp files.
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

namespace o2 {
void gather_64_bytes(const one_hot_gather& plan);
}
namespace native {
void gather_64_bytes(const one_hot_gather& plan);
}
