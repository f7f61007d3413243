// Lookups whose machine code kernels_test.sh looks at: each format, with the poolings that make other kernels
// of it.
#include <deeprec/embedding/groups/lookup_features.cuh>
#include <deeprec/embedding/lookup/lookup.cuh>
#include <deeprec/embedding/tables/quantized_rows.hpp>
#include <deeprec/embedding/tables/split_bf16_rows.hpp>
#include <deeprec/embedding/training/gradient.cuh>
#include <deeprec/ops/row_select.cuh>

using namespace deeprec;

using bags_type = jagged_view<std::int64_t, std::int64_t, device_space>;
using out_type = matrix_view<float, device_space>;
template <class Format>
using table_type = const_table_view<Format, device_space>;

status f32(cuda_stream& on, table_type<f32_rows> table, bags_type bags, out_type out) {
  return lookup(on, table, bags, combiner::sum, out);
}
status f32_max(cuda_stream& on, table_type<f32_rows> table, bags_type bags, out_type out) {
  return lookup(on, table, bags, combiner::max, out);
}
status f32_pruned(cuda_stream& on, table_type<f32_rows> table, bags_type bags, out_type out) {
  return lookup(on, table, bags, pooling{combiner::mean, padding::prune}, out);
}
status f32_clipped(cuda_stream& on, table_type<f32_rows> table, bags_type bags, out_type out) {
  return lookup(on, table, bags, pooling{combiner::sum, max_norm{1.0F}}, out);
}
status f32_each(cuda_stream& on, table_type<f32_rows> table, bags_type bags, out_type out) {
  return lookup(on, table, bags, combiner::concat, out);
}
status f32_fixed(cuda_stream& on, table_type<f32_rows> table,
                 fixed_hotness_view<std::int64_t, device_space> bags, out_type out) {
  return lookup(on, table, bags, combiner::sum, out);
}
status f16_rows_of(cuda_stream& on, table_type<f16_rows> table, bags_type bags, out_type out) {
  return lookup(on, table, bags, combiner::sum, out);
}
status bf16_rows_of(cuda_stream& on, table_type<bf16_rows> table, bags_type bags, out_type out) {
  return lookup(on, table, bags, combiner::sum, out);
}
status e4m3_rows_of(cuda_stream& on, table_type<e4m3_rows> table, bags_type bags, out_type out) {
  return lookup(on, table, bags, combiner::sum, out);
}
status int8_rows_of(cuda_stream& on, table_type<int8_rows> table, bags_type bags, out_type out) {
  return lookup(on, table, bags, combiner::sum, out);
}
status int4_rows_of(cuda_stream& on, table_type<int4_rows> table, bags_type bags, out_type out) {
  return lookup(on, table, bags, combiner::sum, out);
}
status split_rows_of(cuda_stream& on, table_type<split_bf16_rows> table, bags_type bags, out_type out) {
  return lookup(on, table, bags, combiner::sum, out);
}
status group(cuda_stream& on, const feature_group<lookups_only, bags_type>& tables,
             std::span<const bags_type> bags, out_type out) {
  return lookup(on, tables, bags, out);
}
status of_weights(cuda_stream& on, table_type<f32_rows> table, bags_type bags,
                  matrix_view<const float, device_space> gradient, std::span<float> out) {
  return weight_gradients(on, table, bags, combiner::sum, gradient, out);
}
status select(cuda_stream& on, array_view<const std::uint8_t, device_space> condition,
              matrix_view<const float, device_space> a, matrix_view<const float, device_space> b,
              out_type out) {
  return row_select(on, condition, a, b, out);
}
