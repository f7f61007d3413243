// The other side of the lookup suite: no header of deeprec is included here or in the .cpp files.
#pragma once

#include <cstdint>

struct plain_batch {
  const std::int64_t* offsets;
  const std::int64_t* ids;
  std::int64_t bags;
};

struct gather_plan {
  const char* table;
  std::int64_t row_bytes;
  const std::int64_t* ids;
  std::int64_t count;
  std::int64_t distance;    // rows to prefetch ahead; 0: none
  int into;                 // what prefetches fill: 3 every cache, 2 from the second level on, 0 non-temporal
  char* out;                // rows are copied here one after the other; null: they are read only
  std::int64_t stride = 0;  // bytes from a row to the next; 0: row_bytes
  bool once = false;        // no row touches more lines than its size requires: none is prefetched twice
};

namespace o2 {
void plain_sum(const float* table, std::int64_t width, const plain_batch& batch, float* out);
float gather(const gather_plan& plan);
}  // namespace o2
namespace native {
void plain_sum(const float* table, std::int64_t width, const plain_batch& batch, float* out);
float gather(const gather_plan& plan);
}  // namespace native
