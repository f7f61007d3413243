// Exchanges between processes.
//
//   sharding/exchange       two ranks under MPI, a processor each, 1 KB to 13.6 MB each way. of_plain: the
//                           time of MPI_Irecv, MPI_Isend and MPI_Waitall of as many bytes over that of an
//                           exchange of mpi_ranks, whose messages have a header; the least of the sizes
//   sharding/overlap/net    four hosts, which are network namespaces with links of 200 Mbit, and 246 KB to
//                           each other one, rows of 16 floats of a batch of Criteo. hidden: of the time of an
//                           exchange, the share that a timer of the same time hides, when it polls every 50
//                           us
//   sharding/stale/net      the same hosts: training steps of Criteo's tables, batches of 512 at each host,
//                           rows of 16 floats, where computing, a timer, takes as long as all messages. w2,
//                           w4: steps a second under windows of 2 and 4 over those of synchronous steps
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <deeprec/exec/thread_pool.hpp>

#include "sharding/rank_processes.hpp"
#include "support/figures.hpp"

namespace {

using deeprec_bench::figures;
using deeprec_bench::rank_processes;

void exchange_of(benchmark::State& state) {
  if (deeprec::usable_cpus().size() < 2) return state.SkipWithError("unfit: one CPU");
  // Criteo's ids of a batch between them, and rows of 16 and 64 floats for each.
  const std::vector<std::size_t> sizes = {1 << 10, 1 << 14, 212'992, 1'703'936, 6'815'744, 13'631'488};
  std::string words;
  for (const std::size_t bytes : sizes) words += " " + std::to_string(bytes);
  for (auto _ : state) {
    figures f("sharding/exchange");
    rank_processes ranks(2, "exchanges" + words);
    std::vector<double> seconds;
    f.sample([&] {
      if (!ranks.round(seconds)) return;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        f.add("of_plain", seconds[2 * i] / seconds[2 * i + 1], std::to_string(sizes[i]));
        f.note("us_" + std::to_string(sizes[i]), seconds[2 * i + 1] * 1e6);
      }
    });
    if (!ranks.problem().empty()) return state.SkipWithError(ranks.problem().c_str());
    f.report(state);
  }
}
BENCHMARK(exchange_of)->Name("sharding/exchange")->Iterations(1)->UseManualTime();

void overlap(benchmark::State& state) {
  for (auto _ : state) {
    figures f("sharding/overlap/net");
    rank_processes ranks(4, "overlap 245760", "200mbit");
    std::vector<double> seconds;
    f.sample([&] {
      if (!ranks.round(seconds)) return;
      const double alone = seconds[0], timer = seconds[1], both = seconds[2];
      f.add("hidden", (alone + timer - both) / std::min(alone, timer));
      f.note("exchange_ms", alone * 1e3);
      f.note("both_ms", both * 1e3);
    });
    if (!ranks.problem().empty()) return state.SkipWithError(ranks.problem().c_str());
    f.report(state);
  }
}
BENCHMARK(overlap)->Name("sharding/overlap/net")->Iterations(1)->UseManualTime();

void stale(benchmark::State& state) {
  for (auto _ : state) {
    figures f("sharding/stale/net");
    rank_processes ranks(4, "windows", "200mbit");
    std::vector<double> seconds;
    f.sample([&] {
      if (!ranks.round(seconds)) return;
      f.add("w2", seconds[0] / seconds[1]);
      f.add("w4", seconds[0] / seconds[2]);
      f.note("computes_ms", seconds[3] * 1e3);
      f.note("w1_ms", seconds[0] * 1e3);
    });
    if (!ranks.problem().empty()) return state.SkipWithError(ranks.problem().c_str());
    f.report(state);
  }
}
BENCHMARK(stale)->Name("sharding/stale/net")->Iterations(1)->UseManualTime();

}  // namespace
