// The different ids of Criteo's batches, by unique() and by what people write: pairs sorted, and hash maps
// of the standard library and of Abseil, each in the faster of two builds.
//
//   unique/criteo     26 columns of the full-vocabulary trace, 32768 ids each, in batches of 2048 and 8192 ids, one thread;
//                     speedup over the fastest of them, the worse of the two sizes
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/ops/unique.hpp>

#include "support/criteo_trace.hpp"
#include "support/paired.hpp"
#include "unique/baseline.hpp"

namespace {

using namespace deeprec;
using baseline = long (*)(const std::int64_t*, long, std::int64_t*, std::int64_t*, std::int64_t*);

constexpr baseline baselines[] = {&o2::unique_by_sort,        &native::unique_by_sort,
                                  &o2::unique_by_std_map,     &native::unique_by_std_map,
                                  &o2::unique_by_flat_map,    &native::unique_by_flat_map};

void criteo(benchmark::State& state) {
  const auto trace = deeprec_bench::criteo_trace();
  if (trace.empty()) return state.SkipWithError("no Criteo trace: set DEEPREC_DATA_DIR");
  inline_executor here;
  unique_ids<> different;
  for (auto _ : state) {
    double speedup = 1e9;
    for (const std::size_t batch : {std::size_t{2048}, std::size_t{8192}}) {
      const std::size_t total = std::min(trace[0].size(), std::size_t{32768}) / batch * batch;
      const auto ours_of = [&](const std::int64_t* ids) {
        if (!unique(here, std::span(ids, batch), different)) std::abort();
      };
      const auto for_each_batch = [&](const auto& use) {
        for (std::size_t first = 0; first < total; first += batch) {
          for (const auto& column : trace) use(column.data() + first);
        }
      };
      std::vector<std::int64_t> ids(batch), inverse(batch), counts(batch);
      for (const baseline theirs : baselines) {
        const auto n = static_cast<long>(batch);
        bool agrees = true;
        for_each_batch([&](const std::int64_t* in) {
          const long size = theirs(in, n, ids.data(), inverse.data(), counts.data());
          ours_of(in);
          agrees = agrees && static_cast<std::size_t>(size) == different.ids.size();
          for (std::size_t k = 0; agrees && k < batch; ++k) {
            const auto i = static_cast<std::size_t>(inverse[k]);
            const auto j = static_cast<std::size_t>(different.inverse[k]);
            agrees = ids[i] == in[k] && different.ids[j] == in[k] && counts[i] == different.counts[j];
          }
        });
        if (!agrees) return state.SkipWithError("wrong answer: a baseline disagrees");
        const auto measured = deeprec_bench::in_turn(
            9, [&] { for_each_batch(ours_of); },
            [&] {
              for_each_batch([&](const std::int64_t* in) {
                benchmark::DoNotOptimize(theirs(in, n, ids.data(), inverse.data(), counts.data()));
              });
            });
        speedup = std::min(speedup, measured.ratio);
        state.counters["ns_per_id"] = measured.first / static_cast<double>(total * trace.size()) * 1e9;
        state.SetIterationTime(measured.first);
      }
    }
    state.counters["speedup"] = speedup;
  }
}
BENCHMARK(criteo)->Name("unique/criteo")->Iterations(1)->Repetitions(3)->UseManualTime()->Unit(
    benchmark::kMillisecond);

}  // namespace
