// How the suites on a GPU are timed and listed.
#pragma once

#include <benchmark/benchmark.h>

#include <deeprec/exec/cuda_stream_pool.hpp>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

namespace gpu_suite {

using deeprec::cuda_event, deeprec::cuda_runtime;

inline bool has_device() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
}

inline double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Median milliseconds of call(i).
inline double milliseconds(cudaStream_t on, int rounds, const std::function<void(int)>& call) {
  cuda_event begin(true), end(true);
  std::vector<double> times;
  for (int i = -3; i < rounds; ++i) {
    cuda_runtime::record(begin.get(), on).or_throw();
    call(i < 0 ? i + 3 : i);
    cuda_runtime::record(end.get(), on).or_throw();
    cuda_runtime::synchronize(on).or_throw();
    float ms = 0;
    cuda_runtime::milliseconds(ms, begin.get(), end.get()).or_throw();
    if (i >= 0) times.push_back(static_cast<double>(ms));
  }
  return median_of(times);
}

/// Runs a suite's body once per repetition; its counters are what the claims read.
inline void measure(benchmark::State& state, const std::function<std::string(benchmark::State&)>& body) {
  for (auto _ : state) {
    if (!has_device()) {
      state.SkipWithError("no CUDA device");
      return;
    }
    const std::string fault = body(state);
    if (!fault.empty()) {
      state.SkipWithError(fault.c_str());
      return;
    }
  }
}
inline void enlist(const char* name, std::string (*body)(benchmark::State&)) {
  benchmark::RegisterBenchmark(name, [body](benchmark::State& state) { measure(state, body); })
      ->Iterations(1)
      ->Repetitions(3);
}

}  // namespace gpu_suite
