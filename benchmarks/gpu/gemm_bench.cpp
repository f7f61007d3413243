// gemm() on a stream against cuBLASLt by itself, on the upper layers of DLRM: 479-1024-1024-512-256, batch
// 2048.
//
// Factors are small integers, so every sum is exact and the host knows it. cuBLASLt runs the fastest of the
// algorithms that its heuristic names, timed first, with as much workspace as gemm() allows itself. 20
// calls stand between two events; the sides take turns. The counters are those of the worst layer:
// `speedup` call by call, `captured` with the 20 calls in a CUDA graph, which leaves out what the host does
// for each call (finding the plan that is kept), `over_first` over the heuristic's first choice. None of this has run yet.

#include <benchmark/benchmark.h>

#include <deeprec/core/dtypes.hpp>
#include <deeprec/dense/cuda_cublaslt_gemm.hpp>
#include <deeprec/exec/cuda_stream_pool.hpp>
#include <deeprec/memory/cuda_memory.hpp>

#include <algorithm>
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

constexpr index_t batch = 2048;
constexpr int calls = 20;
constexpr std::size_t workspace = std::size_t{32} << 20;

int x_at(index_t i, index_t j) { return static_cast<int>((i * 31 + j * 7) % 9) - 4; }
int w_at(index_t i, index_t j) { return static_cast<int>((i * 5 + j * 3) % 5) - 2; }
int bias_at(index_t j) { return static_cast<int>(j % 7) - 3; }

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
  cuda_status(cudaDeviceSynchronize()).or_throw();
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
        raw_(gpu_baseline::make_raw_gemm(
            {static_cast<long>(batch), static_cast<long>(n), static_cast<long>(k), std::is_same_v<In, bf16>,
             std::is_same_v<Out, bf16>},
            x_.data(), w_.data(), y_.data(), workspace)) {}

  status ours(cuda_stream& on, bool fused) {
    basic_gemm_desc<device_space> desc{.b = gemm_operand::transposed};
    if (std::is_same_v<In, float>) desc.math = gemm_math::tf32;
    if (fused) {
      desc.bias = bias_.matrix(1, n_);
      desc.activation = gemm_activation::relu;
    }
    return gemm(on, desc, x_.matrix(batch, k_), w_.matrix(n_, k_), y_.matrix(batch, n_));
  }
  status theirs(cuda_stream& on, bool passes) {
    if (!raw_->run(x_.data(), w_.data(), y_.data(), on.get())) return {errc::device_error, "raw cuBLASLt"};
    if constexpr (std::is_same_v<Out, float>) {
      if (passes) {
        gpu_baseline::bias_pass(y_.data(), bias_.data(), static_cast<long>(batch), static_cast<long>(n_),
                                on.get());
        gpu_baseline::relu_pass(y_.data(), static_cast<long>(batch), static_cast<long>(n_), on.get());
      }
    }
    return {};
  }

  /// Lowers the counters to what this layer reaches; answers what is wrong.
  std::string compare(bool epilogue, double& speedup, double& captured, double& over_first) {
    if (raw_ == nullptr) return "raw cuBLASLt refuses this shape";
    cuda_stream_pool pool(1);
    cuda_stream& stream = pool.stream(0);
    stream_work work;
    for (int i = 0; i < calls; ++i) work.add({});
    stream_plan plan;
    plan_streams(work, 1, plan).or_throw();
    const auto our_op = [&](index_t, cuda_stream& on) { return ours(on, epilogue); };
    const auto their_op = [&](index_t, cuda_stream& on) { return theirs(on, epilogue); };
    const auto eager = [&](const auto& op) {
      return milliseconds(stream.get(), 5, [&](int) { pool.run(plan, op).or_throw(); });
    };

    int fastest = 0;
    double least = std::numeric_limits<double>::max(), first = 0;
    for (int a = 0; a < raw_->algorithms(); ++a) {
      raw_->choose(a);
      const double ms = eager(their_op);
      if (a == 0) first = ms;
      if (ms < least) least = ms, fastest = a;
    }
    raw_->choose(fastest);
    for (const bool raw : {false, true}) {
      cuda_status(cudaMemset(y_.data(), 0xFF, y_.size() * sizeof(Out))).or_throw();
      cuda_status(cudaDeviceSynchronize()).or_throw();
      (raw ? theirs(stream, epilogue) : ours(stream, epilogue)).or_throw();
      stream.synchronize().or_throw();
      if (std::string fault = answer_fault(epilogue); !fault.empty())
        return fault + (raw ? " of cuBLASLt" : "");
    }

    const auto in_turn = [&](const std::function<double()>& a, const std::function<double()>& b) {
      std::vector<double> ratios;
      for (int i = 0; i < 15; ++i) {
        double ms[2];
        for (const int which : {i % 2, 1 - i % 2}) ms[which] = which == 0 ? a() : b();
        ratios.push_back(ms[0] / ms[1]);
      }
      return median_of(ratios);
    };
    const double ratio = in_turn([&] { return eager(their_op); }, [&] { return eager(our_op); });
    speedup = std::min(speedup, ratio);
    over_first = std::min(over_first, ratio * first / least);
    const auto graph = [&](const auto& op, std::uint64_t version) {
      return milliseconds(stream.get(), 5, [&](int) { pool.replay(plan, op, version).or_throw(); });
    };
    captured =
        std::min(captured, in_turn([&] { return graph(their_op, 1); }, [&] { return graph(our_op, 2); }));
    return {};
  }

 private:
  std::string answer_fault(bool epilogue) const {
    std::vector<Out> got(y_.size());
    y_.copy_to(got).or_throw();
    cuda_status(cudaDeviceSynchronize()).or_throw();
    for (const index_t i : {index_t{0}, index_t{777}, batch - 1}) {
      for (index_t j = 0; j < n_; ++j) {
        int sum = 0;
        for (index_t k = 0; k < k_; ++k) sum += x_at(i, k) * w_at(j, k);
        if (epilogue) sum = std::max(sum + bias_at(j), 0);
        const float expected = static_cast<float>(static_cast<Out>(static_cast<float>(sum)));
        if (static_cast<float>(got[static_cast<std::size_t>(i * n_ + j)]) != expected) {
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
  std::unique_ptr<gpu_baseline::raw_gemm> raw_;
};

template <class In, class Out>
std::string layers(benchmark::State& state, bool epilogue) {
  double speedup = 1e9, captured = 1e9, over_first = 1e9;
  const index_t widths[] = {479, 1024, 1024, 512, 256};
  for (int l = 0; l < 4; ++l) {
    layer<In, Out> one(widths[l + 1], widths[l]);
    const std::string fault = one.compare(epilogue, speedup, captured, over_first);
    if (!fault.empty()) return fault + ", layer " + std::to_string(l);
  }
  state.counters["speedup"] = speedup;
  state.counters["captured"] = captured;
  state.counters["over_first"] = over_first;
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
