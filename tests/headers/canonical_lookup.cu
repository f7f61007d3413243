// The canonical call of a user: what it costs in kernels and bytes says device_object.cmake.
#include <deeprec/embedding/lookup/lookup.cuh>

using namespace deeprec;

status pool(cuda_stream& stream, const_table_view<f32_rows, device_space> table,
            jagged_view<std::int64_t, std::int64_t, device_space> bags,
            matrix_view<float, device_space> out) {
  return lookup(stream, table, bags, combiner::sum, out);
}
