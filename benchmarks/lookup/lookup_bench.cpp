// Pooled lookups against the roofline of a random gather, the best plain loop, and themselves on ordinary
// pages.
//
//   lookup/cold/d:64            roofline: a 4 GB table, twelve index sets or more in rotation, hotness 20
//                               and 100 (the worse of the two); roofline = best gather of the same ids in this run
//   lookup/cold/d:64/threads:2  the same on two threads
//   lookup/onehot/d:64          against gather plus store
//   lookup/vs_loop/d:16         speedup over the faster build of a plain loop
//   lookup/huge_pages/d:64      speedup over the same table on ordinary pages
//   lookup/criteo/batch:128     26 one-hot tables at Criteo's sizes, D = 16, the full-vocabulary trace
//
// Answers are compared bit by bit with the plain loop before anything is timed. Everything runs in the
// default bounds mode. A roofline above twice the machine's sequential read is refused as a mistake.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/embedding/lookup.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "lookup/baseline.hpp"
#include "support/big_memory.hpp"
#include "support/criteo_trace.hpp"
#include "support/paired.hpp"
#include "support/uniform_batches.hpp"

namespace {

using namespace deeprec;
using deeprec_bench::batch;
using deeprec_bench::criteo_rows;
using deeprec_bench::criteo_trace;
using deeprec_bench::huge_table;
using deeprec_bench::in_turn;
using deeprec_bench::median;
using deeprec_bench::ordinary_table;
using deeprec_bench::seconds_of;
using deeprec_bench::table_bytes;
using deeprec_bench::uniform_batches;

constexpr int pairs_per_run = 9;

plain_batch plain(const batch& set) {
  return {set.offsets.data(), set.ids.data(), set.view().bags()};
}

template <class Element>
const_table_view<plain_rows<Element>> table_of(const char* memory, index_t width) {
  const plain_rows<Element> format(width);
  return {static_cast<const std::byte*>(static_cast<const void*>(memory)),
          static_cast<index_t>(table_bytes) / format.stride_bytes(), format};
}

/// Bytes per second of one pass over 1 GB.
double sequential_read() {
  static const double rate = [] {
    std::vector<double> seconds;
    for (int i = 0; i < 3; ++i) {
      seconds.push_back(seconds_of([] {
        const auto* words = reinterpret_cast<const std::uint64_t*>(huge_table());
        std::uint64_t sum[8] = {};
        for (std::size_t w = 0; w < (std::size_t{1} << 27); w += 8) {
          for (std::size_t l = 0; l < 8; ++l) sum[l] += words[w + l];
        }
        benchmark::DoNotOptimize(sum);
      }));
    }
    return static_cast<double>(1 << 30) / median(seconds);
  }();
  return rate;
}

using gather_function = float (*)(const gather_plan&);

/// The gather that is fastest on these ids: over both builds, distances and kinds of prefetch.
struct roofline {
  gather_plan plan{};
  gather_function run = nullptr;
  double bytes_per_second = 0;

  static roofline best(const char* table, index_t row_bytes, const std::vector<batch>& sets, char* out) {
    roofline found;
    const index_t lines = (row_bytes + 63) / 64;
    for (const gather_function candidate : {&o2::gather, &native::gather}) {
      for (const index_t in_flight : {0, 32, 64, 96, 128, 192}) {
        for (const int into : {3, 2, 0}) {
          if (in_flight == 0 && into != 3) continue;
          gather_plan plan{table, row_bytes, nullptr, 0, in_flight / lines, into, out};
          double seconds = 1e9;
          for (int repeat = 0; repeat < 2; ++repeat) {
            seconds = std::min(seconds, seconds_of([&] { pass(candidate, plan, sets); }));
          }
          const double rate = bytes_of(sets, row_bytes) / seconds;
          if (rate > found.bytes_per_second) found = {plan, candidate, rate};
        }
      }
    }
    return found;
  }
  static double bytes_of(const std::vector<batch>& sets, index_t row_bytes) {
    double ids = 0;
    for (const batch& set : sets) ids += static_cast<double>(set.ids.size());
    return ids * static_cast<double>(row_bytes);
  }
  static void pass(gather_function run, gather_plan plan, const std::vector<batch>& sets) {
    for (const batch& set : sets) {
      plan.ids = set.ids.data();
      plan.count = static_cast<std::int64_t>(set.ids.size());
      benchmark::DoNotOptimize(run(plan));
    }
  }
  void pass(const std::vector<batch>& sets) const { pass(run, plan, sets); }
  bool sane() const {
    return bytes_per_second > 0.02 * sequential_read() && bytes_per_second < 2 * sequential_read();
  }
};

template <class Executor, class Element>
void look_up(Executor& executor, const const_table_view<plain_rows<Element>>& table, const batch& set,
             std::vector<float>& out) {
  const status s = lookup(executor, table, set.view(), sum,
                          matrix_view(out.data(), set.view().bags(), table.width()));
  if (!s) std::abort();
}

/// True when the plain loop gives the same bits.
bool same_answer(const char* memory, index_t width, const batch& set) {
  const auto table = table_of<float>(memory, width);
  const auto size = static_cast<std::size_t>(set.view().bags() * width);
  std::vector<float> ours(size), theirs(size);
  thread_pool one(1);
  look_up(one, table, set, ours);
  native::plain_sum(reinterpret_cast<const float*>(memory), width, plain(set), theirs.data());
  return std::memcmp(ours.data(), theirs.data(), size * sizeof(float)) == 0;
}

bool usable(benchmark::State& state, const char* memory) {
  if (memory == nullptr) state.SkipWithError("no 4 GB of memory");
  return memory != nullptr;
}

template <class Element>
void cold(benchmark::State& state, index_t width, int threads) {
  char* const memory = huge_table();
  if (!usable(state, memory)) return;
  const auto table = table_of<Element>(memory, width);
  double worst = 1e9;
  for (auto _ : state) {
    for (const index_t hotness : {20, 100}) {
      const std::vector<batch> sets = uniform_batches(table.rows(), hotness, table.format().row_bytes());
      if (std::is_same_v<Element, float> && !same_answer(memory, width, sets[0])) {
        return state.SkipWithError("wrong answer: the plain loop sums to other bits");
      }
      std::vector<float> out(static_cast<std::size_t>(sets[0].view().bags() * width));
      const roofline limit = roofline::best(memory, table.format().row_bytes(), sets, nullptr);
      if (!limit.sane()) return state.SkipWithError("a roofline out of bounds");
      thread_pool pool(threads);
      // On two threads each gathers half of the sets.
      const auto middle = sets.begin() + static_cast<std::ptrdiff_t>(sets.size() / 2);
      const std::vector<batch> halves[2] = {{sets.begin(), middle}, {middle, sets.end()}};
      const auto measured = in_turn(
          pairs_per_run, [&] { for (const batch& set : sets) look_up(pool, table, set, out); },
          [&] {
            if (threads == 1) return limit.pass(sets);
            pool.parallel_for(2, 1, [&](index_t begin, index_t end, int) {
              for (index_t h = begin; h < end; ++h) limit.pass(halves[h]);
            });
          });
      const double rows = roofline::bytes_of(sets, 1);
      const std::string suffix = "_h" + std::to_string(hotness);
      state.counters["roofline" + suffix] = measured.ratio;
      state.counters["ns_per_row" + suffix] = measured.first / rows * 1e9;
      state.counters["gather_ns_per_row" + suffix] = measured.second / rows * 1e9;
      state.counters["lines_ahead" + suffix] =
          static_cast<double>(limit.plan.distance * ((limit.plan.row_bytes + 63) / 64));
      worst = std::min(worst, measured.ratio);
      state.SetIterationTime(measured.first);
    }
  }
  state.counters["roofline"] = worst;
}

void onehot(benchmark::State& state, index_t width) {
  char* const memory = huge_table();
  if (!usable(state, memory)) return;
  const auto table = table_of<float>(memory, width);
  for (auto _ : state) {
    const std::vector<batch> sets = uniform_batches(table.rows(), 1, width * 4);
    if (!same_answer(memory, width, sets[0])) return state.SkipWithError("wrong answer: other bits");
    std::vector<float> out(static_cast<std::size_t>(sets[0].view().bags() * width));
    const roofline limit = roofline::best(memory, table.format().row_bytes(), sets,
                                          reinterpret_cast<char*>(out.data()));
    if (!limit.sane()) return state.SkipWithError("a roofline out of bounds");
    thread_pool one(1);
    const auto measured = in_turn(
        pairs_per_run, [&] { for (const batch& set : sets) look_up(one, table, set, out); },
        [&] { limit.pass(sets); });
    state.counters["roofline"] = measured.ratio;
    state.counters["ns_per_row"] = measured.first / roofline::bytes_of(sets, 1) * 1e9;
    state.SetIterationTime(measured.first);
  }
}

/// Over the faster build of the plain loop; rows: how many the ids are drawn from (0: all).
void vs_loop(benchmark::State& state, index_t width, index_t rows) {
  char* const memory = huge_table();
  if (!usable(state, memory)) return;
  const auto table = table_of<float>(memory, width);
  for (auto _ : state) {
    const std::vector<batch> sets = uniform_batches(rows == 0 ? table.rows() : rows, 20, width * 4);
    if (!same_answer(memory, width, sets[0])) return state.SkipWithError("wrong answer: other bits");
    std::vector<float> out(static_cast<std::size_t>(sets[0].view().bags() * width));
    thread_pool one(1);
    const auto ours = [&] { for (const batch& set : sets) look_up(one, table, set, out); };
    double speedup = 1e9;
    for (const auto loop : {&o2::plain_sum, &native::plain_sum}) {
      const auto measured = in_turn(pairs_per_run, ours, [&] {
        for (const batch& set : sets) {
          loop(reinterpret_cast<const float*>(memory), width, plain(set), out.data());
        }
      });
      speedup = std::min(speedup, measured.ratio);
      state.SetIterationTime(measured.first);
    }
    state.counters["speedup"] = speedup;
  }
}

void huge_pages(benchmark::State& state, index_t width) {
  char* const memory = huge_table();
  char* const other = ordinary_table();
  if (!usable(state, memory) || !usable(state, other)) return;
  const auto table = table_of<float>(memory, width);
  const auto ordinary = table_of<float>(other, width);
  for (auto _ : state) {
    const std::vector<batch> sets = uniform_batches(table.rows(), 20, width * 4);
    std::vector<float> out(static_cast<std::size_t>(sets[0].view().bags() * width));
    thread_pool one(1);
    const auto measured = in_turn(
        pairs_per_run, [&] { for (const batch& set : sets) look_up(one, table, set, out); },
        [&] { for (const batch& set : sets) look_up(one, ordinary, set, out); });
    state.counters["speedup"] = measured.ratio;
    state.SetIterationTime(measured.first);
  }
}

/// 26 calls, one for each table, batch after batch through the trace.
void criteo(benchmark::State& state, index_t batch_rows) {
  constexpr index_t width = 16;
  char* const memory = huge_table();
  if (!usable(state, memory)) return;
  const auto trace = criteo_trace();
  if (trace.empty()) return state.SkipWithError("no Criteo trace: set DEEPREC_DATA_DIR");
  const auto total = static_cast<index_t>(trace[0].size()) / batch_rows * batch_rows;
  std::vector<const_table_view<f32_rows>> tables;
  std::vector<const char*> first_row;
  index_t before = 0;
  for (const index_t rows : criteo_rows) {
    first_row.push_back(memory + before * width * 4);
    tables.emplace_back(reinterpret_cast<const std::byte*>(first_row.back()), rows, f32_rows(width));
    before += rows;
  }
  std::vector<std::int64_t> offsets;
  for (index_t b = 0; b <= batch_rows; ++b) offsets.push_back(b);
  std::vector<float> out(static_cast<std::size_t>(batch_rows * width * 26));
  thread_pool one(1);
  const auto ours = [&] {
    for (index_t r = 0; r < total; r += batch_rows) {
      for (std::size_t t = 0; t < 26; ++t) {
        const status s = lookup(
            one, tables[t], jagged_view<>(offsets.data(), batch_rows, trace[t].data() + r, batch_rows), sum,
            matrix_view(out.data() + static_cast<index_t>(t) * batch_rows * width, batch_rows, width));
        if (!s) std::abort();
      }
    }
  };
  for (auto _ : state) {
    double best = 1e9;
    std::function<void()> limit;
    for (const gather_function run : {&o2::gather, &native::gather}) {
      for (const auto& [distance, into] : std::vector<std::pair<index_t, int>>{
               {0, 3}, {16, 3}, {32, 3}, {64, 3}, {16, 2}, {32, 2}, {64, 2}}) {
        const auto candidate = [&, run, distance = distance, into = into] {
          for (index_t r = 0; r < total; r += batch_rows) {
            for (std::size_t t = 0; t < 26; ++t) {
              benchmark::DoNotOptimize(
                  run({first_row[t], width * 4, trace[t].data() + r, batch_rows, distance, into,
                       reinterpret_cast<char*>(out.data()) +
                           static_cast<index_t>(t) * batch_rows * width * 4}));
            }
          }
        };
        candidate();
        const double seconds = std::min(seconds_of(candidate), seconds_of(candidate));
        if (seconds < best) {
          best = seconds;
          limit = candidate;
        }
      }
    }
    limit();
    const std::vector<float> expected = out;
    ours();
    if (std::memcmp(expected.data(), out.data(), out.size() * sizeof(float)) != 0) {
      return state.SkipWithError("wrong answer: the gather copies other rows");
    }
    const auto measured = in_turn(pairs_per_run, ours, limit);
    state.counters["roofline"] = measured.ratio;
    state.counters["ns_per_row"] = measured.first / static_cast<double>(total * 26) * 1e9;
    state.SetIterationTime(measured.first);
  }
}

benchmark::internal::Benchmark* add(const std::string& name, std::function<void(benchmark::State&)> run) {
  return benchmark::RegisterBenchmark(name.c_str(), std::move(run))
      ->Iterations(1)
      ->Repetitions(3)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

const bool registered = [] {
  for (const index_t width : {16, 32, 64, 128, 50, 17}) {
    add("lookup/cold/d:" + std::to_string(width),
        [width](benchmark::State& state) { cold<float>(state, width, 1); });
  }
  add("lookup/cold/d:64/threads:2", [](benchmark::State& state) { cold<float>(state, 64, 2); });
  add("lookup/cold/f16/d:64", [](benchmark::State& state) { cold<f16>(state, 64, 1); });
  add("lookup/cold/bf16/d:64", [](benchmark::State& state) { cold<bf16>(state, 64, 1); });
  add("lookup/onehot/d:64", [](benchmark::State& state) { onehot(state, 64); });
  add("lookup/warm/d:64", [](benchmark::State& state) { vs_loop(state, 64, 1 << 16); });
  add("lookup/vs_loop/d:16", [](benchmark::State& state) { vs_loop(state, 16, 0); });
  add("lookup/huge_pages/d:16", [](benchmark::State& state) { huge_pages(state, 16); });
  add("lookup/huge_pages/d:64", [](benchmark::State& state) { huge_pages(state, 64); });
  add("lookup/criteo/batch:128", [](benchmark::State& state) { criteo(state, 128); });
  add("lookup/criteo/batch:2048", [](benchmark::State& state) { criteo(state, 2048); });
  return true;
}();

}  // namespace
