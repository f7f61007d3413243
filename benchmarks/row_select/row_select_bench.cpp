// Whole rows by a condition, f32, on one thread.
//
//   row_select/published   (1024, 64), 8 sets of inputs in rotation: speedup over Eigen's broadcast and
//                          select (the faster of two builds); roofline: memcpy of as many bytes over ours
//   row_select/large       (2^20, 64), 256 MB out, random conditions: of_memcpy: memcpy of 256 MB over
//                          ours; roofline: the best of a sweep (stores x prefetch distances x kernels, in
//                          this run) over ours; floor_ms: the bytes over the bandwidth of memcpy
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
#include "support/paired.hpp"

namespace {

using namespace deeprec;
using deeprec_bench::in_turn;
using deeprec_bench::median;
using deeprec_bench::seconds_of;
namespace baseline = row_select_baseline;

constexpr index_t width = 64;

struct free_memory {
  void operator()(void* p) const { std::free(p); }
};
template <class T>
using buffer = std::unique_ptr<T[], free_memory>;
template <class T>
buffer<T> make_buffer(std::size_t count) {  // whole pages, as a framework's allocator hands them out
  return buffer<T>(
      static_cast<T*>(std::aligned_alloc(4096, (count * sizeof(T) + 4095) / 4096 * 4096)));
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
  const auto o2 = all([](const inputs& set) {
    set.theirs([](auto... a) { baseline::o2::eigen_select(a..., width); });
  });
  const auto native = all([](const inputs& set) {
    set.theirs([](auto... a) { baseline::native::eigen_select(a..., width); });
  });
  const auto copy = all([](const inputs& set) {
    std::memcpy(set.out.get(), set.then.get(), set.bytes());
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
    const double by_o2 = in_turn(51, ours, o2).ratio;
    const double by_native = in_turn(51, ours, native).ratio;
    const auto with_copy = in_turn(51, ours, copy);
    state.SetIterationTime(with_copy.first / static_cast<double>(sets.size()));
    state.counters["speedup"] = std::min(by_o2, by_native);
    state.counters["speedup_o2"] = by_o2;
    state.counters["speedup_native"] = by_native;
    state.counters["roofline"] = with_copy.ratio;
  }
}

struct candidate {
  std::string name;
  int number;
  decltype(&baseline::o2::sweep_run) run;
  double seconds = 0;
};

std::vector<candidate> sweep() {
  std::vector<candidate> all;
  for (int i = 0; i < baseline::o2::sweep_size(); ++i) {
    all.push_back({std::string("o2,") + baseline::o2::sweep_name(i), i, baseline::o2::sweep_run});
  }
  for (int i = 0; i < baseline::native::sweep_size(); ++i) {
    all.push_back(
        {std::string("native,") + baseline::native::sweep_name(i), i, baseline::native::sweep_run});
  }
  return all;
}

void large(benchmark::State& state) {
  static const inputs one(index_t{1} << 20, 5);  // 256 MB each: then, otherwise, out
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
  std::vector<candidate> candidates = sweep();
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
  const auto theirs = [&](const candidate& c) {
    one.theirs([&](auto... a) { c.run(c.number, a...); });
    benchmark::ClobberMemory();
  };

  static const bool right = [&] {
    bool all = true;
    const inputs few(4099, 7);
    for (const candidate& c : candidates) {
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
    // The sweep: two passes each, then the best four again and again. The winner of that meets ours in
    // pairs of its own, so that a lucky pass is not part of the figure.
    for (candidate& c : candidates) {
      c.seconds = 1e9;
      for (int i = 0; i < 2; ++i) {
        next_condition();
        c.seconds = std::min(c.seconds, seconds_of([&] { theirs(c); }));
      }
    }
    const auto faster = [](const candidate& a, const candidate& b) { return a.seconds < b.seconds; };
    std::partial_sort(candidates.begin(), candidates.begin() + 4, candidates.end(), faster);
    std::vector<std::vector<double>> seconds(4);
    for (int round = 0; round < 11; ++round) {
      next_condition();
      for (std::size_t i = 0; i < 4; ++i) {
        seconds[i].push_back(seconds_of([&] { theirs(candidates[i]); }));
      }
    }
    for (std::size_t i = 0; i < 4; ++i) candidates[i].seconds = median(seconds[i]);
    const candidate& best = *std::min_element(candidates.begin(), candidates.begin() + 4, faster);
    state.SetLabel("best of the sweep: " + best.name);
    next_condition();
    const double roofline = in_turn(21, ours, [&] { theirs(best); }).ratio;
    next_condition();
    const auto with_copy = in_turn(15, ours, copy);
    if (!(roofline < 1.2)) {
      state.SkipWithError("the sweep is slower than ours by a fifth: it is no roofline");
      return;
    }
    state.SetIterationTime(with_copy.first);
    state.counters["roofline"] = roofline;
    state.counters["of_memcpy"] = with_copy.ratio;
    state.counters["memcpy_ms"] = with_copy.second * 1e3;
    // The rows, once in and once out, and the conditions.
    const auto bytes = static_cast<double>(2 * one.bytes());
    state.counters["floor_ms"] =
        with_copy.second * 1e3 * (bytes + static_cast<double>(one.rows)) / bytes;
    state.counters["bytes_per_second"] = bytes / with_copy.first;
  }
}

BENCHMARK(published)
    ->Name("row_select/published")
    ->Iterations(1)
    ->Repetitions(5)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(large)
    ->Name("row_select/large")
    ->Iterations(1)
    ->Repetitions(3)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
