// The fused backward pass and optimizer step: 1.5 M rows, or as many as it takes to be cold, batches of 2048
// bags of 20 ids in rotation, whose different rows fill twice the last-level cache.
//
//   update/rowwise_adagrad/d:64   roofline: the rows of the same ids read, changed and written, state
//                                 included, by the fastest of a sweep over distances in this run
//   update/unique/d:64            the same, for batches without a repeated id
//   update/t2/d:64                scaling: time of one thread over that of two; of_machine: the same, over
//                                 what two threads gain on that roofline
//   update/skewed/d:64            speedup per id of zipf(1.05) ids over uniform ones
//   update/vs_unfused/d:64        speedup over gradients per id, unique, sums and a pass of the optimizer
//   update/vs_fbgemm/d:64         speedup over FBGEMM's fused kernel, where its library is at hand, at the
//                                 usual prefetch distance of 16, and speedup_tuned over the best of four; it
//                                 steps a row once for each id, not once for all
//
// Every table is compared with sums and steps in double before anything is timed.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory_resource>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

#include <deeprec/core/hash.hpp>
#include <deeprec/core/random.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/memory/huge_page_resource.hpp>
#include <deeprec/optim/optimizers.hpp>

#include "support/add.hpp"
#include "support/fbgemm.hpp"
#include "support/figures.hpp"
#include "support/machine.hpp"
#include "support/rewrite.hpp"
#include "support/roofline.hpp"
#include "support/uniform_batches.hpp"
#include "support/zipf.hpp"
#include "update/baseline.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bench;

constexpr index_t bags = 2048;
constexpr index_t hotness = 20;
constexpr index_t ids_of_batch = bags * hotness;

/// Rows of a table that has at least three times the last-level cache.
index_t rows_for(index_t stride, std::string& unfit) {
  const std::size_t wanted = std::max(static_cast<std::size_t>(1'500'000 * stride),
                                      3 * last_level_cache() + (std::size_t{64} << 20));
  // Up to three tables at once.
  const memory_plan plan = memory_plan::of(3 * wanted);
  unfit = plan.unfit;
  return static_cast<index_t>(plan.bytes / 3) / stride;
}

enum class ids_are { uniform, zipf, unique };

/// Batches whose different rows, were they uniform, fill twice the last-level cache.
std::vector<std::vector<std::int64_t>> batches(index_t rows, index_t stride, ids_are kind) {
  const double ids = uniform_ids_for(static_cast<double>(cold_bytes()) / static_cast<double>(stride),
                                     static_cast<double>(rows));
  const index_t count =
      std::max<index_t>(12, static_cast<index_t>(ids / static_cast<double>(ids_of_batch)) + 1);
  std::vector<std::vector<std::int64_t>> sets(static_cast<std::size_t>(count));
  for (std::size_t s = 0; s < sets.size(); ++s) {
    const counter_rng rng(500 + s);
    if (kind == ids_are::unique) {
      // A walk over all rows in steps that have no factor in common with their number.
      auto step = static_cast<index_t>(0.6180339887 * static_cast<double>(rows));  // golden: no near repeats
      while (std::gcd(step, rows) != 1) ++step;
      index_t at = static_cast<index_t>(s) * (rows / count);
      for (index_t k = 0; k < ids_of_batch; ++k, at = (at + step) % rows) sets[s].push_back(at);
      continue;
    }
    for (index_t k = 0; k < ids_of_batch; ++k) {
      const std::uint64_t draw = rng.bits(3, static_cast<std::uint64_t>(k));
      if (kind == ids_are::uniform) {
        sets[s].push_back(hash_bucket(draw, rows));
        continue;
      }
      sets[s].push_back(zipf_id(draw, rows));
    }
  }
  return sets;
}

double ids_of(const id_sets& sets) {
  return static_cast<double>(sets.size()) * static_cast<double>(ids_of_batch);
}

template <class Optimizer>
struct trained {
  std::string unfit;
  index_t rows;
  dense_table<f32_rows> table;
  Optimizer optimizer{};
  std::vector<float> gradient;
  index_t width;

  explicit trained(index_t d)
      : rows(rows_for(format_of(d).stride_bytes(), unfit)), table(rows, format_of(d)), width(d) {
    thread_pool pool(2);
    table.initialize(pool, row_init::uniform{.seed = 1});
    const counter_rng rng(9);
    gradient.resize(static_cast<std::size_t>(bags * d));
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      gradient[i] = static_cast<float>(rng.bits(1, i) >> 40) * 0x1p-24F - 0.5F;
    }
  }
  static f32_rows format_of(index_t d) {
    return f32_rows(d, {.state_floats = Optimizer::row_state + Optimizer::element_state * d});
  }
  [[nodiscard]] id_sets batches(ids_are kind) const {
    return ::batches(rows, table.format().stride_bytes(), kind);
  }
  /// Why these are not cold; else empty.
  [[nodiscard]] std::string not_cold(const id_sets& sets) const {
    const double bytes = different_rows(ids_of(sets), static_cast<double>(rows)) *
                         static_cast<double>(table.format().stride_bytes());
    if (!unfit.empty()) return unfit;
    return bytes >= 2.0 * static_cast<double>(last_level_cache())
               ? ""
               : "rows for less than twice the last-level cache";
  }
  template <class Executor>
  void step(Executor& executor, const std::vector<std::int64_t>& ids) {
    const fixed_hotness_view<> batch(ids.data(), bags, hotness);
    const matrix_view<const float> from(gradient.data(), bags, width);
    if (!update(executor, table.view(), batch, combiner::sum, from, optimizer)) std::abort();
  }
  template <class Executor>
  void steps(Executor& executor, const std::vector<std::vector<std::int64_t>>& sets) {
    for (const auto& ids : sets) step(executor, ids);
  }
};

/// The fastest; `fault` gets why it can't be a limit.
template <class Trained>
rewriter best_rewriter(Trained& model, const id_sets& sets, std::string& fault) {
  const auto table = model.table.view();
  const rewriter_search found = fastest_rewriter(table.data(), table.format().stride_bytes(), sets);
  const memory_pace pace =
      memory_pace::of(table.data(), static_cast<std::size_t>(model.rows * table.format().stride_bytes()));
  fault = pace.check_cold(found.best, ids_of(sets), static_cast<double>(table.format().row_bytes()));
  return found.found;
}

/// Whether a step on a batch gives each of its rows what sums and a step in double give.
template <class Executor, class Optimizer>
bool same_step(Executor& executor, trained<Optimizer>& model, const std::vector<std::int64_t>& ids) {
  const auto format = model.table.format();
  std::vector<std::int64_t> different(ids);
  std::sort(different.begin(), different.end());
  different.erase(std::unique(different.begin(), different.end()), different.end());
  const auto count = static_cast<index_t>(different.size());
  const auto bytes = static_cast<std::size_t>(format.stride_bytes());
  std::vector<double> sums(different.size() * static_cast<std::size_t>(model.width));
  std::vector<std::byte> before(different.size() * bytes);
  for (index_t u = 0; u < count; ++u) {
    std::memcpy(before.data() + static_cast<std::size_t>(u) * bytes,
                model.table.view().row(different[static_cast<std::size_t>(u)]), bytes);
  }
  for (std::size_t k = 0; k < ids.size(); ++k) {
    const auto u = static_cast<std::size_t>(std::lower_bound(different.begin(), different.end(), ids[k]) -
                                            different.begin());
    for (index_t j = 0; j < model.width; ++j) {
      sums[u * static_cast<std::size_t>(model.width) + static_cast<std::size_t>(j)] += static_cast<double>(
          model.gradient[k / static_cast<std::size_t>(hotness) * static_cast<std::size_t>(model.width) +
                         static_cast<std::size_t>(j)]);
    }
  }
  model.step(executor, ids);
  const auto floats_at = [](const std::byte* row) {
    return static_cast<const float*>(static_cast<const void*>(row));
  };
  const Optimizer& o = model.optimizer;
  const auto rate = static_cast<double>(o.learning_rate);
  const auto width = static_cast<std::size_t>(model.width);
  for (std::size_t u = 0; u < different.size(); ++u) {
    std::byte* const old_row = before.data() + u * bytes;
    const float* const old = floats_at(old_row);
    const float* const now = floats_at(model.table.view().row(different[u]));
    [[maybe_unused]] const float* const state = format.state(old_row);
    const double* const g = sums.data() + u * width;
    double squares = 0;
    for (std::size_t j = 0; j < width; ++j) squares += g[j] * g[j];
    for (std::size_t j = 0; j < width; ++j) {
      double step = 0;
      if constexpr (std::is_same_v<Optimizer, sgd>) {
        step = rate * g[j];
      } else if constexpr (std::is_same_v<Optimizer, rowwise_adagrad>) {
        const double sum = static_cast<double>(state[0]) + squares / static_cast<double>(width);
        step = rate * g[j] / (std::sqrt(sum) + static_cast<double>(o.epsilon));
      } else if constexpr (std::is_same_v<Optimizer, adagrad>) {
        const double sum = static_cast<double>(state[j]) + g[j] * g[j];
        step = rate * g[j] / (std::sqrt(sum) + static_cast<double>(o.epsilon));
      } else {
        static_assert(std::is_same_v<Optimizer, adam>);
        const auto beta1 = static_cast<double>(o.beta1), beta2 = static_cast<double>(o.beta2);
        const double m = beta1 * static_cast<double>(state[j]) + (1 - beta1) * g[j];
        const double v = beta2 * static_cast<double>(state[width + j]) + (1 - beta2) * g[j] * g[j];
        const auto t = static_cast<double>(o.step);
        step = rate * m / (1 - std::pow(beta1, t)) /
               (std::sqrt(v / (1 - std::pow(beta2, t))) + static_cast<double>(o.epsilon));
      }
      if (!(std::fabs(static_cast<double>(now[j]) - (static_cast<double>(old[j]) - step)) <= 1e-5))
        return false;
    }
  }
  return true;
}
constexpr const char* other_rows = "wrong answer: sums and steps in double give other rows";

template <class Optimizer>
void against_roofline(benchmark::State& state, const std::string& name, index_t width,
                      ids_are kind = ids_are::uniform) {
  trained<Optimizer> model(width);
  const id_sets sets = model.batches(kind);
  thread_pool one(1);
  for (auto _ : state) {
    figures f(name);
    f.unfit(model.not_cold(sets));
    if (!same_step(one, model, sets[0])) return state.SkipWithError(other_rows);
    std::string fault;
    const rewriter limit = best_rewriter(model, sets, fault);
    if (!fault.empty()) return state.SkipWithError(fault.c_str());
    f.say(limit.name);
    f.sample([&] {
      const auto [ours, theirs] =
          f.pair("roofline", "", [&] { model.steps(one, sets); }, [&] { limit.pass(sets); });
      f.note("ns_per_id", ours / ids_of(sets) * 1e9);
      f.note("rewrite_ns_per_id", theirs / ids_of(sets) * 1e9);
    });
    f.report(state);
  }
}

void two_threads(benchmark::State& state, const std::string& name, index_t width) {
  trained<rowwise_adagrad> model(width);
  const id_sets sets = model.batches(ids_are::uniform);
  thread_pool one(1);
  thread_pool two(2);
  for (auto _ : state) {
    figures f(name);
    f.unfit(model.not_cold(sets));
    if (usable_cpus().size() < 2) f.unfit("fewer CPUs than threads");
    if (!same_step(two, model, sets[0])) return state.SkipWithError(other_rows);
    std::string fault;
    const rewriter limit = best_rewriter(model, sets, fault);
    if (!fault.empty()) return state.SkipWithError(fault.c_str());
    f.say(limit.name);
    const auto on_both = [&] {
      for (const auto& ids : sets) {
        two.parallel_for(2, 1, [&](index_t begin, index_t end, int) {
          limit.pass(ids, begin * ids_of_batch / 2, end * ids_of_batch / 2);
        });
      }
    };
    f.sample([&] {
      const auto [both, alone] =
          f.pair("scaling", "", [&] { model.steps(two, sets); }, [&] { model.steps(one, sets); });
      const auto [limit_both, limit_alone] =
          f.pair("machine_scaling", "", on_both, [&] { limit.pass(sets); });
      f.add("of_machine", alone / both / (limit_alone / limit_both));
    });
    f.report(state);
  }
}

void skewed(benchmark::State& state, const std::string& name, index_t width) {
  trained<rowwise_adagrad> model(width);
  const id_sets uniform = model.batches(ids_are::uniform);
  const id_sets zipf = model.batches(ids_are::zipf);
  thread_pool one(1);
  for (auto _ : state) {
    figures f(name);
    f.unfit(model.not_cold(uniform));
    if (!same_step(one, model, uniform[0]) || !same_step(one, model, zipf[0]))
      return state.SkipWithError(other_rows);
    f.sample(
        [&] { f.pair("speedup", "", [&] { model.steps(one, zipf); }, [&] { model.steps(one, uniform); }); });
    f.report(state);
  }
}

void vs_unfused(benchmark::State& state, const std::string& name, index_t width) {
  trained<rowwise_adagrad> model(width);
  trained<rowwise_adagrad> other(width);
  if (model.rows != other.rows) return state.SkipWithError("unfit: no memory for two tables");
  const index_t stride = model.table.view().format().stride_bytes();
  const id_sets sets = model.batches(ids_are::uniform);
  thread_pool one(1);
  const auto their_step = [&](auto run, const std::vector<std::int64_t>& ids) {
    run({ids.data(), bags, hotness, other.gradient.data(), width},
        static_cast<float*>(static_cast<void*>(other.table.view().data())), stride / 4,
        other.optimizer.learning_rate, other.optimizer.epsilon);
  };
  for (auto _ : state) {
    figures f(name);
    f.unfit(model.not_cold(sets));
    const auto same_rows = [&](const std::vector<std::int64_t>& of) {
      std::vector<float> ours(static_cast<std::size_t>(width)), expected(ours.size());
      for (const std::int64_t id : of) {
        model.table.view().format().decode(model.table.view().row(id), ours.data());
        other.table.view().format().decode(other.table.view().row(id), expected.data());
        for (std::size_t j = 0; j < ours.size(); ++j) {
          if (!(std::fabs(ours[j] - expected[j]) <= 1e-5F)) return false;
        }
      }
      return true;
    };
    model.step(one, sets[0]);
    their_step(&o2::unfused_rowwise_adagrad, sets[0]);
    bool same = same_rows(sets[0]);
    model.step(one, sets[1]);
    their_step(&native::unfused_rowwise_adagrad, sets[1]);
    same = same && same_rows(sets[1]);
    if (!same) return state.SkipWithError("wrong answer: the separate passes give other rows");
    f.sample([&] {
      for (const auto run : {&o2::unfused_rowwise_adagrad, &native::unfused_rowwise_adagrad}) {
        f.pair(
            "speedup", run == &o2::unfused_rowwise_adagrad ? "o2" : "native", [&] { model.steps(one, sets); },
            [&] {
              for (const auto& ids : sets) their_step(run, ids);
            });
      }
    });
    f.report(state);
  }
}

void vs_fbgemm(benchmark::State& state, const std::string& name, index_t width) {
  using kernel = fbgemm::rowwise_adagrad;
  std::vector<kernel> kernels;
  for (const int distance : {16, 8, 32, 64}) {
    kernels.push_back(fbgemm::generate_rowwise_adagrad(static_cast<int>(width), distance));
  }
  if (!kernels[0])
    return state.SkipWithError("no FBGEMM here: set DEEPREC_FBGEMM (benchmarks/support/fbgemm.hpp)");
  trained<rowwise_adagrad> model(width);
  // On the same pages as our table.
  std::pmr::memory_resource* const pages = huge_page_resource::shared();
  std::pmr::vector<float> weights(static_cast<std::size_t>(model.rows * width), pages);
  std::pmr::vector<float> squares(static_cast<std::size_t>(model.rows), pages);
  for (index_t r = 0; r < model.rows; ++r) {
    model.table.view().format().decode(model.table.view().row(r), weights.data() + r * width);
  }
  std::vector<std::int64_t> offsets;
  for (index_t b = 0; b <= bags; ++b) offsets.push_back(b * hotness);
  const auto step = [&](const kernel& run, const std::vector<std::int64_t>& ids) {
    if (!run(bags, ids_of_batch, model.rows, weights.data(), model.gradient.data(), squares.data(),
             ids.data(), offsets.data(), model.optimizer.epsilon, -model.optimizer.learning_rate)) {
      std::abort();
    }
  };
  thread_pool one(1);
  const id_sets sets = model.batches(ids_are::uniform);
  for (auto _ : state) {
    figures f(name);
    f.unfit(model.not_cold(sets));
    f.note("on_huge_pages", share_on_huge_pages(model.table.view().data()));
    f.note("on_huge_pages_theirs", share_on_huge_pages(weights.data()));
    std::vector<std::int64_t> different;  // ids that come once, for which both mean the same
    for (index_t k = 0; k < ids_of_batch; ++k) different.push_back(k * 36 + 1);
    for (const std::int64_t id : different) {
      float* const theirs = weights.data() + id * width;
      model.table.view().format().decode(model.table.view().row(id), theirs);
      squares[static_cast<std::size_t>(id)] = *model.table.view().format().state(model.table.view().row(id));
    }
    model.step(one, different);
    step(kernels[0], different);
    std::vector<float> ours(static_cast<std::size_t>(width));
    for (const std::int64_t id : different) {
      model.table.view().format().decode(model.table.view().row(id), ours.data());
      for (std::size_t j = 0; j < ours.size(); ++j) {
        const float theirs = weights[static_cast<std::size_t>(id * width) + j];
        if (!(std::fabs(ours[j] - theirs) <= 1e-5F)) {
          return state.SkipWithError("wrong answer: FBGEMM gives other rows");
        }
      }
    }
    const auto all_of = [&](const kernel& run) {
      return [&] {
        for (const auto& ids : sets) step(run, ids);
      };
    };
    std::vector<candidate> tuned;
    for (std::size_t i = 0; i < kernels.size(); ++i) tuned.push_back({std::to_string(i), all_of(kernels[i])});
    const candidate best = fastest(tuned);
    static constexpr const char* names[] = {"FBGEMM 16 rows ahead", "FBGEMM 8 rows ahead",
                                            "FBGEMM 32 rows ahead", "FBGEMM 64 rows ahead"};
    f.say(names[std::stoul(best.name)]);
    f.sample([&] {
      const auto all_ours = [&] { model.steps(one, sets); };
      f.pair("speedup", "", all_ours, all_of(kernels[0]));
      f.pair("speedup_tuned", "", all_ours, best.run);
    });
    f.report(state);
  }
}

const bool registered = [] {
  using state = benchmark::State;
  using string = std::string;
  for (const index_t width : {128, 64, 32, 24}) {
    add("update/rowwise_adagrad/d:" + std::to_string(width),
        [width](state& s, const string& name) { against_roofline<rowwise_adagrad>(s, name, width); });
  }
  add("update/unique/d:64",
      [](state& s, const string& name) { against_roofline<rowwise_adagrad>(s, name, 64, ids_are::unique); });
  add("update/sgd/d:64", [](state& s, const string& name) { against_roofline<sgd>(s, name, 64); });
  add("update/adam/d:64", [](state& s, const string& name) { against_roofline<adam>(s, name, 64); });
  add("update/adagrad/d:64", [](state& s, const string& name) { against_roofline<adagrad>(s, name, 64); });
  add("update/t2/d:64", [](state& s, const string& name) { two_threads(s, name, 64); });
  add("update/skewed/d:64", [](state& s, const string& name) { skewed(s, name, 64); });
  add("update/vs_unfused/d:64", [](state& s, const string& name) { vs_unfused(s, name, 64); });
  add("update/vs_fbgemm/d:64", [](state& s, const string& name) { vs_fbgemm(s, name, 64); });
  if (const string version = fbgemm::version(); !version.empty())
    benchmark::AddCustomContext("peer.FBGEMM", version);
  return true;
}();

}  // namespace
