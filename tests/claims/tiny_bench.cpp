// A suite of sums of eight numbers, on a clock of its own: what the measuring does with good and bad
// benchmarks, and how long that takes here has no say in it.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "support/figures.hpp"
#include "support/roofline.hpp"

namespace {

using namespace deeprec_bench;

double passed = 0;  // seconds of the clock
int calls = 0;

const std::vector<int> numbers{3, 1, 4, 1, 5, 9, 2, 6};
int sum_of(double seconds, int fault = 0) {
  passed += seconds;
  int sum = fault;
  for (const int n : numbers) sum += n;
  return sum;
}

struct scene {
  std::string name{};
  const char* counter = "speedup";
  std::function<double()> ours = [] { return 1.0; };    // seconds of a call
  std::function<double()> theirs = [] { return 1.5; };  // of the other side
  int our_fault = 0;
  int their_fault = 0;
  bool peer = true;
  std::string unfit{};
  bool figures = true;
  double pause = 0;                  // seconds between rounds
  double theirs_of_second_case = 0;  // none
};

void play(benchmark::State& state, const scene& s) {
  passed = 0;
  calls = 0;
  for (auto _ : state) {
    if (!s.peer) return state.SkipWithError("no peer here");
    if (sum_of(0, s.their_fault) != 31)
      return state.SkipWithError("wrong answer: the baseline sums to other bits");
    if (sum_of(0, s.our_fault) != 31) return state.SkipWithError("wrong answer: ours sums to other bits");
    if (!s.figures) return state.SkipWithError(("unfit: " + s.unfit).c_str());
    const auto run = [](std::function<double()> seconds) {
      return [seconds = std::move(seconds)] { benchmark::DoNotOptimize(sum_of(seconds())); };
    };
    const candidate limit = fastest({{"slow", run([] { return 100.0; })}, {"quick", run(s.theirs)}});
    if (const std::string fault = out_of_bounds(limit.name, limit.seconds, 0.1, 10); !fault.empty()) {
      return state.SkipWithError(fault.c_str());
    }
    calls = 0;
    figures f("tiny/" + s.name);
    f.unfit(s.unfit);
    f.sample([&] {
      passed += s.pause;
      f.pair(s.counter, "", run(s.ours), limit.run);
      if (const double seconds = s.theirs_of_second_case; seconds > 0) {
        f.pair(s.counter, "second", run(s.ours), run([seconds] { return seconds; }));
      }
    });
    f.report(state);
  }
}

const bool registered = [] {
  clock_now = [] { return passed; };
  const auto constant = [](double seconds) { return [seconds] { return seconds; }; };
  // Of twenty calls so many take two seconds, the others one.
  const auto slow_of_20 = [](int slow) { return [slow] { return ++calls * 7 % 20 < slow ? 2.0 : 1.0; }; };
  const std::vector<scene> scenes = {
      {.name = "ahead"},
      {.name = "behind", .ours = constant(1.6)},
      {.name = "settles", .ours = slow_of_20(6)},  // pairs of 1.5 and 0.75, on both sides of 1
      {.name = "noisy", .ours = slow_of_20(10)},
      {.name = "noisy_slow", .ours = slow_of_20(10), .pause = 20},
      {.name = "broken_baseline", .their_fault = 1},
      {.name = "wrong_answer", .our_fault = 1},
      {.name = "missing_peer", .peer = false},
      {.name = "unfit", .unfit = "one CPU"},
      {.name = "unfit_without_figures", .unfit = "no memory", .figures = false},
      {.name = "roofline", .counter = "roofline", .theirs = constant(0.98)},
      {.name = "passed_roofline", .counter = "roofline", .theirs = constant(1.02)},
      {.name = "beaten_roofline", .counter = "roofline", .theirs = constant(1.04)},
      {.name = "roofline_beaten_once",
       .counter = "roofline",
       .theirs = constant(0.96),
       .theirs_of_second_case = 1.2},
      {.name = "doubtful_roofline", .counter = "roofline", .ours = slow_of_20(9), .theirs = constant(1.1)},
      {.name = "too_fast_roofline", .counter = "roofline", .theirs = constant(0.05)},
      {.name = "too_slow_roofline", .counter = "roofline", .theirs = constant(11)},
  };
  for (const scene& s : scenes) {
    benchmark::RegisterBenchmark(("tiny/" + s.name).c_str(), [s](benchmark::State& state) { play(state, s); })
        ->Iterations(1)
        ->UseManualTime();
  }
  benchmark::AddCustomContext("peer.nobody", "1.2.3");
  return true;
}();

}  // namespace
