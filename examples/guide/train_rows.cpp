// Rows trained with Adagrad, whose state is behind each row: update is the backward pass and the step.
#include <deeprec/deeprec.hpp>

#include <cstdio>
#include <vector>
using namespace deeprec;

int main() {
  thread_pool pool;
  dense_table<f32_rows> table(1000, 16, state_of<adagrad>);
  table.initialize(pool, row_init::normal{.seed = 1});
  const std::vector<std::int64_t> offsets{0, 2, 3}, ids{7, 999, 123};
  const jagged_view bags(offsets.data(), 2, ids.data(), 3);
  std::vector<float> out(2 * 16), gradient(2 * 16);
  for (int step = 1; step <= 3; ++step) {
    lookup(pool, table.view(), bags, combiner::mean, matrix_view(out.data(), 2, 16)).or_throw();
    float loss = 0;
    for (int i = 0; i < 2 * 16; ++i) {  // of the outputs' distances from 1
      gradient[i] = out[i] - 1;
      loss += gradient[i] * gradient[i] / 2;
    }
    update(pool, table.view(), bags, combiner::mean, matrix_view(gradient.data(), 2, 16),
           adagrad{.learning_rate = 0.5F})
        .or_throw();
    std::printf("step %d: loss %.1f\n", step, loss);
  }
}
