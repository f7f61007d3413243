// Whole rows by a condition, f32, on one thread.
//
//   row_select/published   (1024, 64), 8 sets of inputs in rotation: of_memcpy: memcpy of as many bytes, half
//                          from each input, over ours, each after a pass of its own kind, so that both find
//                          caches as they leave them; speedup: over Eigen's broadcast and select (the faster
//                          of two builds)
//   row_select/large       out of 256 MB or 2.5 times the last-level cache, random conditions: of_memcpy:
//                          memcpy of as many bytes over ours; roofline: the best of a sweep (stores x
//                          prefetch distances x kernels, in this run) over ours; floor_ms: the bytes over the
//                          bandwidth of memcpy
//
// Every answer is compared with plain loops before anything is timed.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/ops/row_select.hpp>

#include "row_select/baseline.hpp"
#include "support/figures.hpp"
#include "support/machine.hpp"
#include "support/roofline.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bench;
namespace baseline = row_select_baseline;

constexpr index_t width = 64;

struct free_memory {
  void operator()(void* p) const { std::free(p); }
};
template <class T>
using buffer = std::unique_ptr<T[], free_memory>;
template <class T>
buffer<T> make_buffer(std::size_t count) {  // whole pages, as a framework's allocator hands them out
  return buffer<T>(static_cast<T*>(std::aligned_alloc(4096, (count * sizeof(T) + 4095) / 4096 * 4096)));
}

struct inputs {
  inputs(index_t row_count, std::uint64_t seed)
      : rows(row_count),
        cond(make_buffer<bool>(static_cast<std::size_t>(rows))),
        then(make_buffer<float>(size())),
        otherwise(make_buffer<float>(size())),
        out(make_buffer<float>(size())) {
    std::mt19937_64 random(seed);
    for (index_t b = 0; b < rows; ++b) cond[static_cast<std::size_t>(b)] = random() % 2 == 0;
    for (std::size_t i = 0; i < size(); ++i) {
      then[i] = static_cast<float>(i % 65521);
      otherwise[i] = -1 - then[i];
    }
    std::memset(out.get(), 0xff, bytes());
  }

  std::size_t size() const { return static_cast<std::size_t>(rows * width); }
  std::size_t bytes() const { return size() * sizeof(float); }

  status ours() const {
    return row_select(inline_executor{}, std::span<const bool>(cond.get(), static_cast<std::size_t>(rows)),
                      matrix_view<const float>(then.get(), rows, width),
                      matrix_view<const float>(otherwise.get(), rows, width),
                      matrix_view(out.get(), rows, width));
  }
  template <class Select>
  void theirs(Select&& select) const {
    select(cond.get(), then.get(), otherwise.get(), out.get(), static_cast<long>(rows));
  }

  /// Compares out with plain loops, and spoils it for the next one.
  bool right() const {
    bool all = true;
    for (index_t b = 0; b < rows; ++b) {
      const auto at = static_cast<std::size_t>(b * width);
      const float* from = cond[static_cast<std::size_t>(b)] ? &then[at] : &otherwise[at];
      for (std::size_t j = 0; j < width; ++j) all = all && out[at + j] == from[j];
    }
    std::memset(out.get(), 0xff, bytes());
    return all;
  }

  index_t rows;
  buffer<bool> cond;
  buffer<float> then, otherwise, out;
};

void published(benchmark::State& state) {
  std::vector<inputs> sets;
  for (std::uint64_t i = 0; i < 8; ++i) sets.emplace_back(1024, 11 + i);
  const auto all = [&](auto&& call) {
    return [&sets, call] {
      for (const inputs& set : sets) call(set);
      benchmark::ClobberMemory();
    };
  };
  const auto ours = all([](const inputs& set) { benchmark::DoNotOptimize(set.ours().ok()); });
  const auto o2 =
      all([](const inputs& set) { set.theirs([](auto... a) { baseline::o2::eigen_select(a..., width); }); });
  const auto native = all(
      [](const inputs& set) { set.theirs([](auto... a) { baseline::native::eigen_select(a..., width); }); });
  const auto copy = all([](const inputs& set) {
    const std::size_t half = set.size() / 2;
    std::memcpy(set.out.get(), set.then.get(), half * sizeof(float));
    std::memcpy(set.out.get() + half, set.otherwise.get() + half, half * sizeof(float));
  });
  const auto correct = [&](auto&& call) {
    call();
    return std::all_of(sets.begin(), sets.end(), [](const inputs& set) { return set.right(); });
  };
  if (!correct(ours) || !correct(o2) || !correct(native)) {
    state.SkipWithError("wrong answer: not what plain loops choose");
    return;
  }
  for (auto _ : state) {
    figures f("row_select/published");
    // 16 passes each: one takes some tens of microseconds.
    const auto again = [](const auto& call) {
      return [&call] {
        for (int i = 0; i < 16; ++i) call();
      };
    };
    f.sample([&] {
      f.pair("speedup", "o2", again(ours), again(o2));
      f.pair("speedup", "native", again(ours), again(native));
      const double seconds = f.pair("of_memcpy", "", again(ours), again(copy)).first;
      f.note("us_per_call", seconds / 16 / static_cast<double>(sets.size()) * 1e6);
    });
    f.report(state);
  }
}

/// One of the sweep.
struct kernel {
  std::string name;
  int number;
  decltype(&baseline::o2::sweep_run) run;
};

std::vector<kernel> sweep() {
  std::vector<kernel> all;
  for (int i = 0; i < baseline::o2::sweep_size(); ++i) {
    all.push_back({std::string("o2,") + baseline::o2::sweep_name(i), i, baseline::o2::sweep_run});
  }
  for (int i = 0; i < baseline::native::sweep_size(); ++i) {
    all.push_back({std::string("native,") + baseline::native::sweep_name(i), i, baseline::native::sweep_run});
  }
  return all;
}

void large(benchmark::State& state) {
  static const memory_plan plan = memory_plan::of(3 * large_bytes());
  static const inputs one(static_cast<index_t>(plan.bytes / 3 / sizeof(float) / width) / 64 * 64, 5);
  // Other conditions over the same rows, so that no pass repeats the one before it.
  static const std::vector<std::vector<std::uint8_t>> conditions = [] {
    std::mt19937_64 random(6);
    std::vector<std::vector<std::uint8_t>> made(3);
    for (auto& cond : made) {
      cond.resize(static_cast<std::size_t>(one.rows));
      for (auto& c : cond) c = random() % 2;
    }
    return made;
  }();
  const std::vector<kernel> kernels = sweep();
  std::size_t turn = 0;
  const auto next_condition = [&] {
    std::memcpy(one.cond.get(), conditions[turn++ % conditions.size()].data(),
                static_cast<std::size_t>(one.rows));
  };
  const auto ours = [&] {
    benchmark::DoNotOptimize(one.ours().ok());
    benchmark::ClobberMemory();
  };
  const auto copy = [&] {
    std::memcpy(one.out.get(), one.then.get(), one.bytes());
    benchmark::ClobberMemory();
  };
  const auto theirs = [&](const kernel& c) {
    one.theirs([&](auto... a) { c.run(c.number, a...); });
    benchmark::ClobberMemory();
  };

  static const bool right = [&] {
    bool all = true;
    const inputs few(4099, 7);
    for (const kernel& c : kernels) {
      few.theirs([&](auto... a) { c.run(c.number, a...); });
      all = all && few.right();
    }
    ours();
    return all && one.right();
  }();
  if (!right) {
    state.SkipWithError("wrong answer: not what plain loops choose");
    return;
  }

  for (auto _ : state) {
    figures f("row_select/large");
    f.unfit(plan.unfit);
    std::vector<candidate> candidates;
    for (const kernel& k : kernels) candidates.push_back({k.name, [&theirs, &k] { theirs(k); }});
    const candidate best = fastest(candidates, next_condition);
    f.say("best of the sweep: " + best.name);
    const double copied = std::min(seconds_of(copy), seconds_of(copy));
    const std::string fault = out_of_bounds(best.name, best.seconds, copied / 2, copied * 4);
    if (!fault.empty()) return state.SkipWithError(fault.c_str());
    const auto bytes = static_cast<double>(2 * one.bytes());
    f.sample([&] {
      f.pair("roofline", "", ours, best.run, next_condition);
      const auto [seconds, of_copy] = f.pair("of_memcpy", "", ours, copy, next_condition);
      f.note("memcpy_ms", of_copy * 1e3);
      // The rows, once in and once out, and the conditions.
      f.note("floor_ms", of_copy * 1e3 * (bytes + static_cast<double>(one.rows)) / bytes);
      f.note("bytes_per_second", bytes / seconds);
    });
    f.report(state);
  }
}

BENCHMARK(published)
    ->Name("row_select/published")
    ->Iterations(1)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(large)->Name("row_select/large")->Iterations(1)->UseManualTime()->Unit(benchmark::kMillisecond);

}  // namespace
