// Fully connected layers with ReLU between them, trained to tell whether two numbers have one sign.
#include <deeprec/deeprec.hpp>

#include <cstdio>
#include <vector>
using namespace deeprec;

int main() {
  thread_pool pool;
  mlp<> net({2, 16, 1});
  std::vector<float> x, labels, slope(256);
  for (int i = 0; i < 256; ++i) {
    x.push_back(i % 16 / 8.F - 0.9F);
    x.push_back(i / 16 / 8.F - 0.9F);
    labels.push_back(x[2 * i] * x[2 * i + 1] > 0 ? 1 : 0);
  }
  const matrix_view<const float> input(x.data(), 256, 2), clicked(labels.data(), 256, 1);
  const matrix_view<float> gradient(slope.data(), 256, 1);
  for (int step = 0; step <= 300; ++step) {
    double loss = 0;
    net.forward(pool, input).or_throw();
    logistic_loss_forward(pool, net.output(), clicked, loss).or_throw();
    logistic_loss_backward(pool, net.output(), clicked, gradient).or_throw();
    net.backward(pool, gradient).or_throw();
    net.step(pool, adagrad{.learning_rate = 0.1F}).or_throw();
    if (step % 100 == 0) std::printf("step %3d: loss %.2f\n", step, loss);
  }
}
