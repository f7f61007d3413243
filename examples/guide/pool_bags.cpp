// One batch, pooled in four ways. The batch has ids that the table does not have.
#include <deeprec/deeprec.hpp>

#include <cstdio>
#include <vector>
using namespace deeprec;

int main() {
  thread_pool pool;
  dense_table<f32_rows> table(10, 2);
  table.initialize(pool, [](index_t row, float* values, index_t) { values[0] = float(row), values[1] = 1; });
  const std::vector<std::int64_t> offsets{0, 3, 4, 4}, ids{2, 4, 77, -1};  // bags {2 4 77} {-1} {}
  const jagged_view bags(offsets.data(), 3, ids.data(), 4);
  std::vector<float> out(3 * 2);
  const matrix_view<float> rows(out.data(), 3, 2);
  const auto print = [&](const char* what, const status& s) {
    std::printf("%s: %s\n ", what, s.message().c_str());
    for (int b = 0; b < 3; ++b) std::printf(" (%.1f %.1f)", rows(b, 0), rows(b, 1));
    std::printf("\n");
  };

  print("check", lookup(pool, table.view(), bags, combiner::sum, rows));
  index_t skipped = 0;
  print("skip", lookup(pool, table.view(), bags, pooling{combiner::sum, bounds::skip(skipped)}, rows));
  std::printf("  %ld ids skipped\n", skipped);
  const pooling mean{combiner::mean, bounds::skip, padding::prune, empty_bag::default_row{9}};
  print("mean", lookup(pool, table.view(), bags, mean, rows));
  print("max", lookup(pool, table.view(), bags, pooling{combiner::max, bounds::skip}, rows));
}
