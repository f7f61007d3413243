// Dense tensors of many ranks, and what one process makes of them: the same bits at every rank.
#pragma once

#include <deeprec/core/hash.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/apply_row.hpp>
#include <deeprec/optim/row_optimizer.hpp>
#include <deeprec/sharding/dense_step.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "support/seed.hpp"

namespace deeprec_test {

using namespace deeprec;

struct dense_size {
  index_t rows, width;
};
/// Some have fewer floats than there are ranks, or none.
inline const std::vector<dense_size> dense_sizes = {{3, 5},  {1, 1}, {0, 4},   {17, 13}, {1, 130}, {5, 0},
                                                    {40, 3}, {1, 2}, {64, 16}, {2, 33},  {1, 3},   {0, 0}};

/// How a rank says that gradients are ready.
enum class readiness { reversed, forward, some, never };

/// The parameters and gradients of a rank.
struct dense_memory {
  explicit dense_memory(const std::vector<dense_size>& sizes) : sizes_(&sizes) {
    std::uint64_t k = 0;
    for (const dense_size& s : sizes) {
      parameters.emplace_back();
      gradients.emplace_back(static_cast<std::size_t>(s.rows * s.width));
      for (index_t i = 0; i < s.rows * s.width; ++i)
        parameters.back().push_back(static_cast<float>(static_cast<int>(mix64(k++) % 2001) - 1000) / 999.0F);
    }
  }
  [[nodiscard]] std::vector<dense_tensor> tensors() {
    std::vector<dense_tensor> all;
    for (std::size_t t = 0; t < sizes_->size(); ++t) {
      const auto [rows, width] = (*sizes_)[t];
      all.push_back({{parameters[t].data(), rows, width}, {gradients[t].data(), rows, width}});
    }
    return all;
  }
  // The gradients of a rank in a step.
  void draw(int rank, index_t step) {
    std::uint64_t k = seed() + static_cast<std::uint64_t>((rank + 1) * 1'000'000 + step * 100'000);
    for (auto& tensor : gradients) {
      for (float& g : tensor) g = static_cast<float>(static_cast<int>(mix64(k++) % 2001) - 1000) / 777.0F;
    }
  }

  std::vector<std::vector<float>> parameters, gradients;

 private:
  const std::vector<dense_size>* sizes_;
};

/// A mistake in what one process does, which must be seen.
enum class dense_mistake { none, rank_lost, other_order, element_lost };

template <class Optimizer>
struct dense_trial {
  int ranks;
  Optimizer optimizer;
  dense_mistake mistake = dense_mistake::none;
  std::vector<dense_size> sizes = dense_sizes;
  index_t steps = 3;
  std::vector<std::vector<std::vector<float>>> expected{};  // [step][tensor]

  void expect() {
    dense_memory at(sizes);
    std::vector<std::vector<float>> state;
    for (const dense_size& s : sizes)
      state.emplace_back(static_cast<std::size_t>(s.rows * state_floats_of<Optimizer>(s.width)));
    Optimizer by = optimizer;
    for (index_t step = 0; step < steps; ++step) {
      dense_memory sum(sizes);
      for (int r = 0; r < ranks; ++r) {
        dense_memory mine(sizes);
        const int rank = mistake == dense_mistake::other_order ? ranks - 1 - r : r;
        mine.draw(rank, step);
        for (std::size_t t = 0; t < sizes.size(); ++t) {
          for (std::size_t k = 0; k < sum.gradients[t].size(); ++k) {
            float& g = sum.gradients[t][k];
            if (mistake == dense_mistake::rank_lost && rank == 1) continue;
            if (mistake == dense_mistake::element_lost && rank == 1 && t == 3 && k == 20) continue;
            g = r == 0 ? mine.gradients[t][k] : g + mine.gradients[t][k];
          }
        }
      }
      inline_executor here;
      for (std::size_t t = 0; t < sizes.size(); ++t) {
        const auto [rows, width] = sizes[t];
        apply_rows(here, matrix_view<const float>(sum.gradients[t].data(), rows, width), by,
                   matrix_view<float>(at.parameters[t].data(), rows, width),
                   matrix_view<float>(state[t].data(), rows, state_floats_of<Optimizer>(width)))
            .or_throw();
      }
      next_step(by);
      expected.push_back(at.parameters);
    }
  }
  /// Whether this rank has the bits of one process after each step.
  template <class Sums = sums::in_order_t, class Comm>
  bool same_at(Comm comm, const dense_options& options, readiness how) const {
    const int me = comm.rank();
    dense_memory mine(sizes);
    const std::vector<dense_tensor> tensors = mine.tensors();
    auto made = dense_step<Optimizer, Comm, Sums>::make(std::move(comm), tensors, options);
    if (!made) MESSAGE(made.fault().message());
    if (!made) return false;
    auto& dense = made.value();
    Optimizer by = optimizer;
    thread_pool pool(2);
    const auto count = static_cast<index_t>(sizes.size());
    for (index_t step = 0; step < steps; ++step) {
      mine.draw(me, step);
      for (index_t t = 0; t < count && how != readiness::never; ++t) {
        if (how == readiness::some && (t + me) % 3 == 0) continue;
        for (std::uint64_t n = mix64(static_cast<std::uint64_t>(t * 8 + me)) % 30; n > 0; --n)
          std::this_thread::yield();
        if (!dense.ready(how == readiness::reversed ? count - 1 - t : t)) return false;
      }
      const status s = dense.step(pool, by);
      if (!s) MESSAGE(s.message());
      if (!s) return false;
      next_step(by);
      for (std::size_t t = 0; t < sizes.size(); ++t) {
        const auto& is = mine.parameters[t];
        const auto& must_be = expected[static_cast<std::size_t>(step)][t];
        if (!is.empty() && std::memcmp(is.data(), must_be.data(), is.size() * sizeof(float)) != 0)
          return false;
      }
    }
    return true;
  }
};

}  // namespace deeprec_test
