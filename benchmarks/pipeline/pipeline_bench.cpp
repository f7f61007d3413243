// Pipelines of two threads against their ideal and against the pipelines that people reach for, in one run.
//
//   pipeline/1us            two stages of 1 us, capacity 1
//   pipeline/20_100us       stages of 20 and 100 us, capacity 2
//   pipeline/empty/two      two empty stages on two threads
//   pipeline/empty/fused    three empty stages in one thread
//   pipeline/alloc          operator new, counted, in a run of N items and in one of 2 N
//   pipeline/tuned          uneven stages: the tuned depth against the best fixed one, under one byte budget
//
// Floors, before anything was optimised. 1us: 1 us and what a put and a take cost where the line of a slot is
// in the other core's cache, 2 x 20 ns, since the chain hides most of it: predicted 1.04 us. 20_100us: the
// slow side never waits, so 1.00 and the poll of a slot: predicted 1.002. empty/two: one line moves for each
// item, or for eight of them, 5 to 20 ns: predicted 15 ns. empty/fused: three calls that are inlined, a
// check for the end and a check for a stop: predicted 3 ns. The ideal is timed beside them: both chains at
// once, on two threads that share nothing.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <map>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/pipeline/pipeline.hpp>

#include "pipeline/baseline.hpp"
#include "support/add.hpp"
#include "support/figures.hpp"

namespace {
std::atomic<std::uint64_t> allocations{0};
}

// Not inlined: where the compiler sees both, it takes free() for a mistake.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* const p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  const auto a = static_cast<std::size_t>(alignment);
  if (void* const p = std::aligned_alloc(a, (bytes + a - 1) / a * a)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }

namespace {

using namespace deeprec;
using namespace pipeline_bench;
using deeprec_bench::add;
using deeprec_bench::figures;
using deeprec_bench::median;
using seconds = std::chrono::duration<double>;

constexpr const char* wrong_sum = "wrong answer: an item was lost or out of order";

double now() { return seconds(std::chrono::steady_clock::now().time_since_epoch()).count(); }

thread_pool& pool() {
  static thread_pool one(1);
  return one;
}

std::uint64_t expected(const spec& s) {
  std::uint64_t sum = 0;
  for (std::uint64_t k = 0; k < s.items; ++k) sum = fold(sum, chain(chain(k, s.first_steps), s.second_steps));
  return sum;
}

/// Steps of the chain that take a microsecond, on this core now.
double steps_per_us() {
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 20; ++i) {
    const double begin = now();
    benchmark::DoNotOptimize(chain(1, 100'000));
    best = std::min(best, now() - begin);
  }
  return 100'000 / (best * 1e6);
}

/// Both chains at once, each in a thread, without a pipeline: the time of the slower.
double ideal(const spec& s) {
  const auto side = [&](std::uint64_t steps) {
    std::uint64_t sum = 0;
    for (std::uint64_t k = 0; k < s.items; ++k) sum = fold(sum, chain(k, steps));
    benchmark::DoNotOptimize(sum);
  };
  std::atomic<bool> go{false};
  std::thread other([&] {
    while (!go.load()) {
    }
    side(s.first_steps);
  });
  go.store(true);
  const double begin = now();
  side(s.second_steps);
  other.join();
  return now() - begin;
}

double ours(const spec& s, std::size_t capacity, std::uint64_t& sum) {
  std::uint64_t k = 0;
  sum = 0;
  auto line =
      source("first",
             [&]() -> std::optional<std::uint64_t> {
               if (k == s.items) return std::nullopt;
               return chain(k++, s.first_steps);
             }) |
      sink("second", [&](std::uint64_t item) { sum = fold(sum, chain(item, s.second_steps)); }).own_thread();
  pipeline p(pool(), std::move(line), {.capacity = capacity});
  const double begin = now();
  p.run().or_throw();
  const double took = now() - begin;
  if (std::getenv("DEEPREC_BENCH_VERBOSE") != nullptr) std::fputs(p.statistics().text().c_str(), stderr);
  return took;
}

double ours_fused(const spec& s, std::uint64_t& sum) {
  std::uint64_t k = 0;
  sum = 0;
  auto line = source("first",
                     [&]() -> std::optional<std::uint64_t> {
                       if (k == s.items) return std::nullopt;
                       return chain(k++, s.first_steps);
                     }) |
              stage("middle", [](std::uint64_t item) { return item ^ 1; }) |
              sink("second", [&](std::uint64_t item) { sum = fold(sum, chain(item, s.second_steps)); });
  pipeline p(pool(), std::move(line));
  const double begin = now();
  p.run().or_throw();
  return now() - begin;
}

std::vector<contender> peers() {
  std::vector<contender> all;
#if defined(HAVE_TBB)
  o2::add_tbb(all), native::add_tbb(all);
#endif
#if defined(HAVE_TASKFLOW)
  o2::add_taskflow(all), native::add_taskflow(all);
#endif
  return all;
}

/// The best peer over its builds and its numbers of tokens: by its median over the rounds so far.
class best_peer {
 public:
  void round(const spec& s, std::uint64_t sum, bool three, bool counted,
             const std::vector<std::size_t>& tokens) {
    std::size_t which = 0;
    for (const contender& c : peers()) {
      for (const std::size_t t : tokens) {
        spec one = s;
        one.tokens = t;
        std::uint64_t got = 0;
        const double took = (three ? c.three : c.two)(one, got);
        wrong_ |= got != sum;
        if (!counted) continue;
        auto& series = times_[which++];
        series.first = std::string(c.name) + ", " + std::to_string(t) + " tokens";
        series.second.push_back(took);
      }
    }
  }
  [[nodiscard]] bool wrong() const { return wrong_; }
  /// Of ours over theirs, round by round.
  [[nodiscard]] std::vector<double> ratios(const std::vector<double>& mine) {
    double least = std::numeric_limits<double>::infinity();
    const std::vector<double>* best = nullptr;
    for (const auto& [which, series] : times_) {
      if (const double m = median(series.second); m < least)
        least = m, best = &series.second, name_ = series.first;
    }
    std::vector<double> all;
    for (std::size_t i = 0; i < mine.size(); ++i) all.push_back(mine[i] / (*best)[i]);
    return all;
  }
  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  std::map<std::size_t, std::pair<std::string, std::vector<double>>> times_;
  std::string name_;
  bool wrong_ = false;
};

void needs_two_cpus(figures& f) {
  if (usable_cpus().size() < 2) f.unfit("one CPU");
}

/// Two stages of so many microseconds, against their ideal and the peers.
void two_stages(benchmark::State& state, const std::string& name, double first_us, double second_us,
                std::size_t capacity, std::uint64_t items) {
  for (auto _ : state) {
    figures f(name);
    needs_two_cpus(f);
    best_peer theirs;
    std::vector<double> mine;
    bool wrong = false;
    f.sample([&] {
      const double us = steps_per_us();
      const spec s{items, static_cast<std::uint64_t>(first_us * us),
                   static_cast<std::uint64_t>(second_us * us)};
      const std::uint64_t sum = expected(s);
      std::uint64_t got = 0;
      double took = 0, floor = 0;
      for (const int i : {f.swapped() ? 1 : 0, f.swapped() ? 0 : 1}) {
        if (i == 0) {
          took = ours(s, capacity, got);
        } else {
          floor = ideal(s);
        }
      }
      wrong |= got != sum;
      theirs.round(s, sum, false, f.counts(), {capacity + 1, capacity + 2, capacity + 4});
      if (!f.counts()) return;
      mine.push_back(took);
      f.add("of_ideal", took / floor);
      f.note("us_per_item", took * 1e6 / static_cast<double>(items));
      if (!peers().empty()) f.set("of_peer", theirs.ratios(mine));
    });
    if (wrong || theirs.wrong()) return state.SkipWithError(wrong_sum);
    f.say("best peer: " + theirs.name());
    f.report(state);
  }
}

void empty(benchmark::State& state, const std::string& name, bool fused) {
  for (auto _ : state) {
    if (peers().empty()) return state.SkipWithError("no peer here");
    figures f(name);
    if (!fused) needs_two_cpus(f);
    best_peer theirs;
    std::vector<double> mine;
    bool wrong = false;
    const spec s{.items = 200'000};
    std::uint64_t sum = 0;
    for (std::uint64_t k = 0; k < s.items; ++k) sum = fold(sum, fused ? k ^ 1 : k);
    f.sample([&] {
      std::uint64_t got = 0;
      const double took = fused ? ours_fused(s, got) : ours(s, 256, got);
      wrong |= got != sum;
      theirs.round(s, sum, fused, f.counts(), {2, 4, 16, 256});
      if (!f.counts()) return;
      mine.push_back(took);
      f.set("of_peer", theirs.ratios(mine));
      f.note("ns_per_item", took * 1e9 / static_cast<double>(s.items));
    });
    if (wrong || theirs.wrong()) return state.SkipWithError(wrong_sum);
    f.say("best peer: " + theirs.name());
    f.report(state);
  }
}

void alloc(benchmark::State& state, const std::string& name) {
  for (auto _ : state) {
    figures f(name);
    const auto count = [](std::uint64_t items) {
      std::uint64_t k = 0, sum = 0;
      auto line = source("source",
                         [&]() -> std::optional<std::uint64_t> {
                           if (k == items) return std::nullopt;
                           return k++;
                         }) |
                  stage("ordered", [](std::uint64_t item) { return item + 1; }).parallel(2) |
                  stage("unordered", [](std::uint64_t item) { return item + 1; }).parallel(2).unordered() |
                  stage("own", [](std::uint64_t item) { return item + 1; }).own_thread() |
                  sink("sink", [&](std::uint64_t item) { sum += item; }).own_thread();
      pipeline p(pool(), std::move(line), {.capacity = 2, .max_capacity = 8, .byte_budget = 64});
      p.run().or_throw();  // threads of the pool, and what a library allocates once
      k = 0;
      const std::uint64_t before = allocations.load();
      p.run().or_throw();
      return static_cast<double>(allocations.load() - before);
    };
    f.sample([&] {
      const double few = count(1000);
      f.add("per_thousand_items", count(2000) - few);
      f.note("per_run", few);
    });
    f.report(state);
  }
}

/// Items of 1000 bytes; the source makes fifteen quickly and takes long for the next.
void tuned(benchmark::State& state, const std::string& name) {
  struct item {
    std::uint64_t value;
    std::byte rest[992];
  };
  constexpr std::size_t budget = 16 * sizeof(item);
  for (auto _ : state) {
    figures f(name);
    needs_two_cpus(f);
    std::map<std::size_t, std::vector<double>> fixed;
    std::vector<double> mine;
    std::uint64_t most_bytes = 0;
    f.sample([&] {
      const double us = steps_per_us();
      std::size_t deepest = 0;
      const auto seconds_of = [&](std::size_t capacity, std::size_t most) {
        std::uint64_t k = 0, sum = 0;
        auto line = source("uneven",
                           [&]() -> std::optional<item> {
                             if (k == 4000) return std::nullopt;
                             const double takes = k % 16 == 15 ? 170 : 10;
                             return item{chain(k++, static_cast<std::uint64_t>(takes * us)), {}};
                           }) |
                    sink("even", [&](const item& i) {
                      sum = fold(sum, chain(i.value, static_cast<std::uint64_t>(21 * us)));
                    }).own_thread();
        pipeline p(pool(), std::move(line),
                   {.capacity = capacity, .max_capacity = most, .byte_budget = budget});
        const double begin = now();
        p.run().or_throw();
        const double took = now() - begin;
        benchmark::DoNotOptimize(sum);
        for (const depth_decision& d : p.depth_decisions()) deepest = std::max(deepest, d.to);
        return took;
      };
      for (const std::size_t capacity : {1u, 2u, 4u, 8u, 16u, 32u}) {
        const double took = seconds_of(capacity, 0);
        if (f.counts()) fixed[capacity].push_back(took);
      }
      const double took = seconds_of(1, 32);
      if (!f.counts()) return;
      mine.push_back(took);
      most_bytes = std::max<std::uint64_t>(most_bytes, deepest * sizeof(item));
      const auto best = std::min_element(fixed.begin(), fixed.end(), [](const auto& a, const auto& b) {
        return median(a.second) < median(b.second);
      });
      std::vector<double> ratios;
      for (std::size_t i = 0; i < mine.size(); ++i) ratios.push_back(mine[i] / best->second[i]);
      f.set("of_best_fixed", ratios);
      f.note("best_fixed", static_cast<double>(best->first));
      f.note("of_depth_1", took / fixed[1].back());
      f.note("deepest", static_cast<double>(deepest));
    });
    if (most_bytes > budget) return state.SkipWithError("wrong answer: the depth exceeds the byte budget");
    f.report(state);
  }
}

const bool registered = [] {
  using state = benchmark::State;
  using string = std::string;
  add("pipeline/1us", [](state& s, const string& name) { two_stages(s, name, 1, 1, 1, 50'000); });
  add("pipeline/20_100us", [](state& s, const string& name) { two_stages(s, name, 20, 100, 2, 1'000); });
  add("pipeline/empty/two", [](state& s, const string& name) { empty(s, name, false); });
  add("pipeline/empty/fused", [](state& s, const string& name) { empty(s, name, true); });
  add("pipeline/alloc", alloc);
  add("pipeline/tuned", tuned);
  return true;
}();

}  // namespace
