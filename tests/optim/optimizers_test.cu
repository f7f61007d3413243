// The functors on the device: begin_row and the steps, one thread for each row, against the same on the host.

#include <deeprec/optim/optimizers.hpp>

#include "support/seed.hpp"

#include <cuda_runtime.h>
#include <doctest/doctest.h>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

using namespace deeprec;

namespace {

// What a device backend does with a prepared optimizer.
template <class O, class Rows>
__global__ void step_rows_kernel(Rows rows, float* weights, const float* gradient, float* state, int width) {
  const auto r = static_cast<int>(threadIdx.x);
  weights += r * width;
  gradient += r * width;
  state += r * (O::row_state + O::element_state * width);
  float mean_square = 0;
  for (int j = 0; j < width; ++j) mean_square += gradient[j] * gradient[j];
  const auto step = rows.begin_row(state, mean_square / static_cast<float>(width));
  float* const elements = state + O::row_state;
  for (int j = 0; j < width; ++j) {
    if constexpr (O::element_state == 0) {
      weights[j] = step(weights[j], gradient[j]);
    } else if constexpr (O::element_state == 1) {
      weights[j] = step(weights[j], gradient[j], elements[j]);
    } else {
      weights[j] = step(weights[j], gradient[j], elements[j], elements[width + j]);
    }
  }
}

__global__ void round_kernel(const float* x, std::uint16_t* to_bf16, std::uint16_t* to_f16,
                             rounding::stochastic how) {
  const auto i = blockIdx.x * blockDim.x + threadIdx.x;
  const std::uint32_t word = how.word(blockIdx.x, threadIdx.x);
  to_bf16[i] = detail::round_with<bf16>(x[i], word).bits;
  to_f16[i] = detail::round_with<f16>(x[i], word).bits;
}

template <class T>
struct managed {
  explicit managed(std::size_t count) : size(count) {
    REQUIRE(cudaMallocManaged(&data, count * sizeof(T)) == 0);
  }
  managed(const managed&) = delete;
  ~managed() { cudaFree(data); }
  T* data = nullptr;
  std::size_t size;
};

template <class O>
double worst_error(O optimizer, bool advance_host = true) {
  constexpr int rows = 32, width = 19, states = O::row_state + O::element_state * width;
  std::mt19937_64 random(deeprec_test::seed());
  std::normal_distribution<float> normal;
  managed<float> weights(rows * width), gradient(rows * width), state(rows * (states + 1));
  std::vector<float> host(rows * width), host_state(rows * (states + 1));
  for (std::size_t i = 0; i < host.size(); ++i) host[i] = weights.data[i] = normal(random);
  for (std::size_t i = 0; i < state.size; ++i) state.data[i] = 0;
  double worst = 0;
  O of_host = optimizer;
  for (int k = 0; k < 10; ++k) {
    for (std::size_t i = 0; i < gradient.size; ++i) gradient.data[i] = normal(random);
    step_rows_kernel<O>
        <<<1, rows>>>(detail::prepare(optimizer), weights.data, gradient.data, state.data, width);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    for (int r = 0; r < rows; ++r) {
      apply_row(of_host, host.data() + r * width, gradient.data + r * width, host_state.data() + r * states,
                width);
    }
    next_step(optimizer);
    if (advance_host) next_step(of_host);
    for (std::size_t i = 0; i < host.size(); ++i) {
      worst =
          std::fmax(worst, std::fabs(static_cast<double>(host[i]) - static_cast<double>(weights.data[i])));
    }
  }
  return worst;
}

}  // namespace

TEST_CASE("optimizers on the device: steps as on the host") {
  CHECK(worst_error(sgd{.learning_rate = 0.1F}) < 1e-5);
  CHECK(worst_error(momentum{.learning_rate = 0.1F}) < 1e-5);
  CHECK(worst_error(adagrad{.learning_rate = 0.1F}) < 1e-5);
  CHECK(worst_error(rowwise_adagrad{.learning_rate = 0.1F}) < 1e-5);
  CHECK(worst_error(adagrad_decay{.learning_rate = 0.1F, .decay_every = 3}) < 1e-5);
  CHECK(worst_error(rmsprop{.epsilon = 1e-3F}) < 1e-5);
  CHECK(worst_error(centered_rmsprop{.epsilon = 1e-2F}) < 1e-4);
  CHECK(worst_error(adam{.learning_rate = 0.1F, .epsilon = 1e-3F}) < 1e-5);
  CHECK(worst_error(rowwise_adam{.learning_rate = 0.1F}) < 1e-5);
  CHECK(worst_error(adam_async{.learning_rate = 0.1F, .epsilon = 1e-3F}) < 1e-5);
  CHECK(worst_error(adam_async_rmsprop{.learning_rate = 0.1F, .epsilon = 1e-3F}) < 1e-5);
  CHECK(worst_error(ftrl{.learning_rate = 0.1F, .learning_rate_power = -0.6F, .l1 = 0.1F}) < 1e-4);
  CHECK(worst_error(adam{.learning_rate = 0.1F}, false) > 1e-3);
}

TEST_CASE("optimizers on the device: stochastic rounding has the bits of the host") {
  constexpr std::uint32_t blocks = 256, threads = 200;
  const rounding::stochastic how{.seed = deeprec_test::seed(), .step = 9};
  std::mt19937_64 random(deeprec_test::seed());
  managed<float> x(blocks * threads);
  managed<std::uint16_t> to_bf16(x.size), to_f16(x.size);
  for (std::size_t i = 0; i < x.size; ++i) {
    x.data[i] = detail::bit_cast_to<float>(static_cast<std::uint32_t>(random()));
  }
  round_kernel<<<blocks, threads>>>(x.data, to_bf16.data, to_f16.data, how);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  int other = 0, of_nearest = 0;
  for (std::uint32_t i = 0; i < x.size; ++i) {
    const std::uint32_t word = how.word(i / threads, i % threads);
    other += to_bf16.data[i] != detail::round_with<bf16>(x.data[i], word).bits;
    other += to_f16.data[i] != detail::round_with<f16>(x.data[i], word).bits;
    of_nearest += to_bf16.data[i] != bf16(x.data[i]).bits;
  }
  CHECK(other == 0);
  CHECK(of_nearest > 1000);
}
