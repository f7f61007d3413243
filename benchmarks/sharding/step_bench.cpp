// Lookups and training steps in tables of two processes, against whole tables at each.
//
//   sharding/lookup/n2/d:D   Criteo's batches by the ranks of the full data set, 2048 at each of two ranks
//                            under MPI, a processor each; f32 rows, sums, ids checked. of_local: the time of
//                            resolve and lookup over that of a lookup in whole tables, which both ranks make
//                            at once
//   sharding/step/n2/d:D     the same with an SGD step of the rows
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <deeprec/exec/thread_pool.hpp>

#include "sharding/rank_processes.hpp"
#include "support/criteo_trace.hpp"
#include "support/figures.hpp"

namespace {

using deeprec_bench::criteo_rows;

// Rows of the longest tables, so that those of two ranks and a whole one at each have room.
long most_rows(long width, std::string& unfit) {
  const auto bytes = [&](long most) {
    std::size_t rows = 0;
    for (const auto of_table : criteo_rows) rows += static_cast<std::size_t>(std::min<long>(of_table, most));
    return 3 * rows * static_cast<std::size_t>(width) * sizeof(float);
  };
  long most = *std::max_element(std::begin(criteo_rows), std::end(criteo_rows));
  const auto plan = deeprec_bench::memory_plan::of(bytes(most));
  unfit = plan.unfit;
  while (bytes(most) > plan.bytes) most /= 2;
  return most;
}

void run(benchmark::State& state, const std::string& name, const char* what) {
  const long width = state.range(0);
  if (deeprec_bench::criteo_ranks().empty())
    return state.SkipWithError("no Criteo trace: set DEEPREC_DATA_DIR");
  if (deeprec::usable_cpus().size() < 2) return state.SkipWithError("unfit: one CPU");
  for (auto _ : state) {
    deeprec_bench::figures f(name);
    std::string unfit;
    const long most = most_rows(width, unfit);
    f.unfit(unfit);
    if (!unfit.empty()) f.say("rows of a table at most " + std::to_string(most));
    const std::string words = "steps " + std::to_string(width) + " " + std::to_string(most) + " " + what;
    std::optional<deeprec_bench::rank_processes> ranks;
    int rounds = 0;
    std::vector<double> seconds;
    f.sample([&] {
      if (rounds++ % 4 == 0) ranks.emplace(2, words);  // where tables lie in memory decides as much as code
      if (!ranks->round(seconds)) return;
      f.add("of_local", seconds[1] / seconds[0]);
      f.note("local_us", seconds[0] * 1e6);
      f.note("sharded_us", seconds[1] * 1e6);
    });
    if (!ranks->problem().empty()) return state.SkipWithError(ranks->problem().c_str());
    f.report(state);
  }
}

void lookup_n2(benchmark::State& state) {
  run(state, "sharding/lookup/n2/d:" + std::to_string(state.range(0)), "lookup");
}
void step_n2(benchmark::State& state) {
  run(state, "sharding/step/n2/d:" + std::to_string(state.range(0)), "step");
}
BENCHMARK(lookup_n2)
    ->Name("sharding/lookup/n2")
    ->ArgName("d")
    ->Arg(16)
    ->Arg(64)
    ->Iterations(1)
    ->UseManualTime();
BENCHMARK(step_n2)->Name("sharding/step/n2")->ArgName("d")->Arg(16)->Arg(64)->Iterations(1)->UseManualTime();

}  // namespace
