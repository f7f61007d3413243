// The other side of the fused_lookup suite: no header of deeprec is included here or in the .cpp files.
#pragma once

#include <cstdint>

/// One feature as TensorFlow hands it on: N entries (row, id) of B rows, and a table of `width` floats a
/// row.
struct sparse_feature {
  const std::int64_t* rows;
  const std::int64_t* ids;
  std::int64_t entries;
  std::int64_t batch;
  const float* table;
  std::int64_t width;
  const float* weights;  // null: all 1
};

// Op by op, each a pass with its buffers, which are kept from call to call: prune invalid ids and weights,
// fill empty rows, unique, gather the unique rows, sum by row. The mean of each bag, or the weighted one,
// goes to out (batch, width). Entries may come in any order; those of a bag keep theirs.
namespace o2 {
void op_by_op_mean(const sparse_feature& feature, float* out);
}
namespace native {
void op_by_op_mean(const sparse_feature& feature, float* out);
}
