// Pooled lookups against FBGEMM's kernels, where its library is at hand (support/fbgemm.hpp), on one thread.
//
//   lookup/vs_fbgemm/d:64       speedup on the same 4 GB table on huge pages, f32, the worse of hotness 20
//                               and 100
//   lookup/vs_fbgemm/default    each over 2 GB as it allocates by default (a dense_table here, aligned new
//                               there), D = 64; the worst of f32, f16 and int8 rows
//
// speedup is over FBGEMM at the prefetch distance that its callers use, 16 rows; speedup_tuned over the best of
// 8, 16, 32 and 64, which nobody who calls it can know. The answers are compared first.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include <deeprec/embedding/dense_table.hpp>
#include <deeprec/embedding/lookup.hpp>
#include <deeprec/embedding/quantized_rows.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "support/big_memory.hpp"
#include "support/fbgemm.hpp"
#include "support/paired.hpp"
#include "support/uniform_batches.hpp"

namespace {

using namespace deeprec;
using deeprec_bench::batch;
using deeprec_bench::seconds_of;

constexpr int pairs_per_run = 9;

/// FBGEMM's lookup over rows of `Row` with the distance that is best on these batches.
template <class Row>
struct their_lookup {
  const Row* rows;
  index_t row_count;
  deeprec_bench::fbgemm::pooled_lookup<Row> usual;  // as PyTorch and FBGEMM's own operators generate it
  deeprec_bench::fbgemm::pooled_lookup<Row> tuned;

  their_lookup(const void* memory, index_t count, index_t width, const std::vector<batch>& sets,
               std::vector<float>& out)
      : rows(static_cast<const Row*>(memory)),
        row_count(count),
        usual(deeprec_bench::fbgemm::generate_lookup<Row>(width, 16)) {
    double best = 1e9;
    for (const int distance : {8, 16, 32, 64}) {
      const auto candidate = deeprec_bench::fbgemm::generate_lookup<Row>(width, distance);
      const double seconds =
          std::min(seconds_of([&] { pass(candidate, sets, out); }), seconds_of([&] { pass(candidate, sets, out); }));
      if (seconds < best) {
        best = seconds;
        tuned = candidate;
      }
    }
  }
  void pass(const deeprec_bench::fbgemm::pooled_lookup<Row>& with, const std::vector<batch>& sets,
            std::vector<float>& out) const {
    for (const batch& set : sets) {
      if (!with(set.view().bags(), static_cast<std::int64_t>(set.ids.size()), row_count, rows, set.ids.data(),
                set.offsets.data(), nullptr, out.data())) {
        std::abort();
      }
    }
  }
};

struct speedups {
  double usual = 0;  // 0: the answers differ
  double tuned = 0;
};

template <class Row, class Table>
speedups speedup(const Table& table, const void* their_memory, const std::vector<batch>& sets) {
  inline_executor here;
  const auto ours = [&](std::vector<float>& out) {
    for (const batch& set : sets) {
      const matrix_view to(out.data(), set.view().bags(), table.format().width());
      if (!lookup(here, table, set.view(), sum, to)) std::abort();
    }
  };
  std::vector<float> a(static_cast<std::size_t>(sets[0].view().bags() * table.format().width())), b(a.size());
  const their_lookup<Row> theirs(their_memory, table.rows(), table.format().width(), sets, b);
  ours(a);
  theirs.pass(theirs.usual, sets, b);
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!(std::fabs(a[i] - b[i]) <= 1e-4F * (1 + std::fabs(a[i])))) return {};
  }
  const auto over = [&](const auto& run) {
    return deeprec_bench::in_turn(pairs_per_run, [&] { ours(a); }, [&] { theirs.pass(run, sets, b); }).ratio;
  };
  return {over(theirs.usual), over(theirs.tuned)};
}

bool has_peer(benchmark::State& state) {
  if (deeprec_bench::fbgemm::library() != nullptr) return true;
  state.SkipWithError("no FBGEMM here: set DEEPREC_FBGEMM (benchmarks/support/fbgemm.hpp)");
  return false;
}

void same_table(benchmark::State& state, index_t width) {
  if (!has_peer(state)) return;
  char* const memory = deeprec_bench::huge_table();
  if (memory == nullptr) return state.SkipWithError("no 4 GB of memory");
  const f32_rows format(width);
  const const_table_view<f32_rows> table(reinterpret_cast<const std::byte*>(memory),
                                         static_cast<index_t>(deeprec_bench::table_bytes) / format.stride_bytes(),
                                         format);
  for (auto _ : state) {
    speedups worst{1e9, 1e9};
    for (const index_t hotness : {20, 100}) {
      const auto sets = deeprec_bench::uniform_batches(table.rows(), hotness, format.row_bytes());
      const speedups here = speedup<float>(table, memory, sets);
      if (here.usual == 0) return state.SkipWithError("wrong answer: FBGEMM's differs");
      worst = {std::min(worst.usual, here.usual), std::min(worst.tuned, here.tuned)};
    }
    state.counters["speedup"] = worst.usual;
    state.counters["speedup_tuned"] = worst.tuned;
    state.SetIterationTime(1);
  }
}

/// Both tables hold the same bytes.
template <class Row, class Format>
speedups as_allocated(const Format& format) {
  constexpr index_t bytes = index_t{2} << 30;
  const index_t rows = bytes / format.stride_bytes();
  dense_table<Format> table(rows, format);
  const auto size = static_cast<std::size_t>(rows * format.stride_bytes());
  const std::unique_ptr<char, void (*)(char*)> theirs(
      static_cast<char*>(::operator new(size, std::align_val_t(64))),
      [](char* p) { ::operator delete(p, std::align_val_t(64)); });
  thread_pool pool(2);
  table.initialize(pool, uniform_rows{.seed = 3, .bound = 0.5F});
  std::memcpy(theirs.get(), table.view().data(), size);
  const auto sets = deeprec_bench::uniform_batches(rows, 20, format.row_bytes());
  return speedup<Row>(table.view(), theirs.get(), sets);
}

void by_default(benchmark::State& state) {
  if (!has_peer(state)) return;
  constexpr index_t width = 64;
  for (auto _ : state) {
    const speedups f32 = as_allocated<float>(f32_rows(width));
    const speedups f16 = as_allocated<std::uint16_t>(f16_rows(width));
    const speedups int8 = as_allocated<std::uint8_t>(int8_rows(width));
    state.counters["speedup_f32"] = f32.usual;
    state.counters["speedup_f16"] = f16.usual;
    state.counters["speedup_int8"] = int8.usual;
    const double worst = std::min({f32.usual, f16.usual, int8.usual});
    if (worst == 0) return state.SkipWithError("wrong answer: FBGEMM's differs");
    state.counters["speedup"] = worst;
    state.counters["speedup_tuned"] = std::min({f32.tuned, f16.tuned, int8.tuned});
    state.SetIterationTime(1);
  }
}

void add(const std::string& name, std::function<void(benchmark::State&)> run) {
  benchmark::RegisterBenchmark(name.c_str(), std::move(run))->Iterations(1)->Repetitions(3)->UseManualTime();
}

const bool registered = [] {
  for (const index_t width : {16, 64, 128}) {
    add("lookup/vs_fbgemm/d:" + std::to_string(width),
        [width](benchmark::State& state) { same_table(state, width); });
  }
  add("lookup/vs_fbgemm/default", by_default);
  return true;
}();

}  // namespace
