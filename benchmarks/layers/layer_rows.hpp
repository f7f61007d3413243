// A row of the suite of layers: forward and backward of ours, the same op by op in two builds, and limits.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/matrix_view.hpp>
#include <deeprec/dense/gemm/gemm.hpp>
#include <deeprec/dense/gemm/gemm_weights.hpp>
#include <deeprec/exec/inline_executor.hpp>

#include "support/figures.hpp"

namespace layers_bench {

using deeprec::index_t;
using deeprec::matrix_view;
using deeprec_bench::figures;
using deeprec_bench::seconds_of;

inline constexpr deeprec::inline_executor here;

inline std::vector<float> normal(index_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> draw;
  std::vector<float> made(static_cast<std::size_t>(count));
  for (float& x : made) x = draw(random);
  return made;
}
inline std::vector<float> zeros(index_t count) { return std::vector<float>(static_cast<std::size_t>(count)); }

inline matrix_view<const float> in(const std::vector<float>& of, index_t rows, index_t columns) {
  return {of.data(), rows, columns};
}
inline matrix_view<float> out(std::vector<float>& of, index_t rows, index_t columns) {
  return {of.data(), rows, columns};
}

/// Whether each is within `bound` (1 + |theirs|) of theirs.
inline bool close(const float* ours, const float* theirs, std::size_t count, double bound) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto a = static_cast<double>(ours[i]), b = static_cast<double>(theirs[i]);
    if (!(std::abs(a - b) <= bound * (1 + std::abs(b)))) return false;
  }
  return true;
}
inline bool close(const std::vector<float>& ours, const std::vector<float>& theirs, double bound) {
  return ours.size() == theirs.size() && close(ours.data(), theirs.data(), ours.size(), bound);
}

/// One large product, with weights as they are or packed before.
class large_product {
 public:
  large_product(index_t size, bool packed)
      : size_(size),
        packed_(packed),
        x_(normal(size * size, 1)),
        w_(normal(size * size, 2)),
        y_(x_.size()),
        weights_(in(w_, size, size)) {}
  [[nodiscard]] double flops() const { return 2.0 * std::pow(static_cast<double>(size_), 3); }
  void run() {
    const deeprec::gemm_desc desc{.b = deeprec::gemm_operand::transposed};
    const auto x = in(x_, size_, size_), w = in(w_, size_, size_);
    const auto y = out(y_, size_, size_);
    const deeprec::status s = packed_ ? gemm(here, desc, x, weights_, y) : gemm(here, desc, x, w, y);
    benchmark::DoNotOptimize(s.ok());
  }

 private:
  index_t size_;
  bool packed_;
  std::vector<float> x_, w_, y_;
  deeprec::gemm_weights weights_;
};

/// The rate of products: of the fastest of a sweep, since a power of two or packed weights cost some backends
/// half of their rate.
class product_rate {
 public:
  product_rate() {
    double best = 0;
    for (const index_t size : {1024, 1040}) {
      for (const bool packed : {true, false}) {
        auto one = std::make_unique<large_product>(size, packed);
        one->run();
        double seconds = seconds_of([&] { one->run(); });
        for (int i = 0; i < 4; ++i) seconds = std::min(seconds, seconds_of([&] { one->run(); }));
        if (one->flops() / seconds <= best) continue;
        best = one->flops() / seconds;
        name_ = std::to_string(size) + (packed ? "^3 packed" : "^3");
        fastest_ = std::move(one);
      }
    }
  }
  [[nodiscard]] const std::string& name() const { return name_; }
  /// Seconds of one operation at the rate of a product made now.
  double seconds_of_flop() {
    return seconds_of([&] { fastest_->run(); }) / fastest_->flops();
  }

 private:
  std::string name_;
  std::unique_ptr<large_product> fastest_;
};

/// Memory for copies of up to so many floats, half of them read, half of them written.
class copied {
 public:
  explicit copied(index_t floats) : from_(normal(floats / 2, 1)), to_(from_) {}
  double seconds(index_t floats) {
    return seconds_of([&] {
      std::memcpy(to_.data(), from_.data(), static_cast<std::size_t>(floats / 2) * sizeof(float));
      benchmark::ClobberMemory();
    });
  }

 private:
  std::vector<float> from_, to_;
};

struct passes {
  std::function<void()> forward, backward;

  void both() const {
    forward();
    backward();
  }
};

/// What a direction cannot do without: operations of products, floats that it reads or writes.
struct least_work {
  double flops = 0;
  index_t floats = 0;
};

struct layer {
  passes ours, o2, native;
  std::function<bool()> same;  ///< whether ours and the last of the others gave the same
  least_work forward, backward;
};

/// speedup: of both directions, over the others. share_forward, share_backward, share: the limit over ours.
inline void measure(benchmark::State& state, const std::string& name, const layer& l) {
  l.ours.both();
  for (const passes* theirs : {&l.o2, &l.native}) {
    theirs->both();
    if (!l.same()) return state.SkipWithError("wrong answer: the op-by-op form gives others");
  }
  product_rate rate;
  copied copy(std::max(l.forward.floats, l.backward.floats));
  for (auto _ : state) {
    figures f(name);
    if (l.forward.flops > 0) f.say(rate.name());
    f.sample([&] {
      double forward = 0, backward = 0;
      const auto ours = [&] {
        forward = seconds_of(l.ours.forward);
        backward = seconds_of(l.ours.backward);
      };
      f.pair("speedup", "native", ours, [&] { l.native.both(); });
      f.pair("speedup", "o2", ours, [&] { l.o2.both(); });
      const double flop = rate.seconds_of_flop();
      const double products[] = {l.forward.flops * flop, l.backward.flops * flop};
      const double copies[] = {copy.seconds(l.forward.floats), copy.seconds(l.backward.floats)};
      f.add("share_forward", std::max(products[0], copies[0]) / forward);
      f.add("share_backward", std::max(products[1], copies[1]) / backward);
      f.add("share", std::max(products[0] + products[1], copies[0] + copies[1]) / (forward + backward));
      f.note("forward_us", forward * 1e6);
      f.note("backward_us", backward * 1e6);
      f.note("products_forward_us", products[0] * 1e6);
      f.note("products_backward_us", products[1] * 1e6);
      f.note("copy_forward_us", copies[0] * 1e6);
      f.note("copy_backward_us", copies[1] * 1e6);
      f.note("gflops", (l.forward.flops + l.backward.flops) / (forward + backward) / 1e9);
    });
    f.report(state);
  }
}

}  // namespace layers_bench
