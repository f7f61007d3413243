// The other side of the update suite: no header of deeprec is included here or in the .cpp files.
#pragma once

#include <cstdint>

/// Rows of `floats` floats, `stride` bytes apart, that are read, changed and written, in the order of ids.
struct rewrite_plan {
  char* table;
  std::int64_t stride;
  std::int64_t floats;
  const std::int64_t* ids;
  std::int64_t count;
  std::int64_t distance;  // rows to prefetch ahead; 0: none
  bool into_all;          // prefetches fill every cache; else those from the second level on
};

/// A batch of bags with `hotness` ids each, and the gradient (bags, width) of their sums.
struct unfused_batch {
  const std::int64_t* ids;
  std::int64_t bags;
  std::int64_t hotness;
  const float* gradient;
  std::int64_t width;
};

namespace o2 {
void rewrite(const rewrite_plan& plan);
/// Rowwise Adagrad, op by op: a gradient for each id, unique ids, their sums, and a pass over the rows used.
void unfused_rowwise_adagrad(const unfused_batch& batch, float* table, std::int64_t stride_floats, float rate,
                             float epsilon);
}  // namespace o2
namespace native {
void rewrite(const rewrite_plan& plan);
void unfused_rowwise_adagrad(const unfused_batch& batch, float* table, std::int64_t stride_floats, float rate,
                             float epsilon);
}  // namespace native
