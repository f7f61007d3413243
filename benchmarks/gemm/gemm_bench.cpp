// Products of the layers of DLRM, WDL and DSSM, on one thread unless it says otherwise.
//
//   gemm/packed/f32, bf16         weights packed once, a in the math's own type: `roofline` is the time of
//                                 oneDNN alone on weights that it packed itself, over ours; all rows at once
//                                 or in the fastest of four blocks
//   gemm/packed/over_plain        weights packed once, over the same view: the worst of these layers and of
//                                 three with 100 columns
//   gemm/bf16_with_cast/...       float a, cast tile by tile: speedup over f32, ours or oneDNN's, the faster
//   gemm/bf16_allowed             bf16 permitted, float a: `speedup` over f32, and `of_faster`, over the
//                                 faster of f32 and forced bf16; the worst layer of each
//   gemm/epilogue/...             bf16 product, bias and ReLU in one call: speedup over a cast pass, oneDNN,
//                                 a bias pass and a ReLU pass (the faster of two builds)
//   gemm/backward                 forward and backward of a layer: the time of its three products by oneDNN
//                                 alone, over ours
//   gemm/small_batch              a stack's layers with bias and ReLU, batch 1 to 16: speedup over Eigen, the
//                                 faster build, at the batch where it is least (speedup_m1 .. m16)
//   gemm/threads                  two threads of ours, over two OpenMP threads of oneDNN's
//
// A round times every layer, ours and theirs in turn several times, and sums the layers' medians: its figure
// is the one sum over the other. `worst` is the worst layer's. Every answer, and every build's, is compared
// with sums in double before it is timed. A product of oneDNN's that would need more than the machine's
// multiplications is no limit.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/dense/gemm/gemm.hpp>
#include <deeprec/dense/layers/linear.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "gemm/baseline.hpp"
#include "support/add.hpp"
#include "support/figures.hpp"
#include "support/roofline.hpp"

#if __has_include(<omp.h>)
#  include <omp.h>
#else
extern "C" void omp_set_num_threads(int);
#endif

namespace {

using namespace deeprec;
using namespace deeprec_bench;
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
constexpr layer first_layer[] = {{13, 512}};

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

constexpr double f32_error = 1e-5, bf16_error = 0x1p-7 + 1e-4;

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

  /// Some elements of dw = dy^T x and dx = dy w against double; masked: dx counts where the input is above 0.
  bool right_gradients(const float* of_weights, const float* of_input, bool masked) const {
    const auto at = [](const buffer<float>& p, index_t i) {
      return static_cast<double>(p[static_cast<std::size_t>(i)]);
    };
    bool all = true;
    for (index_t s = 0; s < 200; ++s) {
      const index_t j = s * 7919 % n, p = s * 104729 % k, i = s * 1299709 % m;
      double sum = 0, size = 0;
      for (index_t r = 0; r < m; ++r) {
        const double term = at(dy, r * n + j) * at(x, r * k + p);
        sum += term, size += std::abs(term);
      }
      all = all && std::abs(static_cast<double>(of_weights[j * k + p]) - sum) <= f32_error * size + 1e-5;
      sum = 0, size = 0;
      for (index_t c = 0; c < n; ++c) {
        const double term = at(dy, i * n + c) * at(w, c * k + p);
        sum += term, size += std::abs(term);
      }
      if (masked && !(at(x, i * k + p) > 0)) sum = 0;
      all = all && std::abs(static_cast<double>(of_input[i * k + p]) - sum) <= f32_error * size + 1e-5;
    }
    return all;
  }

  index_t m, n, k;
  buffer<float> x, w, bias, y, y2, dy, dx, dw, db;
  buffer<bf16> half;
  buffer<unsigned short> cast;
};

/// One layer's two sides.
struct side_by_side {
  std::shared_ptr<const problem> q;
  std::function<void()> ours;
  std::vector<std::pair<std::string, std::function<void()>>> theirs;  // each a build
};

double work_of(const problem& q) { return 2.0 * static_cast<double>(q.m * q.n) * static_cast<double>(q.k); }

/// Pairs of a layer in a round.
int pairs_for(const problem& q) { return std::clamp(static_cast<int>(0.01 / (work_of(q) / 1e11)), 1, 15); }

/// One round: `counter` of case `which` gets the sum of the layers' medians of the other side, over ours.
void round_of(figures& f, const std::string& counter, const std::string& which,
              const std::vector<side_by_side>& layers, bool in_turns = true) {
  double work = 0;
  std::map<std::string, double> ours, theirs;  // each build's, and ours beside it
  double worst = 1e9;
  for (const side_by_side& l : layers) {
    for (const auto& [build, call] : l.theirs) {
      const int count = pairs_for(*l.q);
      pairs p;
      if (in_turns) {
        p = in_turn(count, f.swapped(), l.ours, call);
      } else {  // the threads of the one that waits spin, and take the other's processors
        std::vector<double> one, two;
        for (const bool ours_first : {!f.swapped(), f.swapped()}) {
          for (int i = 0; i < count + 1; ++i)
            (ours_first ? one : two).push_back(ours_first ? seconds_of(l.ours) : seconds_of(call));
        }
        p = {median(one), median(two), median(two) / median(one)};
      }
      ours[build] += p.first;
      theirs[build] += p.ratio * p.first;
      worst = std::min(worst, p.ratio);
      if (&build == &l.theirs.front().first) work += work_of(*l.q);
      if (std::getenv("GEMM_BENCH_LAYERS") != nullptr) {
        std::fprintf(stderr, "%5lld x %4lld -> %4lld: %9.2f us, %9.2f us %s\n",
                     static_cast<long long>(l.q->m), static_cast<long long>(l.q->k),
                     static_cast<long long>(l.q->n), p.first * 1e6, p.second * 1e6, build.c_str());
      }
    }
  }
  for (const auto& [build, seconds] : theirs) {
    const std::string name = build.empty() || which.empty() ? which + build : which + "_" + build;
    f.add(counter, seconds / ours[build], name);
  }
  f.note("worst", worst);
  f.note("gflops", work / ours[layers.front().theirs.front().first] * 1e-9);
}

/// Multiplications and additions of floats per second that one thread can do, about: chains of the
/// compiler's.
double float_peak() {
  static const double peak = [] {
    using vector = float __attribute__((vector_size(64)));
    double best = 0;
    for (int again = 0; again < 5; ++again) {
      vector x[12] = {};
      const vector a = vector{} + 0.999F, b = vector{} + 1e-3F;
      constexpr int steps = 200'000;
      const double seconds = seconds_of([&] {
        for (int i = 0; i < steps; ++i) {
          for (vector& v : x) v = v * a + b;
          benchmark::DoNotOptimize(x);
        }
      });
      best = std::max(best, 2.0 * 16 * 12 * steps / seconds);
    }
    return best;
  }();
  return peak;
}

/// Why their time can't be a limit; else empty. `times` of what plain floats reach in this file's build:
/// wider vectors, two units, and for bf16 tiles of AMX.
std::string check_limit(const std::vector<side_by_side>& layers, double times) {
  for (const side_by_side& l : layers) {
    const double seconds = std::min(seconds_of(l.theirs[0].second), seconds_of(l.theirs[0].second));
    const double work = work_of(*l.q);
    const std::string fault =
        out_of_bounds("oneDNN", seconds, work / (times * float_peak()), 1e-4 + work / 1e9);
    if (!fault.empty()) return fault;
  }
  return {};
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

/// The case of a layer.
std::string case_of(const problem& q) {
  std::string text;
  for (const index_t x : {q.m, q.k, q.n}) text += (text.empty() ? "m" : "_") + std::to_string(x);
  return text;
}

/// Seconds of ours and the other in turn, more pairs for short ones.
pairs pairs_of(const figures& f, const problem& q, const std::function<void()>& ours,
               const std::function<void()>& other) {
  return in_turn(std::max(pairs_for(q), 3), f.swapped(), ours, other);
}

void packed_over_plain(benchmark::State& state, const std::string& name) {
  openmp_threads(1);
  static inline_executor here;
  std::vector<layer> list(std::begin(all_layers), std::end(all_layers));
  for (const index_t in : {64, 256, 512}) list.push_back({in, 100});
  for (auto _ : state) {
    figures f(name);
    std::vector<side_by_side> layers;
    for (const index_t batch : {128, 2048}) {
      for (const layer l : list) {
        const auto q = std::make_shared<const problem>(l, batch);
        const auto weights = std::make_shared<const gemm_weights>(q->weights());
        const auto ours = [=] {
          benchmark::DoNotOptimize(gemm(here, as_layer, q->in(), *weights, q->out()).ok());
        };
        const auto plain = [=] {
          benchmark::DoNotOptimize(gemm(here, as_layer, q->in(), q->weights(), q->out()).ok());
        };
        for (const std::function<void()>& call :
             {std::function<void()>(ours), std::function<void()>(plain)}) {
          call();
          if (!q->right(q->y.get(), f32_error, false) && wrong(state)) return;
        }
        layers.push_back({q, ours, {{"", plain}}});
      }
    }
    f.sample([&] {
      for (const side_by_side& l : layers)
        f.add("speedup", pairs_of(f, *l.q, l.ours, l.theirs[0].second).ratio, case_of(*l.q));
    });
    f.report(state);
  }
}

void bf16_allowed(benchmark::State& state, const std::string& name) {
  if (!ready(state)) return;
  static inline_executor here;
  for (auto _ : state) {
    figures f(name);
    struct one_layer {
      std::shared_ptr<const problem> q;
      std::function<void()> permitted, f32, forced;
    };
    std::vector<one_layer> layers;
    for (const index_t batch : {128, 2048}) {
      for (const layer l : all_layers) {
        const auto q = std::make_shared<const problem>(l, batch);
        const auto weights = std::make_shared<const gemm_weights>(q->weights());  // the same form: same pages
        const auto by = [&](gemm_math math) {
          gemm_desc desc = as_layer;
          desc.math = math;
          return [=] { benchmark::DoNotOptimize(gemm(here, desc, q->in(), *weights, q->out()).ok()); };
        };
        const one_layer made{q, by(gemm_math::bf16), by(gemm_math::f32), by(gemm_math::forced_bf16)};
        for (const auto& [call, error] :
             {std::pair(made.permitted, bf16_error), std::pair(made.f32, f32_error),
              std::pair(made.forced, bf16_error)}) {
          call();
          if (!q->right(q->y.get(), error, false) && wrong(state)) return;
        }
        layers.push_back(made);
      }
    }
    f.sample([&] {
      for (const one_layer& l : layers) {
        const double over_f32 = pairs_of(f, *l.q, l.permitted, l.f32).ratio;
        const double over_forced = pairs_of(f, *l.q, l.permitted, l.forced).ratio;
        f.add("speedup", over_f32, case_of(*l.q));
        f.add("of_faster", std::min(over_f32, over_forced), case_of(*l.q));
      }
    });
    f.report(state);
  }
}

/// oneDNN alone on weights that it packed: all rows at once or in blocks, whichever is faster.
std::function<void()> fastest_raw(const std::shared_ptr<const problem>& q, bool half) {
  std::function<void()> fastest;
  double least = 1e18;
  for (const index_t rows : {q->m, index_t{256}, index_t{128}, index_t{64}, index_t{32}}) {
    if (q->m % rows != 0 || (fastest && rows == q->m)) continue;
    const std::shared_ptr<baseline::raw_matmul> raw =
        baseline::native::make_raw(rows, q->n, q->k, {.bf16 = half, .packed = true, .b_transposed = true});
    raw->pack(q->w.get());
    const std::function<void()> call = [=] {
      for (index_t i = 0; i < q->m; i += rows) {
        raw->run(half ? static_cast<const void*>(q->half.get() + i * q->k) : q->x.get() + i * q->k, nullptr,
                 q->y2.get() + i * q->n);
      }
    };
    call();
    std::vector<double> times;
    for (int i = 0; i < pairs_for(*q) + 4; ++i) times.push_back(seconds_of(call));
    const double seconds = median(times);
    if (seconds < least) fastest = call, least = seconds;
  }
  return fastest;
}

void packed(benchmark::State& state, const std::string& name, gemm_math math) {
  if (math == gemm_math::forced_bf16 ? !ready_for_bf16(state) : !ready(state)) return;
  const bool half = math == gemm_math::forced_bf16;
  static inline_executor here;
  for (auto _ : state) {
    figures f(name);
    std::vector<side_by_side> layers;
    for (const index_t batch : {128, 2048}) {
      for (const layer l : all_layers) {
        const auto q = std::make_shared<const problem>(l, batch);
        gemm_desc desc = as_layer;
        desc.math = math;
        const auto weights = std::make_shared<const gemm_weights>(q->weights());
        const auto ours = [=] {
          const status s = half ? gemm(here, desc, q->in_half(), *weights, q->out())
                                : gemm(here, desc, q->in(), *weights, q->out());
          benchmark::DoNotOptimize(s.ok());
        };
        const std::function<void()> theirs = fastest_raw(q, half);
        ours();
        theirs();
        const double error = half ? bf16_error : f32_error;
        if ((!q->right(q->y.get(), error, false) || !q->right(q->y2.get(), error, false)) && wrong(state))
          return;
        layers.push_back({q, ours, {{"", theirs}}});
      }
    }
    if (const std::string fault = check_limit(layers, half ? 256 : 16); !fault.empty()) {
      return state.SkipWithError(fault.c_str());
    }
    f.sample([&] { round_of(f, "roofline", "", layers); });
    f.report(state);
  }
}

template <std::size_t N>
void bf16_with_cast(benchmark::State& state, const std::string& name, const layer (&list)[N]) {
  if (!ready_for_bf16(state)) return;
  static inline_executor here;
  for (auto _ : state) {
    figures f(name);
    std::vector<side_by_side> layers;
    for (const index_t batch : {128, 2048}) {
      for (const layer l : list) {
        const auto q = std::make_shared<const problem>(l, batch);
        gemm_desc desc = as_layer;
        desc.math = gemm_math::bf16;
        const auto weights = std::make_shared<const gemm_weights>(q->weights());
        const auto weights_f32 = std::make_shared<const gemm_weights>(q->weights());
        const std::shared_ptr<baseline::raw_matmul> raw =
            baseline::native::make_raw(q->m, q->n, q->k, {.packed = true, .b_transposed = true});
        raw->pack(q->w.get());
        const auto ours = [=] {
          benchmark::DoNotOptimize(gemm(here, desc, q->in(), *weights, q->out()).ok());
        };
        const auto f32 = [=] {
          benchmark::DoNotOptimize(gemm(here, as_layer, q->in(), *weights_f32, q->out()).ok());
        };
        const auto theirs = [=] { raw->run(q->x.get(), nullptr, q->y.get()); };
        ours();
        if (!q->right(q->y.get(), bf16_error, false) && wrong(state)) return;
        for (const std::function<void()>& call :
             {std::function<void()>(f32), std::function<void()>(theirs)}) {
          call();
          if (!q->right(q->y.get(), f32_error, false) && wrong(state)) return;
        }
        layers.push_back({q, ours, {{"ours_f32", f32}, {"onednn", theirs}}});
      }
    }
    f.sample([&] { round_of(f, "speedup", "", layers); });
    f.report(state);
  }
}

template <std::size_t N>
void epilogue(benchmark::State& state, const std::string& name, const layer (&list)[N]) {
  if (!ready_for_bf16(state)) return;
  static inline_executor here;
  for (auto _ : state) {
    figures f(name);
    std::vector<side_by_side> layers;
    for (const layer l : list) {
      const auto q = std::make_shared<const problem>(l, 2048);
      gemm_desc desc = as_layer;
      desc.math = gemm_math::bf16;
      desc.bias = q->bias_row();
      desc.activation = gemm_activation::relu;
      const auto weights = std::make_shared<const gemm_weights>(q->weights());
      const std::shared_ptr<baseline::raw_matmul> raw =
          baseline::native::make_raw(q->m, q->n, q->k, {.bf16 = true, .packed = true, .b_transposed = true});
      raw->pack(q->w.get());
      const auto ours = [=] { benchmark::DoNotOptimize(gemm(here, desc, q->in(), *weights, q->out()).ok()); };
      const auto passes = [&](auto cast, auto bias, auto relu) {
        return std::function<void()>([q, raw, cast, bias, relu] {
          cast(q->x.get(), q->cast.get(), q->m * q->k);
          raw->run(q->cast.get(), nullptr, q->y2.get());
          bias(q->y2.get(), q->bias.get(), q->m, q->n);
          relu(q->y2.get(), q->m * q->n);
        });
      };
      const auto o2 = passes(baseline::o2::cast_pass, baseline::o2::bias_pass, baseline::o2::relu_pass);
      const auto native =
          passes(baseline::native::cast_pass, baseline::native::bias_pass, baseline::native::relu_pass);
      ours();
      if (!q->right(q->y.get(), bf16_error, true) && wrong(state)) return;
      for (const auto& theirs : {o2, native}) {
        theirs();
        if (!q->right(q->y2.get(), bf16_error, true) && wrong(state)) return;
      }
      layers.push_back({q, ours, {{"o2", o2}, {"native", native}}});
    }
    f.sample([&] { round_of(f, "speedup", "", layers); });
    f.report(state);
  }
}

void backward(benchmark::State& state, const std::string& name) {
  if (!ready(state)) return;
  static inline_executor here;
  for (auto _ : state) {
    figures f(name);
    std::vector<side_by_side> layers;
    for (const index_t batch : {128, 2048}) {
      for (const layer l : wide) {
        const auto q = std::make_shared<const problem>(l, batch);
        const auto weights = std::make_shared<const gemm_weights>(q->weights(), weight_reuse::few);
        using raw = std::shared_ptr<baseline::raw_matmul>;
        const raw forward = baseline::native::make_raw(q->m, q->n, q->k, {.b_transposed = true});
        const raw to_weights = baseline::native::make_raw(q->n, q->k, q->m, {.a_transposed = true});
        const raw to_input = baseline::native::make_raw(q->m, q->k, q->n, {});
        const auto ours = [=] {
          const bool ok =
              linear_forward(here, q->in(), *weights, q->bias_row(), q->out(),
                             {.activation = gemm_activation::relu})
                  .ok() &&
              linear_backward(here, q->in(), matrix_view<const float>(q->dy.get(), q->m, q->n), *weights,
                              matrix_view<float>(q->dw.get(), q->n, q->k),
                              matrix_view<float>(q->db.get(), 1, q->n),
                              matrix_view<float>(q->dx.get(), q->m, q->k), {.input_mask = q->in()})
                  .ok();
          benchmark::DoNotOptimize(ok);
        };
        const auto theirs = [=] {
          forward->run(q->x.get(), q->w.get(), q->y2.get());
          to_weights->run(q->dy.get(), q->x.get(), q->dw.get());
          to_input->run(q->dy.get(), q->w.get(), q->dx.get());
        };
        // The gradients: dw and dx by both, dx of ours where the input is above 0.
        ours();
        const std::vector<float> dw(q->dw.get(), q->dw.get() + q->n * q->k),
            dx(q->dx.get(), q->dx.get() + q->m * q->k);
        theirs();
        if ((!q->right(q->y.get(), f32_error, true) || !q->right(q->y2.get(), f32_error, false) ||
             !q->right_gradients(dw.data(), dx.data(), true) ||
             !q->right_gradients(q->dw.get(), q->dx.get(), false)) &&
            wrong(state)) {
          return;
        }
        layers.push_back({q, ours, {{"", theirs}}});
      }
    }
    if (const std::string fault = check_limit(layers, 16); !fault.empty())
      return state.SkipWithError(fault.c_str());
    f.sample([&] { round_of(f, "roofline", "", layers); });
    f.report(state);
  }
}

void small_batch(benchmark::State& state, const std::string& name) {
  openmp_threads(1);
  static inline_executor here;
  for (auto _ : state) {
    figures f(name);
    std::map<index_t, std::vector<side_by_side>> of_batch;
    for (const index_t batch : {1, 2, 4, 8, 16}) {
      for (const layer l :
           {layer{13, 512}, {512, 256}, {256, 128}, {479, 1024}, {1024, 1024}, {1024, 512}, {256, 1}}) {
        const auto q = std::make_shared<const problem>(l, batch);
        gemm_desc desc = as_layer;
        desc.bias = q->bias_row();
        desc.activation = gemm_activation::relu;
        const auto weights = std::make_shared<const gemm_weights>(q->weights());
        const auto ours = [=] {
          benchmark::DoNotOptimize(gemm(here, desc, q->in(), *weights, q->out()).ok());
        };
        const auto eigen = [&](auto call) {
          return std::function<void()>(
              [q, call] { call(q->x.get(), q->w.get(), q->bias.get(), q->y2.get(), q->m, q->n, q->k); });
        };
        const auto o2 = eigen(baseline::o2::eigen_layer);
        const auto native = eigen(baseline::native::eigen_layer);
        ours();
        if (!q->right(q->y.get(), f32_error, true) && wrong(state)) return;
        for (const auto& theirs : {o2, native}) {
          theirs();
          if (!q->right(q->y2.get(), f32_error, true) && wrong(state)) return;
        }
        of_batch[batch].push_back({q, ours, {{"o2", o2}, {"native", native}}});
      }
    }
    f.sample([&] {
      for (const auto& [batch, layers] : of_batch)
        round_of(f, "speedup", "m" + std::to_string(batch), layers);
    });
    f.report(state);
  }
}

void threads(benchmark::State& state, const std::string& name) {
  if (!ready(state)) return;
  static thread_pool pool({.threads = 2});
  openmp_threads(2);
  for (auto _ : state) {
    figures f(name);
    if (usable_cpus().size() < 2) f.unfit("one CPU");
    std::vector<side_by_side> layers;
    for (const index_t batch : {128, 2048}) {
      for (const layer l : wide) {
        const auto q = std::make_shared<const problem>(l, batch);
        const auto weights = std::make_shared<const gemm_weights>(q->weights());
        const std::shared_ptr<baseline::raw_matmul> raw =
            baseline::native::make_raw(q->m, q->n, q->k, {.packed = true, .b_transposed = true});
        raw->pack(q->w.get());
        const auto ours = [=] {
          benchmark::DoNotOptimize(gemm(pool, as_layer, q->in(), *weights, q->out()).ok());
        };
        const auto theirs = [=] { raw->run(q->x.get(), nullptr, q->y2.get()); };
        ours();
        theirs();
        if ((!q->right(q->y.get(), f32_error, false) || !q->right(q->y2.get(), f32_error, false)) &&
            wrong(state))
          return;
        layers.push_back({q, ours, {{"", theirs}}});
      }
    }
    f.sample([&] { round_of(f, "speedup", "", layers, false); });
    f.report(state);
  }
}

const bool added = [] {
  using state = benchmark::State;
  using string = std::string;
  add("gemm/packed/f32", [](state& s, const string& name) { packed(s, name, gemm_math::f32); });
  add("gemm/packed/bf16", [](state& s, const string& name) { packed(s, name, gemm_math::forced_bf16); });
  add("gemm/packed/over_plain", packed_over_plain);
  add("gemm/bf16_allowed", bf16_allowed);
  add("gemm/bf16_with_cast/k256", [](state& s, const string& name) { bf16_with_cast(s, name, wide); });
  add("gemm/bf16_with_cast/k13", [](state& s, const string& name) { bf16_with_cast(s, name, first_layer); });
  add("gemm/epilogue/k256", [](state& s, const string& name) { epilogue(s, name, wide); });
  add("gemm/epilogue/k13", [](state& s, const string& name) { epilogue(s, name, first_layer); });
  add("gemm/backward", backward);
  add("gemm/small_batch", small_batch);
  add("gemm/threads", threads);
  return true;
}();

}  // namespace
