// The sparse lookups of a model op by op, as DeepRec's graph has them without its fusion: of each table
// prune, fill, gather all rows, combine.
//
// The ops are this library's own verbs: what is measured against them is the fusion, not other kernels. They
// are given the exact number of ids that pruning leaves, which a framework would have to read back from the
// device.
#pragma once

#include <span>
#include <vector>

#include "data.cuh"

namespace gpu_suite {

class op_by_op {
 public:
  op_by_op(const std::vector<table>& sources, index_t bags, index_t most_ids);
  /// entries[t]: ids of table t that are valid. out (bags, sum of D).
  deeprec::status run(deeprec::cuda_stream& on, std::span<const index_set::bags_type> batch,
                      std::span<const index_t> entries, deeprec::matrix_view<float, device_space> out);

 private:
  const std::vector<table>* sources_;
  index_t bags_;
  device_array<index_t> offsets_, filled_offsets_, row_numbers_;
  device_array<std::int64_t> ids_, filled_ids_;
  device_array<std::uint8_t> empty_;
  device_array<float> gathered_;
};

}  // namespace gpu_suite
