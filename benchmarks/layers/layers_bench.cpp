// Layers, forward and backward, f32, on one thread.
//
//   layers/interaction/d:16     DLRM's dot interaction, 2048 samples, 27 vectors
//
//   speedup     the op-by-op Eigen formulation over ours, the faster of two builds
//   share       the limit over ours: the products at the rate of a packed product of 1024^3 in the same
//               round, or a memcpy of as many bytes as must move, whichever takes longer
//   gflops      of the full products, forward and backward
//
// Answers are compared before anything is timed.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <deeprec/dense/dot_interaction.hpp>
#include <deeprec/dense/gemm.hpp>
#include <deeprec/dense/gemm_weights.hpp>
#include <deeprec/exec/inline_executor.hpp>

#include "layers/baseline.hpp"
#include "support/add.hpp"
#include "support/figures.hpp"
#include "support/machine.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bench;
namespace baseline = layers_baseline;

constexpr inline_executor here;

std::vector<float> normal(index_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> draw;
  std::vector<float> made(static_cast<std::size_t>(count));
  for (float& x : made) x = draw(random);
  return made;
}

/// The rate of one packed product.
class packed_rate {
 public:
  packed_rate() : x_(normal(size * size, 1)), w_(normal(size * size, 2)), y_(x_.size()), weights_(view(w_)) {}

  /// Seconds of so many operations at the rate of a product made now.
  double seconds_of_flops(double flops) {
    const double seconds = seconds_of([&] {
      const gemm_desc desc{.b = gemm_operand::transposed};
      benchmark::DoNotOptimize(
          gemm(here, desc, view(x_), weights_, matrix_view<float>(y_.data(), size, size)).ok());
    });
    return flops * seconds / (2.0 * size * size * size);
  }

 private:
  static constexpr index_t size = 1024;
  static matrix_view<const float> view(const std::vector<float>& of) { return {of.data(), size, size}; }

  std::vector<float> x_, w_, y_;
  gemm_weights weights_;
};

/// Seconds of a memcpy that reads and writes so many bytes, half of them each.
class copied {
 public:
  explicit copied(std::size_t moved) : from_(moved / 2, 1), to_(moved / 2, 2) {}
  double seconds() {
    return seconds_of([&] {
      std::memcpy(to_.data(), from_.data(), to_.size());
      benchmark::ClobberMemory();
    });
  }

 private:
  std::vector<char> from_, to_;
};

bool close(const float* ours, const float* theirs, std::size_t count, double bound) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto a = static_cast<double>(ours[i]), b = static_cast<double>(theirs[i]);
    if (!(std::abs(a - b) <= bound * (1 + std::abs(b)))) return false;
  }
  return true;
}

void interaction(benchmark::State& state, const std::string& name, index_t width) {
  constexpr index_t samples = 2048, tables = 26, count = tables + 1;
  const index_t wide = dot_interaction_width(count, width);
  const std::vector<float> dense = normal(samples * width, 1), pooled = normal(samples * tables * width, 2);
  const std::vector<float> gradient = normal(samples * wide, 3);
  std::vector<float> vectors(static_cast<std::size_t>(samples * count * width)),
      products(static_cast<std::size_t>(samples * count * count));
  std::vector<float> out(gradient.size()), to_dense(dense.size()), to_pooled(pooled.size());
  std::vector<float> their_out(out.size()), their_gradients(vectors.size());
  for (index_t b = 0; b < samples; ++b) {
    float* const to = vectors.data() + b * count * width;
    std::copy_n(pooled.data() + b * tables * width, tables * width,
                std::copy_n(dense.data() + b * width, width, to));
  }
  const matrix_view<const float> v0(dense.data(), samples, width), v(pooled.data(), samples, tables * width);
  const auto ours = [&] {
    const bool ok =
        dot_interaction_forward(here, v0, v, matrix_view<float>(out.data(), samples, wide)).ok() &&
        dot_interaction_backward(here, v0, v, matrix_view<const float>(gradient.data(), samples, wide),
                                 matrix_view<float>(to_dense.data(), samples, width),
                                 matrix_view<float>(to_pooled.data(), samples, tables * width))
            .ok();
    benchmark::DoNotOptimize(ok);
  };
  const auto theirs = [&](auto forward, auto backward) {
    return [&, forward, backward] {
      forward(vectors.data(), samples, count, width, products.data(), their_out.data());
      backward(vectors.data(), gradient.data(), samples, count, width, products.data(),
               their_gradients.data());
      benchmark::ClobberMemory();
    };
  };
  const auto o2 = theirs(baseline::o2::eigen_interaction, baseline::o2::eigen_interaction_backward);
  const auto native =
      theirs(baseline::native::eigen_interaction, baseline::native::eigen_interaction_backward);
  ours();
  for (int build = 0; build < 2; ++build) {
    build == 0 ? o2() : native();
    bool right = close(out.data(), their_out.data(), out.size(), 1e-4);
    for (index_t b = 0; b < samples; ++b) {
      const float* const at = their_gradients.data() + b * count * width;
      right = right && close(to_dense.data() + b * width, at, static_cast<std::size_t>(width), 1e-4) &&
              close(to_pooled.data() + b * tables * width, at + width,
                    static_cast<std::size_t>(tables * width), 1e-4);
    }
    if (!right) return state.SkipWithError("wrong answer: the op-by-op form gives others");
  }
  const double flops = 4.0 * static_cast<double>(samples * count * count * width);
  // Inputs twice, the output and its gradient, the gradients of the inputs.
  const std::size_t floats = 3 * (dense.size() + pooled.size()) + 2 * out.size();
  packed_rate rate;
  copied copy(floats * sizeof(float));
  for (auto _ : state) {
    figures f(name);
    f.sample([&] {
      const double seconds = f.pair("speedup", "o2", ours, o2).first;
      f.pair("speedup", "native", ours, native);
      const double of_products = rate.seconds_of_flops(flops), of_copy = copy.seconds();
      f.add("share", std::max(of_products, of_copy) / seconds);
      f.note("us_per_call", seconds * 1e6);
      f.note("gflops", flops / seconds / 1e9);
      f.note("products_us", of_products * 1e6);
      f.note("copy_us", of_copy * 1e6);
    });
    f.report(state);
  }
}

const bool registered = [] {
  for (const index_t width : {16, 64}) {
    add("layers/interaction/d:" + std::to_string(width),
        [width](benchmark::State& state, const std::string& name) { interaction(state, name, width); });
  }
  return true;
}();

}  // namespace
