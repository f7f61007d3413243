// Training steps of Criteo's tables, rows of 16 floats at the ranks, SGD, in three messages and in other
// ways.
//
//   sharding/model_parallel/n:N   batches of 2048 at each rank, against SOK's way by MPI's collectives: all
//                                 ids go to all ranks, partial sums of all bags come back, all gradients go
//                                 to all ranks. With a DLRM's weights, 1.9 MB: dense_step against one
//                                 MPI_Allreduce and a step of all
//   sharding/group_embedding/n:N  batches of 512 at each rank, against one feature after the other, with
//                                 three messages each
//
// speedup: the other way's time over ours. steps_per_second: ours. Ranks are processes under MPI.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <string>
#include <vector>

#include <deeprec/exec/thread_pool.hpp>

#include "sharding/rank_processes.hpp"
#include "support/criteo_trace.hpp"
#include "support/figures.hpp"

namespace {

void run(benchmark::State& state, const std::string& row, const std::string& ways) {
  const int n = static_cast<int>(state.range(0));
  if (deeprec_bench::criteo_ranks().empty())
    return state.SkipWithError("no Criteo trace: set DEEPREC_DATA_DIR");
  for (auto _ : state) {
    deeprec_bench::figures f("sharding/" + row + "/n:" + std::to_string(n));
    if (deeprec::usable_cpus().size() < static_cast<std::size_t>(n)) f.unfit("fewer processors than ranks");
    deeprec_bench::rank_processes ranks(n, ways);
    std::vector<double> seconds;
    f.sample([&] {
      if (!ranks.round(seconds)) return;
      f.add("speedup", seconds[0] / seconds[1]);
      f.note("steps_per_second", 1 / seconds[1]);
      f.note("steps_per_second_other", 1 / seconds[0]);
    });
    if (!ranks.problem().empty()) return state.SkipWithError(ranks.problem().c_str());
    f.report(state);
  }
}

void model_parallel(benchmark::State& state) { run(state, "model_parallel", "ways collectives 2048 16"); }
void group_embedding(benchmark::State& state) { run(state, "group_embedding", "ways one_by_one 512 16"); }
BENCHMARK(model_parallel)
    ->Name("sharding/model_parallel")
    ->ArgName("n")
    ->RangeMultiplier(2)
    ->Range(1, 4)
    ->Iterations(1)
    ->UseManualTime();
BENCHMARK(group_embedding)
    ->Name("sharding/group_embedding")
    ->ArgName("n")
    ->RangeMultiplier(2)
    ->Range(1, 4)
    ->Iterations(1)
    ->UseManualTime();

}  // namespace
