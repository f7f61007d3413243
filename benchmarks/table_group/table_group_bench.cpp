// All tables of a model in one call: 26 one-hot features at Criteo's table sizes, D = 16, uniform ids, so
// many batches in rotation that their different rows fill twice the last-level cache (most tables are small:
// their rows come again); out is (B, 26 * 16).
//
//   table_group/inline/batch:128     speedup over 26 lookups, one thread
//   table_group/threads:2/batch:128  speedup over 26 lookups on two threads
//   table_group/never_slower/threads:1  the same from 1 to 8192 bags a batch: the least speedup
//   table_group/roofline/batch:2048  against a gather of the same rows to the same places
//   table_group/t2/lookup/batch:2048 scaling: time of one thread over that of two; of_machine: the same, over
//                                    what two threads gain on that gather
//   table_group/t2/update/batch:2048 the same of a step of row-wise Adagrad, over what they gain where the
//                                    same rows are only rewritten
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <deeprec/core/hash.hpp>
#include <deeprec/core/random.hpp>
#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/lookup_features.hpp>
#include <deeprec/embedding/groups/update_features.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/optimizers.hpp>

#include "support/add.hpp"
#include "support/big_memory.hpp"
#include "support/criteo_trace.hpp"
#include "support/figures.hpp"
#include "support/roofline.hpp"
#include "support/uniform_batches.hpp"
#include "table_group/baseline.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bench;

constexpr index_t width = 16;
constexpr index_t features = 26;

struct criteo_model {
  /// @param most_batches  fewer where the caches need no more
  explicit criteo_model(index_t batch_rows, index_t most_batches = 1 << 30) : rows(batch_rows) {
    char* const memory = huge_table();
    if (memory == nullptr) return;
    index_t before = 0;
    for (const index_t table_rows : criteo_rows) before += table_rows;
    if (static_cast<std::size_t>(before * width * 4) > huge_memory().bytes()) return;
    before = 0;
    for (const index_t table_rows : criteo_rows) {
      first_row.push_back(memory + before * width * 4);
      tables.emplace_back(reinterpret_cast<const std::byte*>(first_row.back()), table_rows, f32_rows(width));
      group.add(tables.back(), combiner::sum);
      before += table_rows;
    }
    for (index_t b = 0; b <= rows; ++b) offsets.push_back(b);
    // Samples whose different rows fill twice the cache; of tables that can't, as many as the memory holds.
    const auto different = [](double samples) {
      double found = 0;
      for (const index_t table_rows : criteo_rows)
        found += different_rows(samples, static_cast<double>(table_rows));
      return found * width * 4;
    };
    const double most = std::min(static_cast<double>(memory_available()) / 4 / (features * 8),
                                 static_cast<double>(most_batches) * static_cast<double>(rows));
    double samples = std::min(static_cast<double>(rows) * 12, most);
    while (different(samples) < static_cast<double>(cold_bytes()) && samples < most) samples *= 1.1;
    if (different(samples) < 2.0 * static_cast<double>(last_level_cache())) {
      unfit = "Criteo's tables do not have rows for twice the last-level cache of " +
              in_megabytes(last_level_cache());
    }
    const counter_rng rng(11);
    ids.resize(static_cast<std::size_t>(samples / static_cast<double>(rows)) + 1);
    bags.resize(ids.size());
    thread_pool two_threads(2);
    two_threads.parallel_for(static_cast<index_t>(ids.size()), 16, [&](index_t begin, index_t end, int) {
      for (auto s = static_cast<std::size_t>(begin); s < static_cast<std::size_t>(end); ++s) {
        ids[s].reserve(static_cast<std::size_t>(features * rows));
        for (index_t t = 0; t < features; ++t) {
          for (index_t r = 0; r < rows; ++r) {
            const auto draw = rng.bits(s, static_cast<std::uint64_t>(t * rows + r));
            ids[s].push_back(hash_bucket(draw, criteo_rows[t]));
          }
        }
        for (index_t t = 0; t < features; ++t) {
          bags[s].emplace_back(offsets.data(), rows, ids[s].data() + t * rows, rows);
        }
      }
    });
    out.resize(static_cast<std::size_t>(rows * features * width));
    view = {out.data(), rows, features * width};
  }

  /// A pass is over one of sixteen parts of the batches, the next part each time.
  [[nodiscard]] std::size_t batches_of_pass() const { return std::max<std::size_t>(bags.size() / 16, 1); }
  void next() { at = at + 2 * batches_of_pass() > bags.size() ? 0 : at + batches_of_pass(); }
  [[nodiscard]] std::span<const std::vector<jagged_view<>>> part() const {
    return std::span(bags).subspan(at, batches_of_pass());
  }

  template <class Executor>
  void in_one_call(Executor& executor) {
    for (const auto& batch : part()) {
      if (!lookup(executor, group, batch, view)) std::abort();
    }
  }
  template <class Executor>
  void table_by_table(Executor& executor) {
    for (const auto& batch : part()) {
      for (std::size_t t = 0; t < features; ++t) {
        const matrix_view part(out.data() + static_cast<index_t>(t) * width, rows, width, features * width);
        if (!lookup(executor, tables[t], batch[t], combiner::sum, part)) std::abort();
      }
    }
  }
  template <class Gather>
  void gather(Gather run, index_t distance, bool into_all) {
    for (const auto& batch : part()) {
      const std::int64_t* of_feature[features];
      for (std::size_t t = 0; t < features; ++t) of_feature[t] = batch[t].ids();
      run({first_row.data(), of_feature, features, rows, distance, into_all,
           reinterpret_cast<char*>(out.data())});
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
  std::size_t at = 0;  // where the part begins
  std::string unfit;
  std::vector<const char*> first_row;
  std::vector<const_table_view<f32_rows>> tables;
  feature_group<> group;
  std::vector<std::int64_t> offsets;
  std::vector<std::vector<std::int64_t>> ids;
  std::vector<std::vector<jagged_view<>>> bags;
  std::vector<float> out;
  matrix_view<float> view;
};

constexpr const char* no_memory = "unfit: no memory for Criteo's tables";

/// One call over 26 calls at every size.
template <class Executor>
void at_every_size(benchmark::State& state, const std::string& name, Executor& executor) {
  for (auto _ : state) {
    figures f(name);
    if (static_cast<int>(usable_cpus().size()) < executor.concurrency()) f.unfit("fewer CPUs than threads");
    std::vector<std::unique_ptr<criteo_model>> models;
    for (const index_t rows : {1, 8, 32, 128, 512, 2048, 8192}) {
      models.push_back(std::make_unique<criteo_model>(rows, 64 + 65536 / rows));
      criteo_model& model = *models.back();
      if (model.tables.empty()) return state.SkipWithError(no_memory);
      if (!model.agree([&] { model.in_one_call(executor); }, [&] { model.table_by_table(executor); })) {
        return state.SkipWithError("wrong answer: 26 calls give other bits");
      }
    }
    f.sample([&] {
      for (const auto& model : models) {
        f.pair(
            "speedup", "b" + std::to_string(model->rows), [&] { model->in_one_call(executor); },
            [&] { model->table_by_table(executor); }, [&] { model->next(); });
      }
    });
    f.report(state);
  }
}

template <class Executor>
void against_calls(benchmark::State& state, const std::string& name, Executor& executor, index_t rows) {
  criteo_model model(rows);
  if (model.tables.empty()) return state.SkipWithError(no_memory);
  const auto ours = [&] { model.in_one_call(executor); };
  const auto theirs = [&] { model.table_by_table(executor); };
  for (auto _ : state) {
    figures f(name);
    f.unfit(model.unfit);
    if (static_cast<int>(usable_cpus().size()) < executor.concurrency()) f.unfit("fewer CPUs than threads");
    if (!model.agree(ours, theirs)) return state.SkipWithError("wrong answer: 26 calls give other bits");
    f.sample([&] {
      const double seconds = f.pair("speedup", "", ours, theirs, [&] { model.next(); }).first;
      f.note("us_per_call", seconds / static_cast<double>(model.batches_of_pass()) * 1e6);
    });
    f.report(state);
  }
}

void against_roofline(benchmark::State& state, const std::string& name, index_t rows) {
  criteo_model model(rows);
  if (model.tables.empty()) return state.SkipWithError(no_memory);
  inline_executor here;
  const auto ours = [&] { model.in_one_call(here); };
  for (auto _ : state) {
    figures f(name);
    f.unfit(model.unfit);
    std::vector<candidate> gathers;
    for (const bool is_native : {false, true}) {
      for (const index_t distance : {0, 8, 16, 32, 64, -8, -16, -32, -64}) {
        gathers.push_back({std::string("gather ") + (is_native ? "native " : "o2 ") +
                               std::to_string(std::abs(distance)) + " rows ahead into " +
                               (distance >= 0 ? "3" : "2"),
                           [&model, is_native, distance] {
                             model.gather(is_native ? &native::gather_64_bytes : &o2::gather_64_bytes,
                                          std::abs(distance), distance >= 0);
                           }});
      }
    }
    const candidate limit = fastest(gathers, [&] { model.next(); });
    if (!model.agree(ours, limit.run)) {
      return state.SkipWithError("wrong answer: the gather copies other rows");
    }
    const double ids = static_cast<double>(model.batches_of_pass()) * features * static_cast<double>(rows);
    const std::string fault = huge_memory().pace().check(limit, ids, width * 4.0);
    if (!fault.empty()) return state.SkipWithError(fault.c_str());
    f.say(limit.name);
    f.sample([&] {
      const double seconds = f.pair("roofline", "", ours, limit.run, [&] { model.next(); }).first;
      f.note("ns_per_row", seconds / ids * 1e9);
    });
    f.report(state);
  }
}

/// What both threads gain; each has half of the samples of the machine's side.
template <class Ours, class Limit>
void sample_scaling(benchmark::State& state, figures& f, criteo_model& model, const Ours& ours,
                    const Limit& limit) {
  thread_pool two(2);
  const awake scope(two);  // a training loop's calls follow each other as closely
  inline_executor here;
  const double to_microseconds = 1e6 / static_cast<double>(model.batches_of_pass());
  const auto next = [&] { model.next(); };
  f.sample([&] {
    const auto [both, alone] = f.pair("scaling", "", [&] { ours(two); }, [&] { ours(here); }, next);
    const auto [limit_both, limit_alone] = f.pair(
        "machine_scaling", "",
        [&] {
          for (const auto& batch : model.part()) {
            two.parallel_for(2, 1, [&](index_t begin, index_t end, int) {
              limit(batch, begin * model.rows / 2, end * model.rows / 2);
            });
          }
        },
        [&] {
          for (const auto& batch : model.part()) limit(batch, 0, model.rows);
        },
        next);
    f.add("of_machine", alone / both / (limit_alone / limit_both));
    f.note("us_per_call", both * to_microseconds);
    f.note("us_per_call_alone", alone * to_microseconds);
    f.note("limit_us_alone", limit_alone * to_microseconds);
  });
  f.report(state);
}

void lookup_on_two(benchmark::State& state, const std::string& name, index_t rows) {
  criteo_model model(rows);
  if (model.tables.empty()) return state.SkipWithError(no_memory);
  thread_pool two(2);
  inline_executor here;
  const auto gather = [&](const std::vector<jagged_view<>>& batch, index_t begin, index_t end) {
    const std::int64_t* of_feature[features];
    for (std::size_t t = 0; t < features; ++t) of_feature[t] = batch[t].ids() + begin;
    native::gather_64_bytes({model.first_row.data(), of_feature, features, end - begin, 32, true,
                             reinterpret_cast<char*>(model.out.data() + begin * features * width)});
  };
  for (auto _ : state) {
    figures f(name);
    f.unfit(model.unfit);
    if (usable_cpus().size() < 2) f.unfit("fewer CPUs than threads");
    if (!model.agree([&] { model.in_one_call(two); }, [&] { model.in_one_call(here); })) {
      return state.SkipWithError("wrong answer: two threads give other bits");
    }
    sample_scaling(state, f, model, [&](auto& executor) { model.in_one_call(executor); }, gather);
  }
}

/// The same ids and another view of the same memory: rows with the state of row-wise Adagrad.
struct criteo_training {
  explicit criteo_training(criteo_model& its_model) : model(its_model) {
    char* const memory = huge_table();
    index_t before = 0;
    for (const index_t table_rows : criteo_rows) before += table_rows;
    if (static_cast<std::size_t>(before * stride) > huge_memory().bytes()) return;
    before = 0;
    for (const index_t table_rows : criteo_rows) {
      first_row.push_back(memory + before * stride);
      group.add(table_view<f32_rows>(reinterpret_cast<std::byte*>(first_row.back()), table_rows, format),
                combiner::sum);
      before += table_rows;
    }
    const counter_rng rng(9);
    for (std::size_t i = 0; i < model.out.size(); ++i) {
      gradient.push_back(static_cast<float>(rng.bits(1, i) >> 40) * 0x1p-24F - 0.5F);
    }
  }
  template <class Executor>
  void step(Executor& executor, const std::vector<jagged_view<>>& batch) {
    const matrix_view<const float> from(gradient.data(), model.rows, features * width);
    if (!update(executor, group, batch, from, rowwise_adagrad{})) std::abort();
  }
  /// True when a batch leaves the same rows and state on both executors.
  template <class First, class Second>
  bool agree(First& first, Second& second, const std::vector<jagged_view<>>& batch) {
    std::vector<char> before, after, expected;
    const auto keep = [&](std::vector<char>& to) {
      each_row(batch, [&](const char* row) { to.insert(to.end(), row, row + stride); });
    };
    keep(before);
    step(first, batch);
    keep(expected);
    const char* from = before.data();
    each_row(batch, [&](char* row) {
      std::memcpy(row, from, stride);
      from += stride;
    });
    step(second, batch);
    keep(after);
    return before != expected && expected == after;
  }
  template <class F>
  void each_row(const std::vector<jagged_view<>>& batch, F&& f) {
    for (std::size_t t = 0; t < features; ++t) {
      for (index_t k = 0; k < model.rows; ++k) f(first_row[t] + batch[t].ids()[k] * stride);
    }
  }

  const f32_rows format{width, {.state_floats = rowwise_adagrad::row_state}};
  const index_t stride = format.stride_bytes();
  criteo_model& model;
  std::vector<char*> first_row;
  feature_group<rowwise_adagrad> group;
  std::vector<float> gradient;
};

void update_on_two(benchmark::State& state, const std::string& name, index_t rows) {
  criteo_model model(rows);
  if (model.tables.empty()) return state.SkipWithError(no_memory);
  criteo_training training(model);
  if (training.first_row.empty() || training.stride != 68) return state.SkipWithError(no_memory);
  thread_pool two(2);
  inline_executor here;
  const auto rewrite = [&](const std::vector<jagged_view<>>& batch, index_t begin, index_t end) {
    const std::int64_t* of_feature[features];
    for (std::size_t t = 0; t < features; ++t) of_feature[t] = batch[t].ids() + begin;
    native::rewrite_68_bytes({training.first_row.data(), of_feature, features, end - begin, 32});
  };
  for (auto _ : state) {
    figures f(name);
    f.unfit(model.unfit);
    if (usable_cpus().size() < 2) f.unfit("fewer CPUs than threads");
    for (const std::size_t number : {0, 1}) {
      if (!training.agree(two, here, model.bags[number])) {
        return state.SkipWithError("wrong answer: two threads leave other rows");
      }
    }
    const auto step = [&](auto& executor) {
      for (const auto& batch : model.part()) training.step(executor, batch);
    };
    sample_scaling(state, f, model, step, rewrite);
  }
}

const bool registered = [] {
  add("table_group/inline/batch:128", [](benchmark::State& state, const std::string& name) {
    inline_executor here;
    against_calls(state, name, here, 128);
  });
  add("table_group/threads:2/batch:128", [](benchmark::State& state, const std::string& name) {
    thread_pool pool(2);
    against_calls(state, name, pool, 128);
  });
  add("table_group/never_slower/threads:1", [](benchmark::State& state, const std::string& name) {
    inline_executor here;
    at_every_size(state, name, here);
  });
  add("table_group/never_slower/threads:2", [](benchmark::State& state, const std::string& name) {
    thread_pool pool(2);
    at_every_size(state, name, pool);
  });
  add("table_group/roofline/batch:2048",
      [](benchmark::State& state, const std::string& name) { against_roofline(state, name, 2048); });
  add("table_group/t2/lookup/batch:2048",
      [](benchmark::State& state, const std::string& name) { lookup_on_two(state, name, 2048); });
  add("table_group/t2/update/batch:2048",
      [](benchmark::State& state, const std::string& name) { update_on_two(state, name, 2048); });
  return true;
}();

}  // namespace
