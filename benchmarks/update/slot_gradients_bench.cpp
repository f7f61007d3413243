// Gradients of rows that partition_unique numbered, by their counts and by sorting.
//
//   update/slot_gradients/d:16   Criteo's 26 one-hot features in one id space, batches of 2048 rows with the
//                                ranks of the full data set, other ones each time, a gradient (53248, D), one
//                                thread: speedup of row_gradients with counts over row_gradients, with
//                                microseconds of both
//
// Both give the same bits, which is checked.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include <deeprec/core/random.hpp>
#include <deeprec/embedding/training/gradient.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/ops/partition_unique.hpp>

#include "support/add.hpp"
#include "support/criteo_trace.hpp"
#include "support/figures.hpp"

namespace {

using namespace deeprec;

constexpr index_t rows = 2048, batches = 8, columns = 26, bags = rows * columns;

void slot_gradients(benchmark::State& state, const std::string& name, index_t width) {
  if (deeprec_bench::criteo_ranks().empty())
    return state.SkipWithError("no Criteo trace: set DEEPREC_DATA_DIR");
  inline_executor here;
  std::uint64_t turn = 0;
  std::vector<unique_parts<>> parts(static_cast<std::size_t>(batches));
  const auto next = [&] {
    const auto trace = deeprec_bench::criteo_trace(rows * batches, 700 + ++turn);
    std::vector<std::int64_t> ids;
    for (std::size_t b = 0; b < parts.size(); ++b) {
      ids.clear();
      for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
        std::int64_t first_id = 0;
        for (std::size_t c = 0; c < static_cast<std::size_t>(columns); ++c) {
          ids.push_back(first_id + trace[c][b * static_cast<std::size_t>(rows) + r]);
          first_id += deeprec_bench::criteo_rows[c];
        }
      }
      if (!partition_unique(here, ids, owner_by_modulo(2), parts[b])) std::abort();
    }
  };
  std::vector<index_t> offsets(static_cast<std::size_t>(bags) + 1);
  std::iota(offsets.begin(), offsets.end(), index_t{0});
  std::vector<float> values(static_cast<std::size_t>(bags * width)), out(values.size());
  const counter_rng rng(9);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(rng.bits(1, i) >> 40) * 0x1p-24F - 0.5F;
  }
  const matrix_view<const float> gradient(values.data(), bags, width);
  sparse_gradient sorted;
  const auto by_sort = [&](const unique_parts<>& of) {
    const jagged_view<> batch(offsets.data(), bags, of.slots.data(), bags);
    const auto slots = static_cast<index_t>(of.ids.size());
    if (!row_gradients(here, slots, batch, combiner::sum, gradient, sorted)) std::abort();
  };
  const auto by_counts = [&](const unique_parts<>& of) {
    const jagged_view<> batch(offsets.data(), bags, of.slots.data(), bags);
    const matrix_view<float> to(out.data(), static_cast<index_t>(of.ids.size()), width);
    if (!row_gradients(here, of.counts, batch, combiner::sum, gradient, to)) std::abort();
  };
  for (auto _ : state) {
    next();
    for (const auto& of : parts) {
      by_sort(of);
      by_counts(of);
      if (sorted.values.size() != of.ids.size() * static_cast<std::size_t>(width) ||
          std::memcmp(sorted.values.data(), out.data(), sorted.values.size() * sizeof(float)) != 0) {
        return state.SkipWithError("wrong answer: the bits differ from those of row_gradients");
      }
    }
    deeprec_bench::figures f(name);
    f.sample([&] {
      next();
      const auto [ours, theirs] = f.pair(
          "speedup", "",
          [&] {
            for (const auto& of : parts) by_counts(of);
          },
          [&] {
            for (const auto& of : parts) by_sort(of);
          });
      f.note("us", ours / static_cast<double>(batches) * 1e6);
      f.note("us_sorted", theirs / static_cast<double>(batches) * 1e6);
    });
    f.report(state);
  }
}

const bool registered = [] {
  for (const index_t width : {16, 64}) {
    deeprec_bench::add(
        "update/slot_gradients/d:" + std::to_string(width),
        [width](benchmark::State& s, const std::string& name) { slot_gradients(s, name, width); });
  }
  return true;
}();

}  // namespace
