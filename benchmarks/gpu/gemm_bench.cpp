// gemm() on a stream against cuBLASLt by itself, on the upper layers of DLRM: 479-1024-1024-512-256, batch
// 2048.
//
// Factors are small integers of rank two, so every sum is exact and the host knows each one; all are looked
// at, before the timing and after the replays. gemm_tune() is called before a layer is timed. cuBLASLt runs
// the fastest of the algorithms that its heuristic names, timed first, with as much workspace as gemm()
// allows itself. 20 calls stand between two events; the sides take turns. The counters are those of the worst
// layer:
//
//   speedup      call by call, with what the host does for each (finding the plan that is kept); an epilogue
//                against passes of its own
//   captured     the same with the 20 calls in a CUDA graph
//   over_first   over the heuristic's first choice, which gemm() takes by itself
//   over_fused, captured_over_fused     an epilogue against cuBLASLt's own, set up by hand

#include <benchmark/benchmark.h>

#include <deeprec/core/dtypes.hpp>
#include <deeprec/dense/gemm/cuda_cublaslt_gemm.hpp>
#include <deeprec/memory/cuda_memory.hpp>
#include <deeprec/plan/cuda_stream_pool.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "baseline.hpp"
#include "support.hpp"

using namespace deeprec;
using namespace gpu_suite;

namespace {

constexpr index_t batch = pick(2048, 19);
constexpr int calls = pick(20, 3);
constexpr std::size_t workspace = std::size_t{32} << 20;

/// A number of -most .. most, without a pattern.
int small(index_t salt, index_t i, int most) {
  auto x = static_cast<std::uint64_t>(salt * 1'000'003 + i);
  for (int k = 0; k < 2; ++k) x = (x ^ (x >> 31)) * 0x9e6c63d0876a9a35U;
  return static_cast<int>((x >> 33) % static_cast<std::uint64_t>(2 * most + 1)) - most;
}
// x = u s + v t, w = a p + b q: sums over k are those of four products of s, t with p, q.
int x_at(index_t i, index_t k) { return small(1, i, 2) * small(2, k, 1) + small(3, i, 1) * small(4, k, 2); }
int w_at(index_t j, index_t k) { return small(5, j, 1) * small(6, k, 2) + small(7, j, 1) * small(8, k, 1); }
int bias_at(index_t j) { return small(9, j, 30); }

template <class T, class At>
device_array<T> filled(index_t rows, index_t columns, const At& at) {
  std::vector<T> host(static_cast<std::size_t>(rows * columns));
  for (index_t i = 0; i < rows; ++i) {
    for (index_t j = 0; j < columns; ++j) {
      host[static_cast<std::size_t>(i * columns + j)] = static_cast<T>(static_cast<float>(at(i, j)));
    }
  }
  device_array<T> made(host.size());
  made.copy_from(host).or_throw();
  return made;
}

/// One layer, x and w of type In, y of type Out.
template <class In, class Out>
class layer {
 public:
  layer(index_t n, index_t k)
      : n_(n),
        k_(k),
        x_(filled<In>(batch, k, x_at)),
        w_(filled<In>(n, k, w_at)),
        bias_(filled<float>(1, n, [](index_t, index_t j) { return bias_at(j); })),
        y_(static_cast<std::size_t>(batch * n)),
        raw_(make_raw(nullptr)) {
    if constexpr (std::is_same_v<Out, float>) fused_ = make_raw(bias_.data());
  }

  enum class step { product, tuning };
  status ours(cuda_stream& on, bool fused, step which = step::product) {
    basic_gemm_desc<device_space> desc{.b = gemm_operand::transposed};
    if (std::is_same_v<In, float>) desc.math = gemm_math::tf32;
    if (fused) {
      desc.bias = bias_.matrix(1, n_);
      desc.activation = gemm_activation::relu;
    }
    const auto x = x_.matrix(batch, k_), w = w_.matrix(n_, k_);
    const auto y = y_.matrix(batch, n_);
    return which == step::tuning ? gemm_tune(on, desc, x, w, y) : gemm(on, desc, x, w, y);
  }
  enum class peer { product, passes, fused };
  status theirs(cuda_stream& on, peer which) {
    const auto& raw = which == peer::fused ? fused_ : raw_;
    if (!raw->run(x_.data(), w_.data(), y_.data(), on.get())) return {errc::device_error, "raw cuBLASLt"};
    if constexpr (std::is_same_v<Out, float>) {
      if (which == peer::passes) {
        gpu_baseline::bias_pass(y_.data(), bias_.data(), static_cast<long>(batch), static_cast<long>(n_),
                                on.get());
        gpu_baseline::relu_pass(y_.data(), static_cast<long>(batch), static_cast<long>(n_), on.get());
      }
    }
    return {};
  }

  /// What one layer, or the worst of several, reaches.
  struct ratios {
    figure speedup{1e9}, over_fused{1e9};
    double captured = 1e9, over_first = 1e9, captured_over_fused = 1e9;
  };
  /// Lowers the ratios to what this layer reaches; answers what is wrong.
  std::string compare(bool epilogue, ratios& least) {
    if (raw_ == nullptr || (epilogue && fused_ == nullptr)) return "raw cuBLASLt refuses this shape";
    if (std::string wrong = compare(epilogue, epilogue ? peer::passes : peer::product, least.speedup,
                                    least.captured, least.over_first);
        !wrong.empty() || !epilogue)
      return wrong;
    double over_first = 1e9;
    return compare(true, peer::fused, least.over_fused, least.captured_over_fused, over_first);
  }

 private:
  std::unique_ptr<gpu_baseline::raw_gemm> make_raw(const float* bias) const {
    return gpu_baseline::make_raw_gemm(
        {static_cast<long>(batch), static_cast<long>(n_), static_cast<long>(k_), std::is_same_v<In, bf16>,
         std::is_same_v<Out, bf16>, bias},
        x_.data(), w_.data(), y_.data(), workspace);
  }

  std::string compare(bool epilogue, peer with, figure& speedup, double& captured, double& over_first) {
    cuda_stream_pool pool(1);
    cuda_stream& stream = pool.stream(0);
    task_list work;
    for (int i = 0; i < calls; ++i) work.add({});
    stream_plan plan;
    plan_streams(work, 1, plan).or_throw();
    const auto our_op = [&](index_t, cuda_stream& on) { return ours(on, epilogue); };
    const auto their_op = [&](index_t, cuda_stream& on) { return theirs(on, with); };
    stopwatch watch(stream.get());
    const auto eager = [&](const auto& op) {
      return watch.with_host(5, 1, [&](int) { pool.run(plan, op).or_throw(); });
    };
    const auto graph = [&](const auto& op, std::uint64_t version) {
      return watch.device(5, 1, [&](int) { pool.replay(plan, op, version).or_throw(); });
    };
    const auto fault = [&](const std::string& of, const std::function<void()>& run) -> std::string {
      stream.synchronize().or_throw();
      cuda_status(cudaMemsetAsync(y_.data(), 0xFF, y_.size() * sizeof(Out), stream.get())).or_throw();
      run();
      stream.synchronize().or_throw();
      std::string wrong = answer_fault(epilogue);
      return wrong.empty() ? wrong : wrong + " of " + of;
    };

    auto& raw = with == peer::fused ? *fused_ : *raw_;
    watch.warm_up([&](int) { pool.run(plan, their_op).or_throw(); });
    int fastest = 0;
    double least = std::numeric_limits<double>::max(), first = 0;
    for (int a = 0; a < raw.algorithms(); ++a) {
      raw.choose(a);
      const double ms = eager(their_op);
      if (a == 0) first = ms;
      if (ms < least) least = ms, fastest = a;
    }
    raw.choose(fastest);
    std::string wrong = fault("gemm_tune()", [&] { ours(stream, epilogue, step::tuning).or_throw(); });
    if (wrong.empty()) wrong = fault("gemm()", [&] { ours(stream, epilogue).or_throw(); });
    if (wrong.empty()) wrong = fault("cuBLASLt", [&] { theirs(stream, with).or_throw(); });
    if (!wrong.empty()) return wrong;

    const figure ratio = ratio_in_turns(21, [&] { return eager(their_op); }, [&] { return eager(our_op); });
    speedup = least_of(speedup, ratio);
    over_first = std::min(over_first, ratio * first / least);
    pool.replay(plan, their_op, 1).or_throw();  // captured before it is timed
    pool.replay(plan, our_op, 2).or_throw();
    stream.synchronize().or_throw();
    captured = std::min(
        captured,
        ratio_in_turns(15, [&] { return graph(their_op, 1); }, [&] { return graph(our_op, 2); }).median);
    wrong = fault("gemm(), replayed", [&] { pool.replay(plan, our_op, 2).or_throw(); });
    if (wrong.empty())
      wrong = fault("cuBLASLt, replayed", [&] { pool.replay(plan, their_op, 1).or_throw(); });
    return wrong;
  }

  std::string answer_fault(bool epilogue) const {
    std::vector<Out> got(y_.size());
    y_.copy_to(got).or_throw();
    if (spoils()) got.back() = static_cast<Out>(static_cast<float>(got.back()) + 100);
    int sp = 0, sq = 0, tp = 0, tq = 0;
    for (index_t k = 0; k < k_; ++k) {
      const int s = small(2, k, 1), t = small(4, k, 2), p = small(6, k, 2), q = small(8, k, 1);
      sp += s * p, sq += s * q, tp += t * p, tq += t * q;
    }
    for (index_t i = 0; i < batch; ++i) {
      const int u = small(1, i, 2), v = small(3, i, 1);
      for (index_t j = 0; j < n_; ++j) {
        const int a = small(5, j, 1), b = small(7, j, 1);
        int sum = u * (a * sp + b * sq) + v * (a * tp + b * tq);
        if (epilogue) sum = std::max(sum + bias_at(j), 0);
        const float expected = static_cast<float>(static_cast<Out>(static_cast<float>(sum)));
        if (!(static_cast<float>(got[static_cast<std::size_t>(i * n_ + j)]) == expected)) {
          return "wrong answer: row " + std::to_string(i) + ", column " + std::to_string(j);
        }
      }
    }
    return {};
  }

  index_t n_, k_;
  device_array<In> x_, w_;
  device_array<float> bias_;
  device_array<Out> y_;
  std::unique_ptr<gpu_baseline::raw_gemm> raw_, fused_;
};

template <class In, class Out>
std::string layers(benchmark::State& state, bool epilogue) {
  typename layer<In, Out>::ratios least;
  const index_t widths[] = {pick(479, 13), pick(1024, 24), pick(1024, 24), pick(512, 16), pick(256, 8)};
  for (int l = 0; l < 4; ++l) {
    layer<In, Out> one(widths[l + 1], widths[l]);
    const std::string fault = one.compare(epilogue, least);
    if (!fault.empty()) return fault + ", layer " + std::to_string(l);
  }
  tell(state, "speedup", least.speedup);
  state.counters["captured"] = least.captured;
  state.counters["over_first"] = least.over_first;
  if (epilogue) {
    tell(state, "over_fused", least.over_fused);
    state.counters["captured_over_fused"] = least.captured_over_fused;
  }
  return {};
}
std::string gemm_tf32(benchmark::State& state) { return layers<float, float>(state, false); }
std::string gemm_bf16(benchmark::State& state) { return layers<bf16, bf16>(state, false); }
std::string gemm_epilogue(benchmark::State& state) { return layers<float, float>(state, true); }
std::string gemm_epilogue_bf16(benchmark::State& state) { return layers<bf16, float>(state, true); }

const bool enlisted = [] {
  enlist("gpu/gemm/tf32", gemm_tf32);
  enlist("gpu/gemm/bf16", gemm_bf16);
  enlist("gpu/gemm/epilogue", gemm_epilogue);
  enlist("gpu/gemm/epilogue/bf16", gemm_epilogue_bf16);
  return true;
}();

}  // namespace
