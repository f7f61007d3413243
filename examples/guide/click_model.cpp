// A model of clicks: three embeddings side by side, fully connected layers and the loss, trained end to end.
#include <deeprec/deeprec.hpp>

#include <cstdio>
#include <vector>
using namespace deeprec;

int main() {
  constexpr index_t batch = 256, features = 3, rows = 20, width = 4;
  thread_pool pool;
  dense_table<f32_rows> table(features * rows, width, state_of<rowwise_adagrad>);  // one, for all features
  table.initialize(pool, row_init::uniform{.seed = 1});
  mlp<> net({features * width, 16, 1});
  std::vector<std::int64_t> ids(batch * features);
  std::vector<float> x(batch * features * width), labels(batch), slope(batch);
  const fixed_hotness_view<> bags(ids.data(), batch * features, 1);
  const matrix_view<float> pooled(x.data(), batch * features, width),
      input(x.data(), batch, features * width);
  const matrix_view<float> gradient(slope.data(), batch, 1);
  double loss = 0;
  for (int step = 0; step <= 20; ++step) {
    for (index_t i = 0; i < batch * features; ++i)  // feature i % 3 has its own rows of the table
      ids[i] = i % features * rows + std::int64_t(counter_rng(step).uniform(0, i) * rows);
    for (index_t b = 0; b < batch; ++b) labels[b] = (ids[b * features] + ids[b * features + 1]) % 2;
    lookup(pool, table.view(), bags, combiner::sum, pooled).or_throw();
    net.forward(pool, input).or_throw();
    logistic_loss_forward(pool, net.output(), matrix_view(labels.data(), batch, 1), loss).or_throw();
    logistic_loss_backward(pool, net.output(), matrix_view(labels.data(), batch, 1), gradient).or_throw();
    net.backward(pool, gradient).or_throw();  // also makes net.input_gradient(), (batch, features * width)
    const matrix_view<const float> to_rows(net.input_gradient().data_handle(), batch * features, width);
    update(pool, table.view(), bags, combiner::sum, to_rows, rowwise_adagrad{.learning_rate = 0.1F})
        .or_throw();
    net.step(pool, adagrad{.learning_rate = 0.1F}).or_throw();
    if (step % 10 == 0) std::printf("step %2d: loss %.1f\n", step, loss);
  }
}
