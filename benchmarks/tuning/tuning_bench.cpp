// What a tuning costs that is not the best one: the default of this machine, and what calibrate() measures
// from the default and from wrong profiles (a reported cache of 1 MB, of 260 MB), against the best of a
// sweep.
//
//   tuning/lookup/d:64     sums of 20 random rows out of 4 GB: 12 pairs of lines_ahead and most_rows_ahead
//   tuning/row_select/4mb  rows by a condition: streamed, or cached
//              .../64mb
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/calibrate.hpp>
#include <deeprec/core/kernel_tuning.hpp>
#include <deeprec/describe.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/ops/row_select.hpp>

#include "support/add.hpp"
#include "support/big_memory.hpp"
#include "support/figures.hpp"
#include "support/roofline.hpp"
#include "support/uniform_batches.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bench;

struct profile {
  std::string name;
  kernel_tuning tuning;
};

/// The default, and what is measured beginning with it and with wrong ones; once.
const std::vector<profile>& profiles() {
  static const std::vector<profile> all = [] {
    inline_executor here;
    const auto measured_from = [&](const kernel_tuning& start) {
      context ctx(here);
      ctx.tuning = &start;
      return calibrate(ctx);
    };
    constexpr index_t mb = index_t{1} << 20;
    return std::vector<profile>{
        {"default", host_tuning()},
        {"calibrated", measured_from(host_tuning())},
        {"calibrated_from_1mb", measured_from(detail::tuning_for(mb / 4, mb))},
        {"calibrated_from_260mb", measured_from(detail::tuning_for(4 * mb, 260 * mb))}};
  }();
  return all;
}

/// run(tuning) is measured for each profile against the best of the sweep.
template <class Run>
void against_sweep(benchmark::State& state, const std::string& name, const std::vector<kernel_tuning>& sweep,
                   const std::string& unfit, const Run& run) {
  for (auto _ : state) {
    figures f(name);
    f.unfit(unfit);
    std::vector<candidate> candidates;
    for (const kernel_tuning& tuning : sweep) {
      candidates.push_back({to_string(tuning), [&run, &tuning] { run(tuning); }});
    }
    const candidate best = fastest(candidates);
    f.say("best: " + best.name);
    f.sample([&] {
      for (const profile& p : profiles()) {
        const std::string counter = p.name == "default" ? "of_best" : "calibrated_of_best";
        f.pair(counter, p.name, [&] { run(p.tuning); }, best.run);
      }
    });
    f.report(state);
  }
}

void lookups(benchmark::State& state, const std::string& name, index_t width) {
  const big_memory& memory = huge_memory();
  if (memory.data() == nullptr) return state.SkipWithError("no memory for the table");
  const f32_rows format(width);
  const const_table_view<f32_rows> table(reinterpret_cast<const std::byte*>(memory.data()),
                                         static_cast<index_t>(memory.bytes()) / format.stride_bytes(),
                                         format);
  const std::vector<batch> sets = uniform_batches(table.rows(), 20, format.row_bytes());
  std::vector<float> out(static_cast<std::size_t>(sets[0].view().bags() * width));
  inline_executor here;
  std::vector<kernel_tuning> sweep;
  for (const index_t lines : {64, 128, 256, 384}) {
    for (const index_t rows : {16, 32, 64}) {
      sweep.push_back(host_tuning());
      sweep.back().lines_ahead = lines;
      sweep.back().most_rows_ahead = rows;
    }
  }
  against_sweep(state, name, sweep, memory.unfit(), [&](const kernel_tuning& tuning) {
    context ctx(here);
    ctx.tuning = &tuning;
    for (const batch& set : sets) {
      if (!lookup(ctx, table, set.view(), combiner::sum, matrix_view(out.data(), set.view().bags(), width))) {
        std::abort();
      }
    }
  });
}

void selects(benchmark::State& state, const std::string& name, index_t megabytes) {
  constexpr index_t width = 64;
  const index_t rows = (megabytes << 20) / (4 * width);
  const auto size = static_cast<std::size_t>(rows * width);
  const std::vector<float> then(size, 1.0F), otherwise(size, 2.0F);
  std::vector<float> out(size);
  const counter_rng rng(9);
  std::vector<std::uint8_t> cond(static_cast<std::size_t>(rows));
  for (std::size_t b = 0; b < cond.size(); ++b) cond[b] = static_cast<std::uint8_t>(rng.bits(0, b) & 1U);
  inline_executor here;
  std::vector<kernel_tuning> sweep(2, host_tuning());
  sweep[0].kept_bytes = 0;
  sweep[1].kept_bytes = index_t{1} << 40;
  const int repeats = static_cast<int>(std::max<index_t>(1, 64 / megabytes));
  against_sweep(state, name, sweep, "", [&](const kernel_tuning& tuning) {
    context ctx(here);
    ctx.tuning = &tuning;
    for (int i = 0; i < repeats; ++i) {
      if (!row_select(ctx, cond, matrix_view<const float>(then.data(), rows, width),
                      matrix_view<const float>(otherwise.data(), rows, width),
                      matrix_view<float>(out.data(), rows, width))) {
        std::abort();
      }
    }
  });
}

const bool registered = [] {
  for (const index_t width : {16, 64, 128}) {
    add("tuning/lookup/d:" + std::to_string(width),
        [width](benchmark::State& s, const std::string& name) { lookups(s, name, width); });
  }
  for (const index_t megabytes : {4, 64}) {
    add("tuning/row_select/" + std::to_string(megabytes) + "mb",
        [megabytes](benchmark::State& s, const std::string& name) { selects(s, name, megabytes); });
  }
  return true;
}();

}  // namespace
