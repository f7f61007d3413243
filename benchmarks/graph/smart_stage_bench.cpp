// What it takes to cut a graph, and how good the cut is.
//
//   graph/smart_stage/ops:1e6        the farthest cut of 10^6 ops and 4 * 10^6 edges: seconds
//   graph/smart_stage/sweep:1e4      the balanced cut of 10^4 ops, over every lambda that may matter: seconds
//   graph/smart_stage/optimal        10^4 graphs of 14 ops: share within 5 % of brute force
//
// The floor of the first: the colouring reads each edge's destination once, in order (16 MB), and for each a
// mark of 4 bytes at random among 4 MB; the sides read the edges out of and into each op once more each (the
// numbers of the edges in, 16 MB in order, and their sources at random among 16 MB), and listing the values
// reads the ports and bytes. About 100 MB in order, 10 ms at 10 GB/s, and 16 * 10^6 random accesses, which at
// 5 ns (the arrays lie in the last-level cache) are 80 ms: about 0.1 s. `floor` is that, with both paces
// measured in the run. The sweep has no such floor: it is as many least cuts as the bounds leave.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <deeprec/graph/passes/smart_stage.hpp>

#include "../tests/support/cut_oracle.hpp"
#include "../tests/support/random_graphs.hpp"
#include "support/figures.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bench;

// Seconds of reading `bytes` in order, and of as many reads at random among `among` bytes as `count`.
double floor_seconds(std::size_t bytes, std::size_t count, std::size_t among) {
  std::vector<std::uint32_t> in_order(bytes / 4, 1), marks(among / 4, 1);
  std::uint32_t sum = 0;
  const double first = seconds_of([&] {
    for (const std::uint32_t x : in_order) sum += x;
  });
  const double second = seconds_of([&] {
    std::uint64_t at = 1;
    for (std::size_t i = 0; i < count; ++i) {
      at = at * 6364136223846793005ULL + 1442695040888963407ULL;
      sum += marks[(at >> 33) % marks.size()];
    }
  });
  benchmark::DoNotOptimize(sum);
  return first + second;
}

void cut_of_a_million(benchmark::State& state) {
  std::mt19937_64 random(20);
  const flat_graph g = deeprec_test::layered_graph(random, 1'000'000, 1000, 4).flat().or_throw();
  figures f("graph/smart_stage/ops:1e6");
  double floor = 0;
  f.sample([&] {
    bool right = true;
    const double seconds = seconds_of([&] {
      const stage_cut cut = smart_stage(g, {.rule = stage_rule::farthest}).or_throw();
      right = cut.staged_ops().size() == 1'000'001;
    });
    if (!right) state.SkipWithError("wrong answer: every op but the target is staged");
    floor = floor_seconds(std::size_t{100} << 20, 16'000'000, std::size_t{16} << 20);
    f.add("seconds", seconds);
    f.note("floor", floor);
  });
  state.counters["edges"] = static_cast<double>(g.edge_count());
  for (auto _ : state) {
  }
  f.report(state);
}
BENCHMARK(cut_of_a_million)->Name("graph/smart_stage/ops:1e6")->Iterations(1)->UseManualTime();

void whole_sweep(benchmark::State& state) {
  figures f("graph/smart_stage/sweep:1e4");
  std::mt19937_64 random(21);
  std::vector<flat_graph> graphs;
  for (const index_t width : {10, 100, 1000})
    graphs.push_back(deeprec_test::layered_graph(random, 10'000, width, 4).flat().or_throw());
  f.sample([&] {
    double most = 0;
    for (const flat_graph& g : graphs) {
      for (const double per_byte : {0.0, 1e-4, 1e-2}) {
        bool right = true;
        const double seconds = seconds_of([&] {
          const stage_cut cut = smart_stage(g, {.cost_per_byte = per_byte}).or_throw();
          right = cut.cost.price <= cut.farthest_cost.price;
        });
        if (!right) state.SkipWithError("wrong answer: above the farthest cut");
        most = std::max(most, seconds);
      }
    }
    f.add("seconds", most);
  });
  for (auto _ : state) {
  }
  f.report(state);
}
BENCHMARK(whole_sweep)->Name("graph/smart_stage/sweep:1e4")->Iterations(1)->UseManualTime();

void against_brute_force(benchmark::State& state) {
  figures f("graph/smart_stage/optimal");
  std::mt19937_64 random(22);
  constexpr int graphs = 10'000;
  int good = 0, above = 0;
  double worst = 1;
  for (int i = 0; i < graphs; ++i) {
    const flat_graph g =
        deeprec_test::layered_graph(random, 14, 2 + static_cast<index_t>(random() % 3), 2).flat().or_throw();
    const double per_byte = (i % 4) * 0.0005;
    const stage_cut cut = smart_stage(g, {.cost_per_byte = per_byte}).or_throw();
    detail::stage_region region(g);
    std::vector<std::int32_t> ops;
    const double least = deeprec_test::least_price(region.problem(ops), {per_byte, 1});
    const double ratio = cut.cost.price / least;
    worst = std::max(worst, ratio);
    good += ratio <= 1.05 ? 1 : 0;
    above += cut.cost.price > cut.farthest_cost.price ? 1 : 0;
  }
  if (above > 0) state.SkipWithError("wrong answer: above the farthest cut");
  // The same in each round: it is no timing.
  f.sample([&] { f.add("within_5_percent", static_cast<double>(good) / graphs); });
  f.note("worst", worst);
  for (auto _ : state) {
  }
  f.report(state);
}
BENCHMARK(against_brute_force)->Name("graph/smart_stage/optimal")->Iterations(1)->UseManualTime();

}  // namespace
