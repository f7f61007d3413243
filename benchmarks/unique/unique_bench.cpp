// The different ids of Criteo's batches, by unique() and by what people write: pairs sorted, and hash maps
// of the standard library and of Abseil, each in the faster of two builds.
//
//   unique/criteo     26 columns with the ranks of the full data set, 32768 ids each, other ones each time,
//                     in batches of 2048 and 8192 ids, one thread; speedup over the fastest of them, the
//                     worse of the two sizes
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/ops/unique.hpp>

#include "support/criteo_trace.hpp"
#include "support/figures.hpp"
#include "unique/baseline.hpp"

namespace {

using namespace deeprec;
using baseline = long (*)(const std::int64_t*, long, std::int64_t*, std::int64_t*, std::int64_t*);

struct contender {
  const char* name;
  baseline run;
};
constexpr contender contenders[] = {
    {"sort_o2", &o2::unique_by_sort},         {"sort_native", &native::unique_by_sort},
    {"std_map_o2", &o2::unique_by_std_map},   {"std_map_native", &native::unique_by_std_map},
    {"flat_map_o2", &o2::unique_by_flat_map}, {"flat_map_native", &native::unique_by_flat_map}};

void criteo(benchmark::State& state) {
  constexpr index_t ids_of_column = 32768;
  std::uint64_t turn = 0;
  auto trace = deeprec_bench::criteo_trace(ids_of_column, ++turn);
  if (trace.empty()) return state.SkipWithError("no Criteo trace: set DEEPREC_DATA_DIR");
  const auto next = [&] { trace = deeprec_bench::criteo_trace(ids_of_column, ++turn); };
  inline_executor here;
  unique_ids<> different;
  std::vector<std::int64_t> ids, inverse, counts;
  const auto for_each_batch = [&](std::size_t batch, const auto& use) {
    for (std::size_t first = 0; first < static_cast<std::size_t>(ids_of_column); first += batch) {
      for (const auto& column : trace) use(column.data() + first);
    }
  };
  constexpr std::size_t sizes[] = {2048, 8192};
  ids.resize(sizes[1]), inverse.resize(sizes[1]), counts.resize(sizes[1]);
  for (auto _ : state) {
    for (const std::size_t batch : sizes) {
      for (const contender& c : contenders) {
        bool agrees = true;
        for_each_batch(batch, [&](const std::int64_t* in) {
          const long size = c.run(in, static_cast<long>(batch), ids.data(), inverse.data(), counts.data());
          if (!unique(here, std::span(in, batch), different)) std::abort();
          agrees = agrees && static_cast<std::size_t>(size) == different.ids.size();
          for (std::size_t k = 0; agrees && k < batch; ++k) {
            const auto i = static_cast<std::size_t>(inverse[k]);
            const auto j = static_cast<std::size_t>(different.inverse[k]);
            agrees = ids[i] == in[k] && different.ids[j] == in[k] && counts[i] == different.counts[j];
          }
        });
        if (!agrees)
          return state.SkipWithError((std::string("wrong answer: ") + c.name + " disagrees").c_str());
      }
    }
    deeprec_bench::figures f("unique/criteo");
    f.sample([&] {
      next();
      for (const std::size_t batch : sizes) {
        for (const contender& c : contenders) {
          const double seconds =
              f.pair(
                   "speedup", c.name + ("_" + std::to_string(batch)),
                   [&] {
                     for_each_batch(batch, [&](const std::int64_t* in) {
                       if (!unique(here, std::span(in, batch), different)) std::abort();
                     });
                   },
                   [&] {
                     for_each_batch(batch, [&](const std::int64_t* in) {
                       benchmark::DoNotOptimize(
                           c.run(in, static_cast<long>(batch), ids.data(), inverse.data(), counts.data()));
                     });
                   })
                  .first;
          f.note("ns_per_id_" + std::to_string(batch),
                 seconds / static_cast<double>(ids_of_column * 26) * 1e9);
        }
      }
    });
    f.report(state);
  }
}
BENCHMARK(criteo)->Name("unique/criteo")->Iterations(1)->UseManualTime()->Unit(benchmark::kMillisecond);

}  // namespace
