#include "op_by_op.hpp"

#include <deeprec/embedding/batches/device_batches.cuh>
#include <deeprec/embedding/lookup/lookup.cuh>

#include <cstddef>
#include <vector>

using namespace deeprec;

namespace gpu_suite {

op_by_op::op_by_op(const std::vector<table>& sources, index_t bags, index_t most_ids)
    : sources_(&sources),
      bags_(bags),
      offsets_(static_cast<std::size_t>(bags) + 1),
      filled_offsets_(offsets_.size()),
      row_numbers_(static_cast<std::size_t>(most_ids + bags)),
      ids_(static_cast<std::size_t>(most_ids)),
      filled_ids_(row_numbers_.size()),
      empty_(static_cast<std::size_t>(bags)),
      gathered_(row_numbers_.size() * static_cast<std::size_t>(sources[0].format.width())) {
  std::vector<index_t> numbers(row_numbers_.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<index_t>(i);
  row_numbers_.copy_from(numbers).or_throw();
}

status op_by_op::run(cuda_stream& on, std::span<const index_set::bags_type> batch,
                     std::span<const index_t> entries, matrix_view<float, device_space> out) {
  const index_t width = (*sources_)[0].format.width();
  const jagged_out<std::int64_t, index_t, device_space> pruned{offsets_.view(), ids_.view(), {}},
      filled{filled_offsets_.view(), filled_ids_.view(), {}};
  for (std::size_t t = 0; t < sources_->size(); ++t) {
    const auto source = (*sources_)[t].read_only();
    const index_t n = entries[t];
    if (status s = prune_invalid(on, batch[t], prune_rule::by_id, pruned); !s) return s;
    if (status s = fill_empty_bags(on, pruned.view(), 0, filled, empty_.view()); !s) return s;
    using bags_type = jagged_view<std::int64_t, index_t, device_space>;
    const auto rows = gathered_.matrix(n, width);
    if (status s = lookup(on, source, bags_type(filled_offsets_.data(), bags_, filled_ids_.data(), n),
                          combiner::concat, rows);
        !s)
      return s;
    const bags_type numbered(filled_offsets_.data(), bags_, row_numbers_.data(), n);
    const auto columns = out.columns(static_cast<index_t>(t) * width, width);
    if (status s = lookup(on, as_table(rows), numbered, combiner::sum, columns); !s) return s;
  }
  return {};
}

}  // namespace gpu_suite
