// 26 tables, looked up in one call and trained with Adagrad in one call.
#include <deeprec/deeprec.hpp>

#include <cstdio>
#include <vector>
using namespace deeprec;

int main() {
  thread_pool pool;
  std::vector<dense_table<f32_rows>> tables;
  feature_group<adagrad> group;  // feature_group<> for lookups only
  for (std::uint64_t t = 0; t < 26; ++t) {
    tables.emplace_back(1000, 16, state_of<adagrad>).initialize(pool, row_init::uniform{.seed = t});
    group.add(tables.back().view(), combiner::sum);
  }
  const std::vector<std::int64_t> offsets{0, 2, 3}, ids{7, 999, 123};  // bags {7, 999} {123}
  const std::vector<jagged_view<>> bags(26, jagged_view(offsets.data(), 2, ids.data(), 3));  // of each table
  const index_t width = group.total_width();  // the pooled rows of all tables side by side
  std::vector<float> out(2 * width), gradient(2 * width);
  std::printf("%ld features, %ld columns; feature 25 begins at %ld\n", group.features(), width,
              group.offset(25));
  for (int step = 1; step <= 3; ++step) {
    const auto rows = resolve(pool, group, bags).or_throw();  // checks the ids once for both calls
    lookup(pool, rows, matrix_view(out.data(), 2, width)).or_throw();
    float loss = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {  // of the outputs' distances from 1
      gradient[i] = out[i] - 1;
      loss += gradient[i] * gradient[i] / 2;
    }
    update(pool, rows, matrix_view(gradient.data(), 2, width), adagrad{.learning_rate = 0.5F}).or_throw();
    std::printf("step %d: loss %.0f\n", step, loss);
  }
}
