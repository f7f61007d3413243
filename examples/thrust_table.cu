// A table that Thrust owns, looked up where it lies.
#include <thrust/device_vector.h>
#include <thrust/sequence.h>

#include <cstdint>
#include <cstdio>
#include <vector>

#include <deeprec/embedding/lookup/lookup.cuh>

int main() {
  using namespace deeprec;
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("SKIPPED: no CUDA device");
    return 77;
  }
  const index_t rows = 1000, width = 4, bags = 2;
  thrust::device_vector<float> weights(rows * width);
  thrust::sequence(weights.begin(), weights.end());  // row r is 4r, 4r + 1, 4r + 2, 4r + 3
  const std::vector<std::int64_t> host_offsets{0, 2, 3}, host_ids{1, 2, 500};
  const thrust::device_vector<std::int64_t> offsets = host_offsets, ids = host_ids;
  thrust::device_vector<float> out(bags * width);

  // Thrust says in its types where memory lies, and so do views.
  const auto table =
      as_table(matrix_view<const float, device_space>(thrust::raw_pointer_cast(weights.data()), rows, width));
  const jagged_view<std::int64_t, std::int64_t, device_space> batch(
      thrust::raw_pointer_cast(offsets.data()), bags, thrust::raw_pointer_cast(ids.data()), 3);
  cuda_stream stream;
  lookup(stream, table, batch, combiner::sum,
         matrix_view<float, device_space>(thrust::raw_pointer_cast(out.data()), bags, width))
      .or_throw();
  stream.synchronize().or_throw();
  for (index_t b = 0; b < bags; ++b) {
    for (index_t j = 0; j < width; ++j)
      std::printf("%g ", static_cast<double>(out[static_cast<std::size_t>(b * width + j)]));
    std::puts("");
  }
  return out[0] == 12.0F && out[4] == 2000.0F ? 0 : 1;
}
