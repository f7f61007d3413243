// A list of tables, looked up in one call: the pooled rows of all tables side by side.
#include <deeprec/deeprec.hpp>

#include <cstdio>
#include <vector>
using namespace deeprec;

int main() {
  thread_pool pool;
  std::vector<dense_table<f32_rows>> tables;
  feature_group group;  // feature_group<adagrad, jagged_view<int, int>>: for update too, 32-bit ids, offsets
  for (std::uint64_t t = 0; t < 26; ++t) {
    tables.emplace_back(1000, 16).initialize(pool, row_init::uniform{.seed = t});
    group.add(tables.back().view(), combiner::sum);
  }
  const std::vector<std::int64_t> offsets{0, 2, 3}, ids{7, 999, 123};  // bags {7, 999} {123}
  const std::vector<jagged_view<>> bags(26, jagged_view(offsets.data(), 2, ids.data(), 3));  // of each table
  std::vector<float> out(2 * group.total_width());
  lookup(pool, group, bags, matrix_view(out.data(), 2, group.total_width())).or_throw();
  std::printf("%ld columns; the last table: %.5f %.5f\n", group.total_width(), out[25 * 16], out[51 * 16]);
}
