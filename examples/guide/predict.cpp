// Predicts clicks with a model from a file, here one that was saved untrained: a table of users, and a stack.
#include <deeprec/deeprec.hpp>

#include <cstdio>
#include <vector>
using namespace deeprec;

int main() {
  thread_pool pool;
  dense_table<f32_rows> users(1000, 8);
  mlp<> net({8, 16, 1}, 7);
  users.initialize(pool, row_init::uniform{.seed = 1, .bound = 1});
  save_tables("clicks.drt",
              {name_table("users", users.view()), name_table("net", as_table(net.parameters()))})
      .or_throw();

  dense_table<f32_rows> rows(1000, 8);
  mlp<> stack({8, 16, 1});
  load_tables("clicks.drt",
              {name_table("users", rows.view()), name_table("net", as_table(stack.parameters()))})
      .or_throw();
  const std::vector<std::int64_t> offsets{0, 1, 2, 4}, ids{12, 345, 6, 789};  // of three requests
  std::vector<float> pooled(3 * 8);
  const matrix_view<float> input(pooled.data(), 3, 8);
  lookup(pool, rows.view(), jagged_view(offsets.data(), 3, ids.data(), 4), combiner::mean, input).or_throw();
  stack.forward(pool, input).or_throw();
  for (index_t b = 0; b < 3; ++b) std::printf("request %ld: %.3f\n", b, sigmoid(stack.output()(b, 0)));
  std::remove("clicks.drt");
}
