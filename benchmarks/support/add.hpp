// Registers a benchmark that times itself: run(state, name) is called once.
//
//   add("lookup/cold/d:64", [](benchmark::State& state, const std::string& name) { cold(state, name, 64); });
#pragma once

#include <benchmark/benchmark.h>

#include <string>
#include <utility>

namespace deeprec_bench {

/// @param run  called as run(state, name); sets the state's iteration time
template <class Run>
void add(const std::string& name, Run run) {
  benchmark::RegisterBenchmark(
      name.c_str(), [name, run = std::move(run)](benchmark::State& state) mutable { run(state, name); })
      ->Iterations(1)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

}  // namespace deeprec_bench
