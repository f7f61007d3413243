// Four bags of ids in the three forms that a batch has, and what the lookup makes of each.
#include <deeprec/deeprec.hpp>

#include <cstdio>
#include <vector>
using namespace deeprec;

int main() {
  inline_executor here;  // the calling thread alone
  dense_table<f32_rows> table(10, 1);
  table.initialize(here, [](index_t row, float* values, index_t) { values[0] = float(row); });
  std::vector<float> out(4);
  const auto print = [&](const char* what, auto bags) {
    lookup(here, table.view(), bags, combiner::sum, matrix_view(out.data(), 4, 1)).or_throw();
    std::printf("%-8s %4.1f %4.1f %4.1f %4.1f\n", what, out[0], out[1], out[2], out[3]);
  };

  const std::vector<std::int64_t> offsets{0, 3, 5, 5, 6}, ids{7, 1, 9, 4, 4, 8};  // {7 1 9} {4 4} {} {8}
  print("offsets", jagged_view(offsets.data(), 4, ids.data(), 6));

  const std::vector<float> weights{.5, 1, 1, 1, 2, 1};
  print("weights", jagged_view(offsets.data(), 4, ids.data(), 6, weights.data()));

  const std::vector<std::int32_t> one_each{7, 1, 9, 4};  // a bag each: no offsets
  print("fixed", fixed_hotness_view(one_each.data(), 4, 1));
}
