// Dense parameters that each rank has, and their step by hand.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <deeprec/core/hash.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/sharding/dense_tensor.hpp>

namespace deeprec_bench {

inline constexpr float dense_rate = 0.01F;

/// Tensors of a rank: the same parameters everywhere, gradients of its own.
struct dense_tensors {
  dense_tensors(const std::vector<std::size_t>& bytes, int rank) {
    for (const std::size_t b : bytes) {
      parameters.emplace_back(b / sizeof(float));
      gradients.emplace_back(b / sizeof(float));
      for (std::size_t i = 0; i < parameters.back().size(); ++i) {
        parameters.back()[i] = static_cast<float>(i % 97) / 97;
        gradients.back()[i] =
            static_cast<float>(
                static_cast<int>(deeprec::mix64(i * 8 + static_cast<std::size_t>(rank)) % 2001) - 1000) /
            1e5F;
      }
      const auto width = static_cast<deeprec::index_t>(parameters.back().size());
      list.push_back({deeprec::matrix_view<float>(parameters.back().data(), 1, width),
                      deeprec::matrix_view<const float>(gradients.back().data(), 1, width)});
    }
  }
  dense_tensors(const dense_tensors&) = delete;
  dense_tensors& operator=(const dense_tensors&) = delete;

  std::vector<std::vector<float>> parameters, gradients;
  std::vector<deeprec::dense_tensor> list;
};

/// MPI_Allreduce of each tensor, or of all of them in one buffer, and a step of every parameter.
struct by_all_reduce {
  explicit by_all_reduce(dense_tensors& given) : of(given) {
    for (const auto& p : of.parameters) all.resize(all.size() + p.size());
    sums.resize(all.size());
  }
  void step_each() {
    for (std::size_t t = 0; t < of.parameters.size(); ++t) {
      add(of.gradients[t].data(), of.gradients[t].size());
      apply(of.parameters[t], sums.data());
    }
  }
  void step_joined() {
    std::size_t at = 0;
    for (const auto& g : of.gradients)
      std::copy(g.begin(), g.end(), all.data() + std::exchange(at, at + g.size()));
    add(all.data(), all.size());
    at = 0;
    for (auto& p : of.parameters) apply(p, sums.data() + std::exchange(at, at + p.size()));
  }

 private:
  void add(const float* from, std::size_t count) {
    MPI_Allreduce(from, sums.data(), static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
  static void apply(std::vector<float>& p, const float* sum) {
    for (std::size_t i = 0; i < p.size(); ++i) p[i] -= dense_rate * sum[i];
  }

  dense_tensors& of;
  std::vector<float> all, sums;
};

}  // namespace deeprec_bench
