// A second unit with kernels of the library, linked with the first.
#include <deeprec/embedding/lookup/lookup.cuh>

#include <doctest/doctest.h>

using namespace deeprec;

TEST_CASE("device: an empty output enqueues nothing, and what the host can see is refused at once") {
  cuda_stream stream;
  using bags = jagged_view<std::int64_t, std::int32_t, device_space>;
  const std::byte rows[5 * 16] = {};  // never read
  const const_table_view<f32_rows, device_space> table(rows, 5, f32_rows(4));
  const matrix_view<float, device_space> none(nullptr, 0, 4);
  CHECK(lookup(stream, table, bags(nullptr, 0, nullptr, 0), combiner::sum, none).ok());
  CHECK(lookup(stream, table, bags(nullptr, 0, nullptr, 3), combiner::sum, none).code() ==
        errc::shape_mismatch);
  CHECK(lookup(stream, table, bags(nullptr, 0, nullptr, 0), pooling{combiner::sum, empty_bag::default_row{5}},
               none)
            .code() == errc::id_out_of_range);
  CHECK(stream.synchronize().ok());
}
