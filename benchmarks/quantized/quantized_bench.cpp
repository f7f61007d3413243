// Lookups over quantized rows against lookups over the f32 rows that they were made from.
//
//   quantized/int8/d:128    4 GB of f32 rows, as many int8 rows with f32 scale and bias; the same ids, on one
//   quantized/int4/d:128    thread; speedup = time over f32 rows / time over quantized rows, the worse of
//                           hotness 20 and 100
//
// Both tables are far larger than any cache, and index sets rotate. Before anything is timed, the pooled
// rows are compared with the f32 rows' under the error that the codes allow, and with sums in double of
// what the scalar reference decodes.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <deeprec/embedding/dense_table.hpp>
#include <deeprec/embedding/lookup.hpp>
#include <deeprec/embedding/quantize.hpp>
#include <deeprec/embedding/quantized_rows.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "support/paired.hpp"
#include "support/uniform_batches.hpp"

namespace {

using namespace deeprec;
using deeprec_bench::batch;
using deeprec_bench::in_turn;
using deeprec_bench::uniform_batches;

constexpr std::size_t table_bytes = std::size_t{4} << 30;
constexpr int pairs_per_run = 9;

thread_pool& two_threads() {
  static thread_pool pool(2);
  return pool;
}

/// 4 GB of rows, made once for each width.
const dense_table<f32_rows>& float_table(index_t width) {
  static std::vector<std::unique_ptr<dense_table<f32_rows>>> tables;
  for (const auto& table : tables) {
    if (table->width() == width) return *table;
  }
  const index_t rows = static_cast<index_t>(table_bytes) / (width * index_t{sizeof(float)});
  tables.push_back(std::make_unique<dense_table<f32_rows>>(rows, width));
  tables.back()->initialize(two_threads(), uniform_rows{.seed = 5, .bound = 0.5F});
  return *tables.back();
}

template <class Executor, class Format>
void look_up(Executor& executor, const dense_table<Format>& table, const batch& set,
             std::vector<float>& out) {
  const status s = lookup(executor, table.view(), set.view(), sum,
                          matrix_view(out.data(), set.view().bags(), table.width()));
  if (!s) std::abort();
}

/// What differs; empty when nothing does.
template <class Format>
std::string fault(const dense_table<f32_rows>& floats, const dense_table<Format>& codes, const batch& set) {
  const index_t width = floats.width();
  std::vector<float> exact(static_cast<std::size_t>(set.view().bags() * width)), ours(exact.size());
  look_up(two_threads(), floats, set, exact);
  look_up(two_threads(), codes, set, ours);
  std::vector<float> row(static_cast<std::size_t>(width));
  for (index_t b = 0; b < set.view().bags(); ++b) {
    std::vector<double> decoded(static_cast<std::size_t>(width));
    double allowed = 0;    // half a step of each row
    double magnitude = 0;  // of what is added in a column
    const index_t begin = set.view().borders().begin(b), end = set.view().borders().end(b);
    for (index_t k = begin; k < end; ++k) {
      const std::byte* const bytes = codes.view().row(set.ids[static_cast<std::size_t>(k)]);
      const auto scale = static_cast<double>(codes.format().scale(bytes));
      const auto bias = static_cast<double>(codes.format().bias(bytes));
      allowed += scale / 2;
      magnitude += scale * Format::levels + std::fabs(bias);
      codes.format().decode(bytes, row.data());
      for (index_t j = 0; j < width; ++j) decoded[static_cast<std::size_t>(j)] += static_cast<double>(row[static_cast<std::size_t>(j)]);
    }
    const double rounding = 2 * static_cast<double>(end - begin + 2) * 0x1p-24 * magnitude;
    for (index_t j = 0; j < width; ++j) {
      const auto i = static_cast<std::size_t>(b * width + j);
      if (std::fabs(static_cast<double>(ours[i]) - decoded[static_cast<std::size_t>(j)]) > rounding) {
        return "wrong answer: not the sum of the decoded rows";
      }
      if (std::fabs(static_cast<double>(ours[i]) - static_cast<double>(exact[i])) > allowed + rounding) {
        return "wrong answer: further from the f32 rows than the codes allow";
      }
    }
  }
  return {};
}

template <class Format>
void against_floats(benchmark::State& state, const Format& format) {
  const dense_table<f32_rows>& floats = float_table(format.width());
  dense_table<Format> codes(floats.rows(), format);
  const auto source = matrix_view<const float>(
      static_cast<const float*>(static_cast<const void*>(floats.view().data())), floats.rows(), format.width());
  if (const status s = quantize(two_threads(), source, codes.view()); !s) std::abort();
  for (auto _ : state) {
    double worst = 1e9;
    for (const index_t hotness : {20, 100}) {
      const std::vector<batch> sets = uniform_batches(floats.rows(), hotness, format.row_bytes());
      if (const std::string wrong = fault(floats, codes, sets[0]); !wrong.empty()) {
        return state.SkipWithError(wrong.c_str());
      }
      std::vector<float> out(static_cast<std::size_t>(sets[0].view().bags() * format.width()));
      thread_pool one(1);
      const auto measured = in_turn(
          pairs_per_run, [&] { for (const batch& set : sets) look_up(one, codes, set, out); },
          [&] { for (const batch& set : sets) look_up(one, floats, set, out); });
      const double ids = static_cast<double>(sets.size() * sets[0].ids.size());
      const std::string suffix = "_h" + std::to_string(hotness);
      state.counters["speedup" + suffix] = measured.ratio;
      state.counters["ns_per_row" + suffix] = measured.first / ids * 1e9;
      state.counters["f32_ns_per_row" + suffix] = measured.second / ids * 1e9;
      worst = std::min(worst, measured.ratio);
      state.SetIterationTime(measured.first);
    }
    state.counters["speedup"] = worst;
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
  add("quantized/int8/d:128", [](benchmark::State& state) { against_floats(state, int8_rows(128)); });
  add("quantized/int4/d:128", [](benchmark::State& state) { against_floats(state, int4_rows(128)); });
  return true;
}();

}  // namespace
