// The ops of linear_regression.hpp on a device: products by gemm(), the rest by two small kernels.
#pragma once

// Eigen stays on the host: its functions for the device bring warnings.
#ifndef EIGEN_NO_CUDA
#  define EIGEN_NO_CUDA 1
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include <deeprec/dense/gemm/cuda_cublaslt_gemm.hpp>
#include <deeprec/memory/cuda_memory.hpp>
#include <deeprec/plan/cuda_stream_pool.hpp>

#include "linear_regression.hpp"

namespace linear_regression {

/// error = scale (z - target), z the sum of the inputs' products and the bias.
static __global__ void take_error(const float* products, int inputs, const float* bias, const float* target,
                                  index_t samples, float scale, float* error) {
  for (index_t s = index_t{blockIdx.x} * blockDim.x + threadIdx.x; s < samples;
       s += index_t{gridDim.x} * blockDim.x) {
    float z = *bias;
    for (int i = 0; i < inputs; ++i) z += products[i * samples + s];
    error[s] = scale * (z - target[s]);
  }
}

/// bias += sum of error. One block, always in the same order.
static __global__ void add_to_bias(const float* error, index_t samples, float* bias) {
  __shared__ float sums[256];
  float sum = 0;
  for (index_t s = threadIdx.x; s < samples; s += 256) sum += error[s];
  sums[threadIdx.x] = sum;
  for (unsigned half = 128; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) *bias += sums[0];
}

class model {
 public:
  model(int inputs, index_t samples, index_t width)
      : inputs_(inputs),
        samples_(samples),
        width_(width),
        products_(count(inputs * samples)),
        error_(count(samples)),
        target_(count(samples)),
        bias_(1) {
    // The answer: every weight is 1 / sqrt(all weights), the bias 1 / 2.
    std::mt19937 random(7);
    const float weight = 1 / std::sqrt(static_cast<float>(inputs * width));
    host_target_.assign(count(samples), 0.5F);
    for (int i = 0; i < inputs; ++i) {
      std::vector<float> x(count(samples * width));
      for (std::size_t k = 0; k < x.size(); ++k) {
        x[k] = static_cast<float>(random() % 2001) / 1000.0F - 1;
        host_target_[k / count(width)] += weight * x[k];
      }
      x_.emplace_back(x.size());
      x_.back().copy_from(x).or_throw();
      host_x_.push_back(std::move(x));
      w_.emplace_back(count(width));
    }
    target_.copy_from(host_target_).or_throw();
    reset();
  }

  /// Weights and bias are zero again.
  void reset() {
    for (auto& w : w_) w.copy_from(std::vector<float>(count(width_))).or_throw();
    bias_.copy_from(std::vector<float>(1)).or_throw();
    deeprec::cuda_status(cudaDeviceSynchronize()).or_throw();
  }

  /// Enqueues one op.
  deeprec::status launch(const op& which, deeprec::cuda_stream& on) {
    using deeprec::gemm_operand, deeprec::gemm_output;
    const auto i = count(which.input);
    switch (which.kind) {
      case op::multiply: {
        const deeprec::matrix_view<float, deeprec::device_space> product(
            products_.data() + which.input * samples_, samples_, 1);
        return deeprec::gemm(on, {}, x_[i].matrix(samples_, width_), w_[i].matrix(width_, 1), product);
      }
      case op::update:
        return deeprec::gemm(on, {.a = gemm_operand::transposed, .c = gemm_output::accumulate},
                             x_[i].matrix(samples_, width_), error_.matrix(samples_, 1),
                             w_[i].matrix(width_, 1));
      case op::error:
        return start(take_error, std::min<index_t>((samples_ + 255) / 256, 1024), on, products_.data(),
                     inputs_, bias_.data(), target_.data(), samples_, scale(), error_.data());
      case op::bias:
        return start(add_to_bias, 1, on, error_.data(), samples_, bias_.data());
    }
    return {deeprec::errc::invalid_value, "no such op"};
  }

  /// Compares with the same steps from zero on the host, in double; empty when nothing is wrong.
  std::string fault(int steps) const {
    std::vector<std::vector<double>> w(count(inputs_), std::vector<double>(count(width_)));
    double bias = 0;
    std::vector<double> error(count(samples_));
    for (int step = 0; step < steps; ++step) {
      for (std::size_t s = 0; s < error.size(); ++s) {
        double z = bias;
        for (std::size_t i = 0; i < w.size(); ++i) {
          const float* const row = host_x_[i].data() + s * count(width_);
          for (std::size_t k = 0; k < w[i].size(); ++k) z += static_cast<double>(row[k]) * w[i][k];
        }
        error[s] = static_cast<double>(scale()) * (z - static_cast<double>(host_target_[s]));
      }
      for (std::size_t s = 0; s < error.size(); ++s) {
        bias += error[s];
        for (std::size_t i = 0; i < w.size(); ++i) {
          const float* const row = host_x_[i].data() + s * count(width_);
          for (std::size_t k = 0; k < w[i].size(); ++k) w[i][k] += static_cast<double>(row[k]) * error[s];
        }
      }
    }
    const auto differs = [](float is, double should) {
      return !(std::fabs(static_cast<double>(is) - should) <= 1e-4 * (std::fabs(should) + 0.01));
    };
    std::vector<float> got(count(width_));
    for (std::size_t i = 0; i < w.size(); ++i) {
      w_[i].copy_to(got).or_throw();
      deeprec::cuda_status(cudaDeviceSynchronize()).or_throw();
      for (std::size_t k = 0; k < got.size(); ++k) {
        if (differs(got[k], w[i][k])) {
          return "wrong answer: weight " + std::to_string(k) + " of input " + std::to_string(i);
        }
      }
    }
    got.resize(1);
    bias_.copy_to(got).or_throw();
    deeprec::cuda_status(cudaDeviceSynchronize()).or_throw();
    return differs(got[0], bias) ? "wrong answer: bias" : "";
  }

 private:
  template <class Int>
  static std::size_t count(Int n) {
    return static_cast<std::size_t>(n);
  }
  template <class... Parameters>
  static deeprec::status start(void (*kernel)(Parameters...), index_t blocks, deeprec::cuda_stream& on,
                               std::type_identity_t<Parameters>... arguments) {
    cudaLaunchConfig_t shape{};
    shape.gridDim = dim3(static_cast<unsigned>(blocks));
    shape.blockDim = dim3(256);
    shape.stream = on.get();
    return deeprec::cuda_status(cudaLaunchKernelEx(&shape, kernel, arguments...));
  }
  float scale() const { return -0.1F * 2 / static_cast<float>(samples_); }

  int inputs_;
  index_t samples_, width_;
  std::vector<std::vector<float>> host_x_;
  std::vector<float> host_target_;
  std::vector<deeprec::device_array<float>> x_, w_;
  deeprec::device_array<float> products_, error_, target_, bias_;
};

}  // namespace linear_regression
