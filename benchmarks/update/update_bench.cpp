// The fused backward pass and optimizer step: 1.5 M rows, batches of 2048 bags of 20 ids, twelve or more in
// rotation.
//
//   update/rowwise_adagrad/d:64   roofline: the rows of the same ids read, changed and written, state included,
//                                 by the fastest of a sweep over distances in this run
//   update/t2/d:64                what two threads gain, over what two threads gain on that roofline
//   update/skewed/d:64            speedup per id of zipf(1.05) ids over uniform ones
//   update/vs_unfused/d:64        speedup over gradients per id, unique, sums and a pass of the optimizer
//   update/vs_fbgemm/d:64         speedup over FBGEMM's fused kernel, where its library is at hand, at the usual
//                                 prefetch distance of 16; it steps a row once for each id, not once for all
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory_resource>
#include <string>
#include <vector>

#include <deeprec/core/hash.hpp>
#include <deeprec/core/random.hpp>
#include <deeprec/embedding/dense_table.hpp>
#include <deeprec/embedding/update.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/memory/huge_page_resource.hpp>
#include <deeprec/optim/optimizers.hpp>

#include "support/fbgemm.hpp"
#include "support/paired.hpp"
#include "update/baseline.hpp"

namespace {

using namespace deeprec;
using deeprec_bench::in_turn;
using deeprec_bench::median;
using deeprec_bench::seconds_of;

constexpr index_t rows = 1'500'000;
constexpr index_t bags = 2048;
constexpr index_t hotness = 20;
constexpr index_t ids_of_batch = bags * hotness;
constexpr int pairs_per_run = 9;

enum class ids_are { uniform, zipf };

/// Batches that together use at least 96 MB of rows.
std::vector<std::vector<std::int64_t>> batches(index_t stride, ids_are kind) {
  const index_t count = std::max<index_t>(12, (index_t{96} << 20) / (ids_of_batch * stride));
  std::vector<std::vector<std::int64_t>> sets(static_cast<std::size_t>(count));
  for (std::size_t s = 0; s < sets.size(); ++s) {
    const counter_rng rng(500 + s);
    for (index_t k = 0; k < ids_of_batch; ++k) {
      const std::uint64_t draw = rng.bits(3, static_cast<std::uint64_t>(k));
      if (kind == ids_are::uniform) {
        sets[s].push_back(bucket(draw, rows));
        continue;
      }
      // Inverse of the continuous zipf(1.05) on [1, rows + 1), its ranks scattered over the table.
      constexpr double exponent = -0.05;
      const double top = std::pow(static_cast<double>(rows) + 1, exponent);
      const double u = static_cast<double>(draw >> 11) * 0x1p-53;
      const double rank = std::pow(1 + u * (top - 1), 1 / exponent) - 1;
      const auto place = static_cast<index_t>(rank);
      sets[s].push_back(bucket(mix64(static_cast<std::uint64_t>(std::min(place, rows - 1))), rows));
    }
  }
  return sets;
}

template <class Optimizer>
struct trained {
  dense_table<f32_rows> table;
  Optimizer optimizer{};
  std::vector<float> gradient;
  index_t width;

  explicit trained(index_t d)
      : table(rows, f32_rows(d, {.state_floats = Optimizer::row_state + Optimizer::element_state * d})),
        width(d) {
    thread_pool pool(2);
    table.initialize(pool, uniform_rows{.seed = 1});
    const counter_rng rng(9);
    gradient.resize(static_cast<std::size_t>(bags * d));
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      gradient[i] = static_cast<float>(rng.bits(1, i) >> 40) * 0x1p-24F - 0.5F;
    }
  }
  template <class Executor>
  void step(Executor& executor, const std::vector<std::int64_t>& ids) {
    const fixed_view<> batch(ids.data(), bags, hotness);
    const matrix_view<const float> from(gradient.data(), bags, width);
    if (!update(executor, batch, from, sum, optimizer, table.view())) std::abort();
  }
  template <class Executor>
  void steps(Executor& executor, const std::vector<std::vector<std::int64_t>>& sets) {
    for (const auto& ids : sets) step(executor, ids);
  }
  rewrite_plan plan(index_t distance, bool into_all) {
    const index_t stride = table.view().format().stride_bytes();
    return {static_cast<char*>(static_cast<void*>(table.view().data())), stride, stride / 4, nullptr, 0, distance, into_all};
  }
};

using rewrite_function = void (*)(const rewrite_plan&);

struct roofline {
  rewrite_plan plan{};
  rewrite_function run = nullptr;

  void pass(const std::vector<std::int64_t>& ids, index_t begin, index_t end) const {
    rewrite_plan here = plan;
    here.ids = ids.data() + begin;
    here.count = end - begin;
    run(here);
  }
  void pass(const std::vector<std::vector<std::int64_t>>& sets) const {
    for (const auto& ids : sets) pass(ids, 0, ids_of_batch);
  }
  template <class Trained>
  static roofline best(Trained& model, const std::vector<std::vector<std::int64_t>>& sets) {
    roofline found;
    double fastest = 1e9;
    for (const rewrite_function run : {&o2::rewrite, &native::rewrite}) {
      for (const index_t distance : {0, 4, 8, 16, 32, -8, -16, -32}) {
        const roofline candidate{model.plan(std::abs(distance), distance >= 0), run};
        const double seconds = std::min(seconds_of([&] { candidate.pass(sets); }),
                                        seconds_of([&] { candidate.pass(sets); }));
        if (seconds < fastest) {
          fastest = seconds;
          found = candidate;
        }
      }
    }
    return found;
  }
};

template <class Optimizer>
void against_roofline(benchmark::State& state, index_t width) {
  trained<Optimizer> model(width);
  const auto sets = batches(model.table.view().format().stride_bytes(), ids_are::uniform);
  thread_pool one(1);
  for (auto _ : state) {
    const roofline limit = roofline::best(model, sets);
    const auto measured =
        in_turn(pairs_per_run, [&] { model.steps(one, sets); }, [&] { limit.pass(sets); });
    const double ids = static_cast<double>(sets.size()) * static_cast<double>(ids_of_batch);
    state.counters["roofline"] = measured.ratio;
    state.counters["ns_per_id"] = measured.first / ids * 1e9;
    state.counters["rewrite_ns_per_id"] = measured.second / ids * 1e9;
    state.SetIterationTime(measured.first);
  }
}

void two_threads(benchmark::State& state, index_t width) {
  trained<rowwise_adagrad> model(width);
  const auto sets = batches(model.table.view().format().stride_bytes(), ids_are::uniform);
  thread_pool one(1);
  thread_pool two(2);
  for (auto _ : state) {
    const roofline limit = roofline::best(model, sets);
    std::vector<double> shares;
    for (int i = 0; i < pairs_per_run; ++i) {
      const double ours = seconds_of([&] { model.steps(one, sets); }) / seconds_of([&] { model.steps(two, sets); });
      const double single = seconds_of([&] { limit.pass(sets); });
      const double both = seconds_of([&] {
        for (const auto& ids : sets) {
          two.parallel_for(2, 1, [&](index_t begin, index_t end, int) {
            limit.pass(ids, begin * ids_of_batch / 2, end * ids_of_batch / 2);
          });
        }
      });
      shares.push_back(ours / (single / both));
    }
    state.counters["roofline"] = median(shares);
    state.SetIterationTime(1);
  }
}

void skewed(benchmark::State& state, index_t width) {
  trained<rowwise_adagrad> model(width);
  const index_t stride = model.table.view().format().stride_bytes();
  const auto uniform = batches(stride, ids_are::uniform);
  const auto zipf = batches(stride, ids_are::zipf);
  thread_pool one(1);
  for (auto _ : state) {
    const auto measured =
        in_turn(pairs_per_run, [&] { model.steps(one, zipf); }, [&] { model.steps(one, uniform); });
    state.counters["speedup"] = measured.ratio;
    state.SetIterationTime(measured.first);
  }
}

void vs_unfused(benchmark::State& state, index_t width) {
  trained<rowwise_adagrad> model(width);
  trained<rowwise_adagrad> other(width);
  const index_t stride = model.table.view().format().stride_bytes();
  const auto sets = batches(stride, ids_are::uniform);
  thread_pool one(1);
  const auto theirs = [&](auto run) {
    for (const auto& ids : sets) {
      run({ids.data(), bags, hotness, other.gradient.data(), width},
          static_cast<float*>(static_cast<void*>(other.table.view().data())), stride / 4,
          other.optimizer.learning_rate, other.optimizer.epsilon);
    }
  };
  for (auto _ : state) {
    model.step(one, sets[0]);
    o2::unfused_rowwise_adagrad({sets[0].data(), bags, hotness, other.gradient.data(), width},
                                static_cast<float*>(static_cast<void*>(other.table.view().data())), stride / 4,
                                other.optimizer.learning_rate, other.optimizer.epsilon);
    std::vector<float> ours(static_cast<std::size_t>(width)), expected(ours.size());
    for (const std::int64_t id : sets[0]) {
      model.table.view().format().decode(model.table.view().row(id), ours.data());
      other.table.view().format().decode(other.table.view().row(id), expected.data());
      for (std::size_t j = 0; j < ours.size(); ++j) {
        if (!(std::fabs(ours[j] - expected[j]) <= 1e-5F)) {
          return state.SkipWithError("wrong answer: the separate passes give other rows");
        }
      }
    }
    double speedup = 1e9;
    for (const auto run : {&o2::unfused_rowwise_adagrad, &native::unfused_rowwise_adagrad}) {
      const auto measured = in_turn(pairs_per_run, [&] { model.steps(one, sets); }, [&] { theirs(run); });
      speedup = std::min(speedup, measured.ratio);
      state.SetIterationTime(measured.first);
    }
    state.counters["speedup"] = speedup;
  }
}

void vs_fbgemm(benchmark::State& state, index_t width) {
  const auto run = deeprec_bench::fbgemm::generate_rowwise_adagrad(static_cast<int>(width), 16);
  if (!run) return state.SkipWithError("no FBGEMM here: set DEEPREC_FBGEMM (benchmarks/support/fbgemm.hpp)");
  trained<rowwise_adagrad> model(width);
  // On the same pages as our table.
  std::pmr::memory_resource* const pages = huge_page_resource::shared();
  std::pmr::vector<float> weights(static_cast<std::size_t>(rows * width), pages);
  std::pmr::vector<float> squares(static_cast<std::size_t>(rows), pages);
  for (index_t r = 0; r < rows; ++r) {
    model.table.view().format().decode(model.table.view().row(r), weights.data() + r * width);
  }
  std::vector<std::int64_t> offsets;
  for (index_t b = 0; b <= bags; ++b) offsets.push_back(b * hotness);
  const auto step = [&](const std::vector<std::int64_t>& ids) {
    if (!run(bags, ids_of_batch, rows, weights.data(), model.gradient.data(), squares.data(), ids.data(),
             offsets.data(), model.optimizer.epsilon, -model.optimizer.learning_rate)) {
      std::abort();
    }
  };
  thread_pool one(1);
  const auto sets = batches(model.table.view().format().stride_bytes(), ids_are::uniform);
  for (auto _ : state) {
    std::vector<std::int64_t> different;  // ids that come once, for which both mean the same
    for (index_t k = 0; k < ids_of_batch; ++k) different.push_back(k * 36 + 1);
    for (const std::int64_t id : different) {
      float* const theirs = weights.data() + id * width;
      model.table.view().format().decode(model.table.view().row(id), theirs);
      squares[static_cast<std::size_t>(id)] = *model.table.view().format().state(model.table.view().row(id));
    }
    model.step(one, different);
    step(different);
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
    const auto measured = in_turn(pairs_per_run, [&] { model.steps(one, sets); },
                                  [&] { for (const auto& ids : sets) step(ids); });
    state.counters["speedup"] = measured.ratio;
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
  for (const index_t width : {128, 64, 32, 24}) {
    add("update/rowwise_adagrad/d:" + std::to_string(width),
        [width](benchmark::State& state) { against_roofline<rowwise_adagrad>(state, width); });
  }
  add("update/sgd/d:64", [](benchmark::State& state) { against_roofline<sgd>(state, 64); });
  add("update/adam/d:64", [](benchmark::State& state) { against_roofline<adam>(state, 64); });
  add("update/adagrad/d:64", [](benchmark::State& state) { against_roofline<adagrad>(state, 64); });
  add("update/t2/d:64", [](benchmark::State& state) { two_threads(state, 64); });
  add("update/skewed/d:64", [](benchmark::State& state) { skewed(state, 64); });
  add("update/vs_unfused/d:64", [](benchmark::State& state) { vs_unfused(state, 64); });
  add("update/vs_fbgemm/d:64", [](benchmark::State& state) { vs_fbgemm(state, 64); });
  return true;
}();

}  // namespace
