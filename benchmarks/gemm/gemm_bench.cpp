// Products of the layers of DLRM, WDL and DSSM, on one thread unless it says otherwise.
//
//   gemm/packed/f32, bf16         weights packed once, a in the math's own type: `roofline` is the time of
//                                 oneDNN alone on weights that it packed itself, over ours
//   gemm/bf16_with_cast/...       float a, cast tile by tile: speedup over f32, ours or oneDNN's, the faster
//   gemm/epilogue/...             bf16 product, bias and ReLU in one call: speedup over a cast pass, oneDNN,
//                                 a bias pass and a ReLU pass (the faster of two builds)
//   gemm/backward                 forward and backward of a layer: the time of its three products by oneDNN
//                                 alone, over ours
//   gemm/small_batch              a stack's layers with bias and ReLU, batch 1 to 16: speedup over Eigen, the
//                                 faster build, at the batch where it is least; m1 .. m16 of each batch
//   gemm/threads                  two threads of ours, over two OpenMP threads of oneDNN's
//
// A figure is the sum of the medians of one side over that of the other; `worst` is the worst layer's.
// GEMM_BENCH_LAYERS=1 prints each layer. Every answer is compared with sums in double before it is timed.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <deeprec/dense/gemm.hpp>
#include <deeprec/dense/linear.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "gemm/baseline.hpp"
#include "support/paired.hpp"

#if __has_include(<omp.h>)
#  include <omp.h>
#else
extern "C" void omp_set_num_threads(int);
#endif

namespace {

using namespace deeprec;
using deeprec_bench::in_turn;
namespace baseline = gemm_baseline;

#if defined(DEEPREC_WITH_ONEDNN)
constexpr bool with_onednn = true;
#else
constexpr bool with_onednn = false;
#endif

void openmp_threads([[maybe_unused]] int n) {
#if defined(DEEPREC_WITH_ONEDNN_OPENMP)
  omp_set_num_threads(n);
#endif
}

struct layer {
  index_t in, out;
};
constexpr layer wide[] = {{512, 256},  {256, 128}, {479, 1024}, {1024, 1024},
                          {1024, 512}, {367, 512}, {256, 64}};
constexpr layer all_layers[] = {{13, 512},  {512, 256}, {256, 128}, {479, 1024}, {1024, 1024}, {1024, 512},
                                {367, 512}, {256, 64},  {64, 16},   {128, 64},   {64, 32}};
constexpr layer first[] = {{13, 512}};

struct free_memory {
  void operator()(void* p) const { std::free(p); }
};
template <class T>
using buffer = std::unique_ptr<T[], free_memory>;
template <class T>
buffer<T> make_buffer(index_t count) {
  const auto bytes = static_cast<std::size_t>(count) * sizeof(T);
  auto made = buffer<T>(static_cast<T*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)));
  std::memset(static_cast<void*>(made.get()), 0, bytes);
  return made;
}

/// A layer's matrices, filled at random.
struct problem {
  problem(layer l, index_t batch)
      : m(batch),
        n(l.out),
        k(l.in),
        x(make_buffer<float>(m * k)),
        w(make_buffer<float>(n * k)),
        bias(make_buffer<float>(n)),
        y(make_buffer<float>(m * n)),
        y2(make_buffer<float>(m * n)),
        dy(make_buffer<float>(m * n)),
        dx(make_buffer<float>(m * k)),
        dw(make_buffer<float>(n * k)),
        db(make_buffer<float>(n)),
        half(make_buffer<bf16>(m * k)),
        cast(make_buffer<unsigned short>(m * k)) {
    std::mt19937_64 random(static_cast<std::uint64_t>(m * 31 + n * 7 + k));
    std::normal_distribution<float> normal;
    const auto fill = [&](float* p, index_t count) {
      for (index_t i = 0; i < count; ++i) p[i] = normal(random);
    };
    fill(x.get(), m * k);
    fill(w.get(), n * k);
    fill(bias.get(), n);
    fill(dy.get(), m * n);
    for (index_t i = 0; i < m * k; ++i)
      half[static_cast<std::size_t>(i)] = bf16(x[static_cast<std::size_t>(i)]);
  }
  matrix_view<const float> in() const { return {x.get(), m, k}; }
  matrix_view<const bf16> in_half() const { return {half.get(), m, k}; }
  matrix_view<const float> weights() const { return {w.get(), n, k}; }
  matrix_view<const float> bias_row() const { return {bias.get(), 1, n}; }
  matrix_view<float> out() const { return {y.get(), m, n}; }

  /// Some elements of a result against double; spoils it for the next.
  bool right(float* result, double rounding, bool steps) const {
    bool all = true;
    for (index_t s = 0; s < 200; ++s) {
      const index_t i = s * 7919 % m, j = s * 104729 % n;
      double sum = 0, size = 0;
      for (index_t p = 0; p < k; ++p) {
        const double term = static_cast<double>(x[static_cast<std::size_t>(i * k + p)]) *
                            static_cast<double>(w[static_cast<std::size_t>(j * k + p)]);
        sum += term;
        size += std::abs(term);
      }
      if (steps) sum = std::max(sum + static_cast<double>(bias[static_cast<std::size_t>(j)]), 0.0);
      all = all && std::abs(static_cast<double>(result[i * n + j]) - sum) <= rounding * size + 1e-5;
    }
    std::memset(result, 0xff, static_cast<std::size_t>(m * n) * sizeof(float));
    return all;
  }

  index_t m, n, k;
  buffer<float> x, w, bias, y, y2, dy, dx, dw, db;
  buffer<bf16> half;
  buffer<unsigned short> cast;
};

constexpr double f32_error = 1e-5, bf16_error = 0x1p-7 + 1e-4;

/// Sums of medians, and the worst ratio.
struct tally {
  double ours = 0, theirs = 0, worst = 1e9, work = 0;
  void add(const deeprec_bench::pairs& p, const problem& q) { add(p.first, p.second, p.ratio, q); }
  void add(double our_seconds, double their_seconds, double ratio, const problem& q) {
    if (std::getenv("GEMM_BENCH_LAYERS") != nullptr) {
      std::fprintf(stderr, "%5lld x %4lld -> %4lld: %9.2f us, %9.2f us, ratio %.3f\n",
                   static_cast<long long>(q.m), static_cast<long long>(q.k), static_cast<long long>(q.n),
                   our_seconds * 1e6, their_seconds * 1e6, ratio);
    }
    ours += our_seconds;
    theirs += their_seconds;
    worst = std::min(worst, ratio);
    work += 2.0 * static_cast<double>(q.m * q.n) * static_cast<double>(q.k);
  }
  void report(benchmark::State& state, const char* name) const {
    state.SetIterationTime(ours);
    state.counters[name] = theirs / ours;
    state.counters["worst"] = worst;
    state.counters["gflops"] = work / ours * 1e-9;
  }
};

int pairs_for(const problem& q) {
  const double seconds = 2.0 * static_cast<double>(q.m * q.n) * static_cast<double>(q.k) / 1e11;
  return std::clamp(static_cast<int>(0.15 / seconds), 9, 401);
}

bool ready(benchmark::State& state) {
  openmp_threads(1);
  if (with_onednn) return true;
  state.SkipWithError("no oneDNN here");
  return false;
}
bool ready_for_bf16(benchmark::State& state) {
  if (!ready(state)) return false;
  if (active_isa() == isa::avx512_bf16) return true;
  state.SkipWithError("no bf16 products on this machine");
  return false;
}
bool wrong(benchmark::State& state) {
  state.SkipWithError("wrong answer: not what sums in double say");
  return true;
}

const gemm_desc as_layer{.b = gemm_operand::transposed};

void packed(benchmark::State& state, gemm_math math) {
  if (math == gemm_math::bf16 ? !ready_for_bf16(state) : !ready(state)) return;
  inline_executor here;
  for (auto _ : state) {
    tally sum;
    for (const index_t batch : {128, 2048}) {
      for (const layer l : all_layers) {
        const problem q(l, batch);
        const bool half = math == gemm_math::bf16;
        gemm_desc desc = as_layer;
        desc.math = math;
        const gemm_weights weights(q.weights());
        const auto raw =
            baseline::native::make_raw(q.m, q.n, q.k, {.bf16 = half, .packed = true, .b_transposed = true});
        raw->pack(q.w.get());
        const auto ours = [&] {
          const status s = half ? gemm(here, desc, q.in_half(), weights, q.out())
                                : gemm(here, desc, q.in(), weights, q.out());
          benchmark::DoNotOptimize(s.ok());
        };
        const auto theirs = [&] {
          raw->run(half ? static_cast<const void*>(q.half.get()) : q.x.get(), nullptr, q.y2.get());
        };
        ours();
        theirs();
        const double error = half ? bf16_error : f32_error;
        if ((!q.right(q.y.get(), error, false) || !q.right(q.y2.get(), error, false)) && wrong(state)) return;
        sum.add(in_turn(pairs_for(q), ours, theirs), q);
      }
    }
    sum.report(state, "roofline");
  }
}

template <std::size_t N>
void bf16_with_cast(benchmark::State& state, const layer (&layers)[N]) {
  if (!ready_for_bf16(state)) return;
  inline_executor here;
  for (auto _ : state) {
    tally sum;
    for (const index_t batch : {128, 2048}) {
      for (const layer l : layers) {
        const problem q(l, batch);
        gemm_desc desc = as_layer;
        desc.math = gemm_math::bf16;
        const gemm_weights weights(q.weights()), weights_f32(q.weights());
        const auto raw = baseline::native::make_raw(q.m, q.n, q.k, {.packed = true, .b_transposed = true});
        raw->pack(q.w.get());
        const auto ours = [&] { benchmark::DoNotOptimize(gemm(here, desc, q.in(), weights, q.out()).ok()); };
        const auto f32 = [&] {
          benchmark::DoNotOptimize(gemm(here, as_layer, q.in(), weights_f32, q.out()).ok());
        };
        const auto theirs = [&] { raw->run(q.x.get(), nullptr, q.y.get()); };
        ours();
        if (!q.right(q.y.get(), bf16_error, false) && wrong(state)) return;
        f32();
        if (!q.right(q.y.get(), f32_error, false) && wrong(state)) return;
        const auto one = in_turn(pairs_for(q), ours, f32);
        const auto two = in_turn(pairs_for(q), ours, theirs);
        sum.add(one.ratio < two.ratio ? one : two, q);
      }
    }
    sum.report(state, "speedup");
  }
}

template <std::size_t N>
void epilogue(benchmark::State& state, const layer (&layers)[N]) {
  if (!ready_for_bf16(state)) return;
  inline_executor here;
  for (auto _ : state) {
    tally sum;
    for (const layer l : layers) {
      const problem q(l, 2048);
      gemm_desc desc = as_layer;
      desc.math = gemm_math::bf16;
      desc.bias = q.bias_row();
      desc.activation = gemm_activation::relu;
      const gemm_weights weights(q.weights());
      const auto raw =
          baseline::native::make_raw(q.m, q.n, q.k, {.bf16 = true, .packed = true, .b_transposed = true});
      raw->pack(q.w.get());
      const auto ours = [&] { benchmark::DoNotOptimize(gemm(here, desc, q.in(), weights, q.out()).ok()); };
      const auto passes = [&](auto cast, auto bias, auto relu) {
        return [&q, &raw, cast, bias, relu] {
          cast(q.x.get(), q.cast.get(), q.m * q.k);
          raw->run(q.cast.get(), nullptr, q.y2.get());
          bias(q.y2.get(), q.bias.get(), q.m, q.n);
          relu(q.y2.get(), q.m * q.n);
        };
      };
      const auto o2 = passes(baseline::o2::cast_pass, baseline::o2::bias_pass, baseline::o2::relu_pass);
      const auto native =
          passes(baseline::native::cast_pass, baseline::native::bias_pass, baseline::native::relu_pass);
      ours();
      native();
      if ((!q.right(q.y.get(), bf16_error, true) || !q.right(q.y2.get(), bf16_error, true)) && wrong(state))
        return;
      const auto one = in_turn(pairs_for(q), ours, o2);
      const auto two = in_turn(pairs_for(q), ours, native);
      sum.add(one.ratio < two.ratio ? one : two, q);
    }
    sum.report(state, "speedup");
  }
}

void backward(benchmark::State& state) {
  if (!ready(state)) return;
  inline_executor here;
  for (auto _ : state) {
    tally sum;
    for (const index_t batch : {128, 2048}) {
      for (const layer l : wide) {
        const problem q(l, batch);
        const gemm_weights weights(q.weights(), weight_reuse::few);
        const auto forward = baseline::native::make_raw(q.m, q.n, q.k, {.b_transposed = true});
        const auto to_weights = baseline::native::make_raw(q.n, q.k, q.m, {.a_transposed = true});
        const auto to_input = baseline::native::make_raw(q.m, q.k, q.n, {});
        const auto ours = [&] {
          const bool ok =
              linear_forward(here, q.in(), weights, q.bias_row(), q.out(),
                             {.activation = gemm_activation::relu})
                  .ok() &&
              linear_backward(here, q.in(), matrix_view<const float>(q.dy.get(), q.m, q.n), weights,
                              matrix_view<float>(q.dw.get(), q.n, q.k), matrix_view<float>(q.db.get(), 1, q.n),
                              matrix_view<float>(q.dx.get(), q.m, q.k), {.input_mask = q.in()})
                  .ok();
          benchmark::DoNotOptimize(ok);
        };
        const auto theirs = [&] {
          forward->run(q.x.get(), q.w.get(), q.y2.get());
          to_weights->run(q.dy.get(), q.x.get(), q.dw.get());
          to_input->run(q.dy.get(), q.w.get(), q.dx.get());
        };
        ours();
        theirs();
        if ((!q.right(q.y.get(), f32_error, true) || !q.right(q.y2.get(), f32_error, false)) && wrong(state))
          return;
        sum.add(in_turn(std::max(5, pairs_for(q) / 3), ours, theirs), q);
      }
    }
    sum.report(state, "roofline");
  }
}

void small_batch(benchmark::State& state) {
  openmp_threads(1);
  inline_executor here;
  for (auto _ : state) {
    double slowest = 1e9, seconds = 0, worst = 1e9;
    for (const index_t batch : {1, 2, 4, 8, 16}) {
      tally sum;
      for (const layer l :
           {layer{13, 512}, {512, 256}, {256, 128}, {479, 1024}, {1024, 1024}, {1024, 512}, {256, 1}}) {
        const problem q(l, batch);
        gemm_desc desc = as_layer;
        desc.bias = q.bias_row();
        desc.activation = gemm_activation::relu;
        const gemm_weights weights(q.weights());
        const auto ours = [&] { benchmark::DoNotOptimize(gemm(here, desc, q.in(), weights, q.out()).ok()); };
        const auto eigen = [&](auto call) {
          return [&q, call] { call(q.x.get(), q.w.get(), q.bias.get(), q.y2.get(), q.m, q.n, q.k); };
        };
        const auto o2 = eigen(baseline::o2::eigen_layer);
        const auto native = eigen(baseline::native::eigen_layer);
        ours();
        native();
        if ((!q.right(q.y.get(), f32_error, true) || !q.right(q.y2.get(), f32_error, true)) && wrong(state))
          return;
        const auto one = in_turn(201, ours, o2);
        const auto two = in_turn(201, ours, native);
        sum.add(one.ratio < two.ratio ? one : two, q);
        if (std::getenv("GEMM_BENCH_LAYERS") != nullptr) {
          std::fprintf(stderr, "m %lld %lld -> %lld: ours %.2f us, eigen o2 %.2f native %.2f\n",
                       static_cast<long long>(batch), static_cast<long long>(l.in),
                       static_cast<long long>(l.out), two.first * 1e6, one.second * 1e6, two.second * 1e6);
        }
      }
      state.counters["m" + std::to_string(batch)] = sum.theirs / sum.ours;
      slowest = std::min(slowest, sum.theirs / sum.ours);
      worst = std::min(worst, sum.worst);
      seconds += sum.ours;
    }
    state.SetIterationTime(seconds);
    state.counters["speedup"] = slowest;
    state.counters["worst"] = worst;
  }
}

void threads(benchmark::State& state) {
  if (!ready(state)) return;
  thread_pool pool({.threads = 2});
  for (auto _ : state) {
    tally sum;
    for (const index_t batch : {128, 2048}) {
      for (const layer l : wide) {
        const problem q(l, batch);
        const gemm_weights weights(q.weights());
        openmp_threads(2);
        const auto raw = baseline::native::make_raw(q.m, q.n, q.k, {.packed = true, .b_transposed = true});
        raw->pack(q.w.get());
        const auto ours = [&] {
          benchmark::DoNotOptimize(gemm(pool, as_layer, q.in(), weights, q.out()).ok());
        };
        const auto theirs = [&] { raw->run(q.x.get(), nullptr, q.y2.get()); };
        ours();
        theirs();
        if ((!q.right(q.y.get(), f32_error, false) || !q.right(q.y2.get(), f32_error, false)) && wrong(state))
          return;
        // Not in turn: the threads of the one that waits spin, and take the other's processors.
        std::vector<double> one, two;
        for (int i = 0; i < pairs_for(q); ++i) one.push_back(deeprec_bench::seconds_of(ours));
        for (int i = 0; i < pairs_for(q); ++i) two.push_back(deeprec_bench::seconds_of(theirs));
        const double a = deeprec_bench::median(one), b = deeprec_bench::median(two);
        sum.add(a, b, b / a, q);
      }
    }
    sum.report(state, "speedup");
  }
}

const bool added = [] {
  const auto add = [](const std::string& name, auto run) {
    benchmark::RegisterBenchmark(name.c_str(), run)
        ->Iterations(1)
        ->Repetitions(3)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  };
  using state = benchmark::State;
  add("gemm/packed/f32", [](state& s) { packed(s, gemm_math::f32); });
  add("gemm/packed/bf16", [](state& s) { packed(s, gemm_math::bf16); });
  add("gemm/bf16_with_cast/k256", [](state& s) { bf16_with_cast(s, wide); });
  add("gemm/bf16_with_cast/k13", [](state& s) { bf16_with_cast(s, first); });
  add("gemm/epilogue/k256", [](state& s) { epilogue(s, wide); });
  add("gemm/epilogue/k13", [](state& s) { epilogue(s, first); });
  add("gemm/backward", [](state& s) { backward(s); });
  add("gemm/small_batch", [](state& s) { small_batch(s); });
  add("gemm/threads", [](state& s) { threads(s); });
  return true;
}();

}  // namespace
