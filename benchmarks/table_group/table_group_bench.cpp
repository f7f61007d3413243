// All tables of a model in one call: 26 one-hot features at Criteo's table sizes, D = 16, uniform ids, so
// many batches in rotation that no cache holds their rows; out is (B, 26 * 16).
//
//   table_group/inline/batch:128     speedup over 26 lookups, one thread
//   table_group/threads:2/batch:128  speedup over 26 lookups on two threads
//   table_group/roofline/batch:2048  against a gather of the same rows to the same places
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <deeprec/core/hash.hpp>
#include <deeprec/core/random.hpp>
#include <deeprec/embedding/table_group.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "support/big_memory.hpp"
#include "support/criteo_trace.hpp"
#include "support/paired.hpp"
#include "table_group/baseline.hpp"

namespace {

using namespace deeprec;
using deeprec_bench::criteo_rows;
using deeprec_bench::in_turn;
using deeprec_bench::seconds_of;

constexpr index_t width = 16;
constexpr index_t features = 26;
constexpr int pairs_per_run = 9;

struct criteo_model {
  explicit criteo_model(index_t batch_rows) : rows(batch_rows) {
    char* const memory = deeprec_bench::huge_table();
    if (memory == nullptr) return;
    index_t before = 0;
    for (const index_t table_rows : criteo_rows) {
      first_row.push_back(memory + before * width * 4);
      tables.emplace_back(reinterpret_cast<const std::byte*>(first_row.back()), table_rows,
                          f32_rows(width));
      group.add(tables.back(), sum);
      before += table_rows;
    }
    for (index_t b = 0; b <= rows; ++b) offsets.push_back(b);
    const counter_rng rng(11);
    const index_t batches = (index_t{96} << 20) / (rows * features * width * 4);
    ids.resize(static_cast<std::size_t>(batches));
    bags.resize(ids.size());
    for (std::size_t s = 0; s < ids.size(); ++s) {
      for (index_t t = 0; t < features; ++t) {
        for (index_t r = 0; r < rows; ++r) {
          const auto draw = rng.bits(s, static_cast<std::uint64_t>(t * rows + r));
          ids[s].push_back(bucket(draw, criteo_rows[t]));
        }
      }
      for (index_t t = 0; t < features; ++t) {
        bags[s].emplace_back(offsets.data(), rows, ids[s].data() + t * rows, rows);
      }
    }
    out.resize(static_cast<std::size_t>(rows * features * width));
    view = {out.data(), rows, features * width};
  }

  template <class Executor>
  void in_one_call(Executor& executor) {
    for (const auto& batch : bags) {
      if (!lookup(executor, group, batch, view)) std::abort();
    }
  }
  template <class Executor>
  void table_by_table(Executor& executor) {
    for (const auto& batch : bags) {
      for (std::size_t t = 0; t < features; ++t) {
        const matrix_view part(out.data() + static_cast<index_t>(t) * width, rows, width,
                               features * width);
        if (!lookup(executor, tables[t], batch[t], sum, part)) std::abort();
      }
    }
  }
  template <class Gather>
  void gather(Gather run, index_t distance, bool into_all) {
    for (const auto& batch : bags) {
      const std::int64_t* of_feature[features];
      for (std::size_t t = 0; t < features; ++t) of_feature[t] = batch[t].ids();
      run({first_row.data(), of_feature, features, rows, distance, into_all, reinterpret_cast<char*>(out.data())});
    }
  }
  /// True when the last batch has the same bits by both calls.
  template <class First, class Second>
  bool agree(First&& first, Second&& second) {
    std::fill(out.begin(), out.end(), -1.0F);
    first();
    const std::vector<float> kept = out;
    std::fill(out.begin(), out.end(), -2.0F);
    second();
    return std::memcmp(kept.data(), out.data(), out.size() * sizeof(float)) == 0;
  }

  index_t rows;
  std::vector<const char*> first_row;
  std::vector<const_table_view<f32_rows>> tables;
  table_group<> group;
  std::vector<std::int64_t> offsets;
  std::vector<std::vector<std::int64_t>> ids;
  std::vector<std::vector<jagged_view<>>> bags;
  std::vector<float> out;
  matrix_view<float> view;
};

template <class Executor>
void against_calls(benchmark::State& state, Executor& executor, index_t rows) {
  criteo_model model(rows);
  if (model.tables.empty()) return state.SkipWithError("no 4 GB of memory");
  const auto ours = [&] { model.in_one_call(executor); };
  const auto theirs = [&] { model.table_by_table(executor); };
  for (auto _ : state) {
    if (!model.agree(ours, theirs)) return state.SkipWithError("wrong answer: 26 calls give other bits");
    const auto measured = in_turn(pairs_per_run, ours, theirs);
    state.counters["speedup"] = measured.ratio;
    state.counters["us_per_call"] = measured.first / static_cast<double>(model.bags.size()) * 1e6;
    state.SetIterationTime(measured.first);
  }
}

void against_roofline(benchmark::State& state, index_t rows) {
  criteo_model model(rows);
  if (model.tables.empty()) return state.SkipWithError("no 4 GB of memory");
  inline_executor here;
  const auto ours = [&] { model.in_one_call(here); };
  for (auto _ : state) {
    double best = 1e9;
    std::function<void()> limit;
    for (const auto run : {&o2::gather_64_bytes, &native::gather_64_bytes}) {
      for (const index_t distance : {0, 8, 16, 32, 64, -8, -16, -32, -64}) {
        const auto candidate = [&, run, distance] { model.gather(run, std::abs(distance), distance >= 0); };
        candidate();
        const double seconds = std::min(seconds_of(candidate), seconds_of(candidate));
        if (seconds < best) {
          best = seconds;
          limit = candidate;
        }
      }
    }
    if (!model.agree(ours, limit))
      return state.SkipWithError("wrong answer: the gather copies other rows");
    const auto measured = in_turn(pairs_per_run, ours, limit);
    state.counters["roofline"] = measured.ratio;
    state.counters["ns_per_row"] = measured.first / static_cast<double>(model.bags.size() * features) /
                                   static_cast<double>(rows) * 1e9;
    state.SetIterationTime(measured.first);
  }
}

void add(const std::string& name, std::function<void(benchmark::State&)> run) {
  benchmark::RegisterBenchmark(name.c_str(), std::move(run))
      ->Iterations(1)
      ->Repetitions(3)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

const bool registered = [] {
  add("table_group/inline/batch:128", [](benchmark::State& state) {
    inline_executor here;
    against_calls(state, here, 128);
  });
  add("table_group/threads:2/batch:128", [](benchmark::State& state) {
    thread_pool pool(2);
    against_calls(state, pool, 128);
  });
  add("table_group/roofline/batch:2048", [](benchmark::State& state) { against_roofline(state, 2048); });
  return true;
}();

}  // namespace
