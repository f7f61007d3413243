// Two tables: one that owns its rows, and one that is a view of the caller's memory.
#include <deeprec/deeprec.hpp>

#include <cstdio>
#include <vector>
using namespace deeprec;

int main() {
  thread_pool pool;
  dense_table<f32_rows> items(1000, 16, state_of<adagrad>);  // rows, width, and room for Adagrad's state
  items.initialize(pool, row_init::uniform{.seed = 42, .bound = 0.1F});
  std::printf("items: %ld rows of %ld, %zu bytes\n", items.rows(), items.width(), items.bytes());

  dense_table<bf16_rows> small(1000, 16);  // 2 bytes for a value; all zero until initialize()
  std::printf("small: %zu bytes\n", small.bytes());

  std::vector<float> weights(100 * 8, 0.25F);  // a framework's matrix (100, 8)
  const table_view<f32_rows> users = as_table(matrix_view(weights.data(), 100, 8));  // no copy

  std::vector<float> out(2 * 8);
  const std::vector<std::int64_t> ids{3, 99};
  gather(pool, users, array_view(ids.data(), 2), matrix_view(out.data(), 2, 8)).or_throw();
  std::printf("users: row 99 begins with %.2f\n", out[8]);
}
