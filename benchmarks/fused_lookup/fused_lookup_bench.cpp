// The fused sparse lookup against its ops one by one: 26 features at Criteo's table sizes, D = 16, mean,
// the ids of the full-vocabulary trace as entries (row, id), batch after batch.
//
//   fused_lookup/criteo/batch:128    speedup over the faster build of the ops
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <deeprec/embedding/fused_lookup.hpp>
#include <deeprec/exec/inline_executor.hpp>

#include "fused_lookup/baseline.hpp"
#include "support/big_memory.hpp"
#include "support/criteo_trace.hpp"
#include "support/paired.hpp"

namespace {

using namespace deeprec;
using deeprec_bench::criteo_rows;
using deeprec_bench::in_turn;

constexpr index_t width = 16;
constexpr std::size_t features = 26;

void criteo(benchmark::State& state, index_t batch) {
  char* const memory = deeprec_bench::huge_table();
  const auto trace = deeprec_bench::criteo_trace();
  if (memory == nullptr) return state.SkipWithError("no 4 GB of memory");
  if (trace.empty()) return state.SkipWithError("no Criteo trace: set DEEPREC_DATA_DIR");
  const auto total = static_cast<index_t>(trace[0].size()) / batch * batch;
  std::vector<const_table_view<f32_rows>> tables;
  index_t before = 0;
  for (const index_t rows : criteo_rows) {
    tables.emplace_back(reinterpret_cast<const std::byte*>(memory) + before * width * 4, rows,
                        f32_rows(width));
    before += rows;
  }
  std::vector<std::int64_t> row_of(static_cast<std::size_t>(batch));
  for (index_t r = 0; r < batch; ++r) row_of[static_cast<std::size_t>(r)] = r;
  std::vector<float> out(static_cast<std::size_t>(batch * width) * features);
  inline_executor here;
  const auto ours = [&] {
    for (index_t r = 0; r < total; r += batch) {
      for (std::size_t t = 0; t < features; ++t) {
        const coo_view<> entries(row_of.data(), trace[t].data() + r, batch, batch);
        const matrix_view to(out.data() + static_cast<index_t>(t) * batch * width, batch, width);
        if (!fused_lookup(here, tables[t], entries, mean, to)) std::abort();
      }
    }
  };
  const auto theirs = [&](auto run) {
    for (index_t r = 0; r < total; r += batch) {
      for (std::size_t t = 0; t < features; ++t) {
        run({row_of.data(), trace[t].data() + r, batch, batch,
             static_cast<const float*>(static_cast<const void*>(tables[t].data())), width},
            out.data() + static_cast<index_t>(t) * batch * width);
      }
    }
  };
  for (auto _ : state) {
    theirs(&o2::op_by_op_mean);
    const std::vector<float> expected = out;
    std::fill(out.begin(), out.end(), -1.0F);
    ours();
    if (std::memcmp(expected.data(), out.data(), out.size() * sizeof(float)) != 0) {
      return state.SkipWithError("wrong answer: the ops give other bits");
    }
    double speedup = 1e9;
    for (const auto run : {&o2::op_by_op_mean, &native::op_by_op_mean}) {
      const auto measured = in_turn(9, ours, [&] { theirs(run); });
      speedup = std::min(speedup, measured.ratio);
      state.counters["ns_per_id"] = measured.first / static_cast<double>(total) / features * 1e9;
      state.SetIterationTime(measured.first);
    }
    state.counters["speedup"] = speedup;
  }
}

const bool registered = [] {
  for (const index_t batch : {128, 2048, 8192}) {
    const std::string name = "fused_lookup/criteo/batch:" + std::to_string(batch);
    benchmark::RegisterBenchmark(name.c_str(), [batch](benchmark::State& state) { criteo(state, batch); })
        ->Iterations(1)
        ->Repetitions(3)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  }
  return true;
}();

}  // namespace
