// Updates and stages whose machine code kernels_test.sh looks at.
#include <deeprec/embedding/batches/device_batches.cuh>
#include <deeprec/embedding/lookup/fused_lookup.cuh>
#include <deeprec/embedding/training/update.cuh>
#include <deeprec/optim/optimizers.hpp>
#include <deeprec/optim/wrappers.hpp>

using namespace deeprec;

using bags_type = jagged_view<std::int64_t, std::int64_t, device_space>;
using gradient_type = matrix_view<const float, device_space>;
template <class Format>
using rows_type = table_view<Format, device_space>;

status with_sgd(cuda_stream& on, bags_type bags, gradient_type gradient, rows_type<f32_rows> table) {
  return update(on, table, bags, combiner::sum, gradient, sgd{});
}
status with_momentum(cuda_stream& on, bags_type bags, gradient_type gradient, rows_type<f32_rows> table) {
  return update(on, table, bags, combiner::sum, gradient, momentum{});
}
status with_rowwise_adagrad(cuda_stream& on, bags_type bags, gradient_type gradient,
                            rows_type<f32_rows> table) {
  return update(on, table, bags, combiner::sum, gradient, rowwise_adagrad{});
}
status with_adagrad(cuda_stream& on, bags_type bags, gradient_type gradient, rows_type<f32_rows> table) {
  return update(on, table, bags, combiner::sum, gradient, adagrad{});
}
status with_adam(cuda_stream& on, bags_type bags, gradient_type gradient, rows_type<f32_rows> table) {
  return update(on, table, bags, combiner::sum, gradient, adam{});
}
status with_ftrl(cuda_stream& on, bags_type bags, gradient_type gradient, rows_type<f32_rows> table) {
  return update(on, table, bags, combiner::sum, gradient, ftrl{});
}
status with_wrappers(cuda_stream& on, bags_type bags, gradient_type gradient, rows_type<f32_rows> table) {
  return update(on, table, bags, combiner::sum, gradient,
                clipped_by_norm{with_weight_decay{adam{}, {}}, 1.0F});
}
status with_halves(cuda_stream& on, bags_type bags, gradient_type gradient, rows_type<bf16_rows> table) {
  return update(on, table, bags, pooling{combiner::mean, padding::prune}, gradient, sgd{});
}

status pruned(cuda_stream& on, bags_type bags, jagged_out<std::int64_t, index_t, device_space> out) {
  return prune_invalid(on, bags, prune_rule::by_id, out);
}
status filled(cuda_stream& on, bags_type bags, jagged_out<std::int64_t, std::int32_t, device_space> out,
              array_view<std::uint8_t, device_space> empty) {
  return fill_empty_bags(on, bags, 0, out, empty);
}
status different(cuda_stream& on, array_view<const std::int64_t, device_space> ids,
                 unique_out<std::int64_t, std::int32_t, device_space> out) {
  return unique(on, ids, out);
}
status parted(cuda_stream& on, array_view<const std::int64_t, device_space> ids,
              partition_out<std::int64_t, index_t, device_space> out) {
  return partition(on, ids, 10, 2, partition_strategy::mod, bounds::check, out);
}
status in_any_order(cuda_stream& on, const_table_view<f32_rows, device_space> table,
                    coo_view<std::int64_t, std::int64_t, device_space> entries,
                    matrix_view<float, device_space> out) {
  return fused_lookup(on, table, entries, combiner::sum, out);
}
