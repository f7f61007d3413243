// How the suites on a GPU are timed and listed.
//
//   stopwatch watch(stream);
//   watch.warm_up(call);               100 ms: clocks are up, pages are there, scratch has grown
//   watch.device(20, 4, call)          spin ... | call call call call |   the host runs ahead of the card,
//                                         begin ┘                 end ┘   so its own time is not inside
//   watch.with_host(20, 4, call)       the same without the spin: what a step takes that is launched call by
//                                      call
//
// call(i) enqueues on the stream; i goes on counting, so that inputs rotate, and last() is the last of them.
#pragma once

#include <benchmark/benchmark.h>

#include <deeprec/plan/cuda_stream_pool.hpp>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "../support/paired.hpp"

namespace gpu_suite {

using deeprec::cuda_event, deeprec::cuda_runtime, deeprec::index_t;

// DEEPREC_BENCH_TINY: sizes for a look at the answers, where there is no card.
#if defined(DEEPREC_BENCH_TINY)
inline constexpr bool tiny = true;
#else
inline constexpr bool tiny = false;
#endif
template <class T>
constexpr T pick(T size, T if_tiny) {
  return tiny ? if_tiny : size;
}

/// Whether the answer that is looked at next shall be made wrong: the DEEPREC_BENCH_SPOIL-th of the process,
/// sizes being tiny. A look that does not find it is none.
inline bool spoils() {
  if constexpr (tiny) {
    static int looks = 0;
    const char* const which = std::getenv("DEEPREC_BENCH_SPOIL");
    return which != nullptr && ++looks == std::atoi(which);
  }
  return false;
}

/// Keeps the card busy for that long (spin.cu).
void spin(cudaStream_t on, double microseconds);

inline bool has_device() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
}

inline double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// A median with the interval that claims are judged by, of at least 21 timings.
struct figure {
  double median = 0, low = 0, high = 0;
  int pairs = 0;
  explicit(false) operator double() const { return median; }
};
inline figure figure_of(const std::vector<double>& values) {
  const auto [median, low, high] = deeprec_bench::median_interval(values);
  return {median, low, high, static_cast<int>(values.size())};
}
/// x over each of them.
inline figure over(double x, const figure& of) { return {x / of.median, x / of.high, x / of.low, of.pairs}; }
inline figure least_of(const figure& a, const figure& b) { return a.median < b.median ? a : b; }
inline void tell(benchmark::State& state, const std::string& name, const figure& what) {
  state.counters[name] = what.median;
  state.counters[name + "_low"] = what.low;
  state.counters[name + "_high"] = what.high;
  state.counters["pairs"] = what.pairs;
}

class stopwatch {
 public:
  using call_type = std::function<void(int)>;
  explicit stopwatch(cudaStream_t on) : on_(on), begin_(true), end_(true) {}

  void warm_up(const call_type& call, double milliseconds = 100) {
    const auto started = std::chrono::steady_clock::now();
    do {
      for (int i = 0; i < pick(4, 1); ++i) call(next_++);
      cuda_runtime::synchronize(on_).or_throw();
    } while (!tiny && std::chrono::steady_clock::now() - started <
                          std::chrono::duration<double, std::milli>(milliseconds));
  }

  /// Milliseconds of one of `calls` on the device, once.
  double device_once(int calls, const call_type& call) {
    for (int tries = 0;; ++tries) {
      spin(on_, spin_us_);
      cuda_runtime::record(begin_.get(), on_).or_throw();
      for (int i = 0; i < calls; ++i) call(next_++);
      // The card has not come to the begin while the host is at the end: it will find all calls waiting.
      const bool ahead = cudaEventQuery(begin_.get()) == cudaErrorNotReady;
      if (ahead) static_cast<void>(cudaGetLastError());  // not an error, but kept as one
      const double ms = finish(calls);
      if (ahead) return ms;
      if (tries == 8) {
        ++late_;
        return ms;
      }
      spin_us_ *= 2;
    }
  }
  /// Milliseconds of one of `calls` with all that the host does, once.
  double with_host_once(int calls, const call_type& call) {
    cuda_runtime::record(begin_.get(), on_).or_throw();
    for (int i = 0; i < calls; ++i) call(next_++);
    return finish(calls);
  }
  /// Their medians.
  figure device(int rounds, int calls, const call_type& call) {
    return median([&] { return device_once(calls, call); }, rounds);
  }
  figure with_host(int rounds, int calls, const call_type& call) {
    return median([&] { return with_host_once(calls, call); }, rounds);
  }

  /// The number that the last call was given.
  [[nodiscard]] int last() const { return next_ - 1; }
  /// Timings that have some of the host's time in them all the same.
  [[nodiscard]] int late() const { return late_; }

 private:
  double finish(int calls) {
    cuda_runtime::record(end_.get(), on_).or_throw();
    cuda_runtime::synchronize(on_).or_throw();
    float ms = 0;
    cuda_runtime::milliseconds(ms, begin_.get(), end_.get()).or_throw();
    return static_cast<double>(ms) / calls;
  }
  static figure median(const std::function<double()>& once, int rounds) {
    std::vector<double> times;
    for (int i = 0; i < pick(rounds, 1); ++i) times.push_back(once());
    return figure_of(times);
  }

  cudaStream_t on_;
  cuda_event begin_, end_;
  double spin_us_ = 200;
  int next_ = 0;
  int late_ = 0;
};

/// The median of a() / b(), timed in turns.
inline figure ratio_in_turns(int rounds, const std::function<double()>& a, const std::function<double()>& b) {
  std::vector<double> ratios;
  for (int i = 0; i < pick(rounds, 2); ++i) {
    double ms[2];
    for (const int which : {i % 2, 1 - i % 2}) ms[which] = which == 0 ? a() : b();
    ratios.push_back(ms[0] / ms[1]);
  }
  return figure_of(ratios);
}

/// Runs a suite's body once per repetition; its counters are what the claims read. What the body throws is
/// what the benchmark is skipped with.
inline void measure(benchmark::State& state, const std::function<std::string(benchmark::State&)>& body) {
  for (auto _ : state) {
    std::string fault;
    if (!has_device()) {
      fault = "no CUDA device";
    } else {
      try {
        fault = body(state);
      } catch (const std::exception& thrown) {
        fault = std::string("failed: ") + thrown.what();
      }
    }
    if (!fault.empty()) {
      state.SkipWithError(fault.c_str());
      return;
    }
  }
}
/// DEEPREC_BENCH_ONCE: one repetition of each, for a look.
inline void enlist(const char* name, std::string (*body)(benchmark::State&), int repetitions = 3) {
  if (std::getenv("DEEPREC_BENCH_ONCE") != nullptr) repetitions = 1;
  benchmark::RegisterBenchmark(name, [body](benchmark::State& state) { measure(state, body); })
      ->Iterations(1)
      ->Repetitions(pick(repetitions, 1));
}

}  // namespace gpu_suite
