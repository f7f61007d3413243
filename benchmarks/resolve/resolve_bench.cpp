// Resolved rows: a training step that checks its ids once.
//
//   resolve/step/batch:2048   lookup and update of 26 one-hot features at Criteo's table sizes, D = 16,
//                             row-wise Adagrad, cold uniform ids: one resolve for both, over two calls
//
// Outputs and rows are compared bit by bit before anything is timed.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <deeprec/core/hash.hpp>
#include <deeprec/core/random.hpp>
#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/lookup_features.hpp>
#include <deeprec/embedding/groups/resolved_features.hpp>
#include <deeprec/embedding/groups/update_features.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/resolve.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/optimizers.hpp>

#include "support/add.hpp"
#include "support/criteo_trace.hpp"
#include "support/figures.hpp"
#include "support/machine.hpp"
#include "support/uniform_batches.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bench;

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// 26 tables in training, and batches of one id per bag whose different rows fill twice the last-level cache.
struct trained_model {
  static constexpr index_t width = 16, features = 26;
  using batch_type = std::vector<fixed_hotness_view<>>;

  explicit trained_model(index_t batch_rows) : rows(batch_rows) {
    thread_pool two_threads(2);
    for (const index_t table_rows : criteo_rows) {
      dense_table<f32_rows>& table = tables.emplace_back(table_rows, format);
      table.initialize(two_threads, row_init::uniform{.seed = tables.size()});
      group.add(table.view(), combiner::sum);
    }
    const auto different = [this](double samples) {
      double found = 0;
      for (const index_t table_rows : criteo_rows)
        found += different_rows(samples, static_cast<double>(table_rows));
      return found * static_cast<double>(format.stride_bytes());
    };
    const double most = static_cast<double>(memory_available()) / 4 / (features * 8);
    double samples = static_cast<double>(rows) * 16;
    while (different(samples) < static_cast<double>(cold_bytes()) && samples < most) samples *= 1.1;
    if (different(samples) < 2.0 * static_cast<double>(last_level_cache())) {
      unfit = "no rows for twice the last-level cache of " + in_megabytes(last_level_cache());
    }
    ids.resize(static_cast<std::size_t>(samples / static_cast<double>(rows)) + 1);
    batches.resize(ids.size());
    const counter_rng rng(12);
    two_threads.parallel_for(static_cast<index_t>(ids.size()), 16, [&](index_t begin, index_t end, int) {
      for (auto s = static_cast<std::size_t>(begin); s < static_cast<std::size_t>(end); ++s) {
        for (index_t k = 0; k < features * rows; ++k) {
          ids[s].push_back(hash_bucket(rng.bits(s, static_cast<std::uint64_t>(k)), criteo_rows[k / rows]));
        }
        for (index_t t = 0; t < features; ++t) batches[s].emplace_back(ids[s].data() + t * rows, rows, 1);
      }
    });
    out.resize(static_cast<std::size_t>(rows * features * width));
    for (std::size_t i = 0; i < out.size(); ++i) {
      gradient.push_back(static_cast<float>(rng.bits(1, i) >> 40) * 0x1p-24F - 0.5F);
    }
  }

  template <class Executor>
  void separately(Executor& executor, const batch_type& batch) {
    if (!lookup(executor, group, batch, output()) ||
        !update(executor, group, batch, slope(), rowwise_adagrad{})) {
      std::abort();
    }
  }
  template <class Executor>
  void resolved(Executor& executor, const batch_type& batch) {
    const auto found = resolve(executor, group, batch);
    if (!found || !lookup(executor, found.value(), output()) ||
        !update(executor, found.value(), slope(), rowwise_adagrad{})) {
      std::abort();
    }
  }

  /// A pass is over one of sixteen parts of the batches, the next part each time.
  [[nodiscard]] std::size_t batches_of_pass() const { return batches.size() / 16; }
  void next() { at = at + 2 * batches_of_pass() > batches.size() ? 0 : at + batches_of_pass(); }
  [[nodiscard]] std::span<const batch_type> part() const {
    return std::span(batches).subspan(at, batches_of_pass());
  }

  /// Whether both steps give the same bits of outputs, rows and their state.
  template <class Executor>
  bool agree(Executor& executor, std::size_t number) {
    const batch_type& batch = batches[number];
    const auto bytes = static_cast<std::size_t>(format.stride_bytes());
    std::vector<std::byte> before, after, expected;
    const auto keep = [&](std::vector<std::byte>& to) {
      to.clear();
      each_row(batch, [&](const std::byte* row) { to.insert(to.end(), row, row + bytes); });
    };
    keep(before);
    separately(executor, batch);
    keep(expected);
    const std::vector<float> expected_out = out;
    const std::byte* from = before.data();
    each_row(batch, [&](std::byte* row) {
      std::memcpy(row, from, bytes);
      from += bytes;
    });
    std::fill(out.begin(), out.end(), -1.0F);
    resolved(executor, batch);
    keep(after);
    return before != expected && expected == after && same_bits(out, expected_out);
  }
  template <class F>
  void each_row(const batch_type& batch, F&& f) {
    for (std::size_t t = 0; t < features; ++t) {
      for (index_t k = 0; k < rows; ++k) f(tables[t].view().row(batch[t].ids()[k]));
    }
  }

  [[nodiscard]] matrix_view<float> output() { return {out.data(), rows, features * width}; }
  [[nodiscard]] matrix_view<const float> slope() const { return {gradient.data(), rows, features * width}; }

  f32_rows format{width, {.state_floats = rowwise_adagrad::row_state}};
  index_t rows;
  std::size_t at = 0;  // where the part begins
  std::string unfit;
  std::vector<dense_table<f32_rows>> tables;
  feature_group<rowwise_adagrad, fixed_hotness_view<>> group;
  std::vector<std::vector<std::int64_t>> ids;
  std::vector<batch_type> batches;
  std::vector<float> out, gradient;
};

void step(benchmark::State& state, const std::string& name, index_t rows) {
  if (!memory_plan::of(std::size_t{5} << 30).unfit.empty())
    return state.SkipWithError("unfit: no memory for Criteo's tables");
  trained_model model(rows);
  inline_executor here;
  for (auto _ : state) {
    figures f(name);
    f.unfit(model.unfit);
    for (const std::size_t number : {0, 1}) {
      if (!model.agree(here, number))
        return state.SkipWithError("wrong answer: resolved rows give other bits");
    }
    const auto each = [&](auto&& run) {
      return [&, run] {
        for (const auto& batch : model.part()) run(batch);
      };
    };
    const auto ours = each([&](const auto& batch) { model.resolved(here, batch); });
    const auto theirs = each([&](const auto& batch) { model.separately(here, batch); });
    const double to_microseconds = 1e6 / static_cast<double>(model.batches_of_pass());
    f.sample([&] {
      const auto [resolved, separate] = f.pair("speedup", "", ours, theirs, [&] { model.next(); });
      f.note("us_per_step", resolved * to_microseconds);
      f.note("us_per_step_separate", separate * to_microseconds);
    });
    f.report(state);
  }
}

const bool registered = [] {
  add("resolve/step/batch:2048",
      [](benchmark::State& state, const std::string& name) { step(state, name, 2048); });
  return true;
}();

}  // namespace
