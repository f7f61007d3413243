// Growing tables beside dense ones with the same rows.
//
//   growing/lookup/d:64   lookups of 64-bit keys, hotness 20, cold tables of 4 GB: the pace of a growing
//                         table over that of a dense one by ids
//   growing/step          26 one-hot features at Criteo's table sizes, D = 16, row-wise Adagrad, batches of
//                         2048, cold uniform keys, 2 % of them new: resolve, lookup and update over those of
//                         dense tables by ids, none of them new
//   growing/evict         a sweep by age over the facts of 20 M rows that erases none: ns a row
//
// Outputs are compared bit by bit before anything is timed.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <deeprec/core/hash.hpp>
#include <deeprec/core/random.hpp>
#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/lookup_features.hpp>
#include <deeprec/embedding/groups/resolved_features.hpp>
#include <deeprec/embedding/groups/update_features.hpp>
#include <deeprec/embedding/growing/eviction.hpp>
#include <deeprec/embedding/growing/growing_table.hpp>
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

/// One-to-one on 64 bits.
std::uint64_t key_of(std::int64_t id) { return mix64(static_cast<std::uint64_t>(id) + 1); }

/// Values of the row of key_of(id), for any id.
void first_values(index_t key, float* values, index_t width) {
  for (index_t j = 0; j < width; ++j)
    values[j] = static_cast<float>((static_cast<std::uint64_t>(key) >> 40) + static_cast<std::uint64_t>(j)) *
                    0x1p-24F -
                0.5F;
}

/// Inserts the keys of the ids [0, rows).
template <class Table>
void fill(Table& table, index_t rows) {
  inline_executor here;
  const context ctx{here};
  constexpr index_t piece = 1 << 16;
  std::vector<std::uint64_t> keys;
  std::vector<const std::byte*> places(piece);
  for (index_t from = 0; from < rows; from += piece) {
    keys.clear();
    for (index_t id = from; id < std::min(rows, from + piece); ++id) keys.push_back(key_of(id));
    if (!table.rows().insert(ctx, keys.data(), static_cast<index_t>(keys.size()), places.data()))
      std::abort();
  }
}

void look_up(benchmark::State& state, const std::string& name, index_t width) {
  const f32_rows format(width);
  const index_t stride = format.stride_bytes();
  const std::size_t wanted =
      cache_is_pretended() ? 16 * last_level_cache() : std::max(std::size_t{4} << 30, 4 * last_level_cache());
  const index_t beside = 16 + 24;  // facts and index
  const memory_plan plan = memory_plan::of(2 * wanted + wanted / static_cast<std::size_t>(stride) *
                                                            static_cast<std::size_t>(beside));
  const index_t rows = static_cast<index_t>(plan.bytes) / (2 * stride + beside);
  growing_table<f32_rows> table(format, first_values);
  fill(table, rows);
  dense_table<f32_rows> direct(rows, format);
  for (index_t id = 0; id < rows; ++id) {
    std::vector<float> values(static_cast<std::size_t>(width));
    first_values(static_cast<index_t>(key_of(id)), values.data(), width);
    format.encode(values.data(), direct.view().row(id));
  }
  const std::vector<batch> sets = uniform_batches(rows, 20, stride);
  std::vector<std::vector<std::uint64_t>> keys(sets.size());
  for (std::size_t s = 0; s < sets.size(); ++s) {
    for (const std::int64_t id : sets[s].ids) keys[s].push_back(key_of(id));
  }
  const auto source = table.rows();
  const index_t bags = sets[0].view().bags();
  std::vector<float> out(static_cast<std::size_t>(bags * width));
  const matrix_view<float> to(out.data(), bags, width);
  inline_executor here;
  const auto by_key = [&](std::size_t s) {
    const jagged_view<std::uint64_t> batch(sets[s].offsets.data(), bags, keys[s].data(),
                                           static_cast<index_t>(keys[s].size()));
    if (!lookup(here, source, batch, combiner::sum, to)) std::abort();
  };
  const auto by_id = [&](std::size_t s) {
    if (!lookup(here, direct.view(), sets[s].view(), combiner::sum, to)) std::abort();
  };
  const auto all = [&](const auto& run) {
    return [&sets, &run] {
      for (std::size_t s = 0; s < sets.size(); ++s) run(s);
    };
  };
  for (auto _ : state) {
    figures f(name);
    f.unfit(plan.unfit);
    f.unfit(not_cold(sets, rows, stride));
    for (const std::size_t s : {std::size_t{0}, sets.size() - 1}) {
      by_id(s);
      const std::vector<float> expected = out;
      std::fill(out.begin(), out.end(), -1.0F);
      by_key(s);
      if (std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)) != 0)
        return state.SkipWithError("wrong answer: the dense table gives other bits");
    }
    const double ids = static_cast<double>(sets.size()) * static_cast<double>(sets[0].ids.size());
    f.sample([&] {
      const auto [ours, theirs] = f.pair("of_direct", "", all(by_key), all(by_id));
      f.note("ns_per_id", ours / ids * 1e9);
      f.note("direct_ns_per_id", theirs / ids * 1e9);
    });
    f.report(state);
  }
}

/// 26 tables of each kind in training.
struct two_models {
  static constexpr index_t width = 16, features = 26, bags = 2048, batches = 64;

  two_models() {
    thread_pool two_threads(2);
    for (const index_t rows : criteo_rows) {
      growing.push_back(std::make_unique<growing_table<f32_rows>>(format, first_values));
      fill(*growing.back(), rows);
      by_key.add(growing.back()->rows(), combiner::sum);
      dense_table<f32_rows>& table = dense.emplace_back(rows, format);
      table.initialize(two_threads, [](index_t id, float* values, index_t columns) {
        first_values(static_cast<index_t>(key_of(id)), values, columns);
      });
      by_id.add(table.view(), combiner::sum);
    }
    ids.resize(batches * features * bags);
    keys.resize(ids.size());
    out.resize(bags * features * width);
    const counter_rng rng(1);
    for (std::size_t i = 0; i < out.size(); ++i)
      gradient.push_back(static_cast<float>(rng.bits(1, i) >> 40) * 0x1p-24F - 0.5F);
  }

  /// Other batches, `new_keys` of 100 keys of which no table holds.
  void draw(int new_keys) {
    const counter_rng rng(++drawn);
    for (std::size_t k = 0; k < ids.size(); ++k) {
      const std::size_t feature = k / bags % features;
      const std::uint64_t word = rng.bits(0, k);
      ids[k] = hash_bucket(word, criteo_rows[feature]);
      const bool is_new = static_cast<int>(rng.bits(1, k) % 100) < new_keys;
      keys[k] = key_of(is_new ? (std::int64_t{1} << 40) + added++ : ids[k]);
    }
  }
  template <class Group, class Id, class Mode>
  void steps(const Group& group, const std::vector<Id>& of, Mode mode) {
    inline_executor here;
    const matrix_view<float> to(out.data(), bags, features * width);
    const matrix_view<const float> slope(gradient.data(), bags, features * width);
    std::vector<fixed_hotness_view<Id>> batch;
    for (index_t b = 0; b < batches; ++b) {
      batch.clear();
      for (index_t t = 0; t < features; ++t)
        batch.emplace_back(of.data() + (b * features + t) * bags, bags, 1);
      const auto rows = resolve(here, group, batch, mode);
      if (!rows || !lookup(here, rows.value(), to) || !update(here, rows.value(), slope, rowwise_adagrad{}))
        std::abort();
    }
  }
  void grow() { steps(by_key, keys, keys::find_or_insert); }
  void stay() { steps(by_id, ids, keys::find); }

  f32_rows format{width, {.state_floats = rowwise_adagrad::row_state}};
  std::vector<std::unique_ptr<growing_table<f32_rows>>> growing;
  std::vector<dense_table<f32_rows>> dense;
  feature_group<rowwise_adagrad, fixed_hotness_view<std::uint64_t>> by_key;
  feature_group<rowwise_adagrad, fixed_hotness_view<std::int64_t>> by_id;
  std::vector<std::int64_t> ids;
  std::vector<std::uint64_t> keys;
  std::vector<float> out, gradient;
  std::uint64_t drawn = 0;
  std::int64_t added = 0;
};

void step(benchmark::State& state, const std::string& name) {
  if (!memory_plan::of(std::size_t{8} << 30).unfit.empty())
    return state.SkipWithError("unfit: no memory for Criteo's tables twice");
  two_models models;
  for (auto _ : state) {
    figures f(name);
    for (int round = 0; round < 2; ++round) {  // the second reads what the first one trained
      models.draw(0);
      models.grow();
      const std::vector<float> grown = models.out;
      models.stay();
      if (std::memcmp(grown.data(), models.out.data(), grown.size() * sizeof(float)) != 0)
        return state.SkipWithError("wrong answer: dense tables give other bits");
    }
    f.sample([&] {
      const auto [ours, theirs] =
          f.pair("of_dense", "", [&] { models.grow(); }, [&] { models.stay(); }, [&] { models.draw(2); });
      f.note("us_per_step", ours / two_models::batches * 1e6);
      f.note("us_per_step_dense", theirs / two_models::batches * 1e6);
    });
    f.report(state);
  }
}

void sweep(benchmark::State& state, const std::string& name) {
  constexpr index_t rows = 20'000'000;
  if (!memory_plan::of(std::size_t{3} << 30).unfit.empty()) return state.SkipWithError("unfit: no memory");
  growing_table<f32_rows> table(f32_rows(16), first_values);
  fill(table, rows);
  table.begin_step(1000);
  inline_executor here;
  for (auto _ : state) {
    figures f(name);
    f.sample([&] {
      const double start = clock_now();
      const auto gone = evict_rows(here, table, evict::step_ttl{1'000'000});
      const double seconds = clock_now() - start;
      if (!gone || gone.value() != 0) std::abort();
      f.add("ns_per_row", seconds * 1e9 / static_cast<double>(rows));
    });
    f.report(state);
  }
}

const bool registered = [] {
  for (const index_t width : {16, 64, 128}) {
    add("growing/lookup/d:" + std::to_string(width),
        [width](benchmark::State& state, const std::string& name) { look_up(state, name, width); });
  }
  add("growing/step", step);
  add("growing/evict", sweep);
  return true;
}();

}  // namespace
