// What a call of a pool costs beside the work that it shares: two pieces, with serial work between the calls
// as in a step.
//
//   threads/dispatch/gap:0 ... gap:1000   of_piece: the time of a call with two pieces of 20 us over that of
//                                         one piece;
//                                         over_best: the best of the other pools over ours
//   threads/idle                          processor time of a pool's threads while it has nothing to do, from
//                                         1 ms after the last call, per second
//   threads/lines                         a line that two threads write in turn: the time of a round trip
//
// Each pool is measured by itself: others have gone to sleep, since a thread that polls takes a processor.
#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <deeprec/core/executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "support/add.hpp"
#include "support/figures.hpp"
#include "threads/baseline.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bench;
using clock_type = std::chrono::steady_clock;

double since(clock_type::time_point begin) {
  return std::chrono::duration<double, std::micro>(clock_type::now() - begin).count();
}

/// A chain of operations, which takes as long on each thread whatever the others do.
double chain(long n) {
  double x = 1;
  for (long i = 0; i < n; ++i) x = x * 1.0000001 + 1e-9;
  return x;
}
long chain_of_us(double us) {
  double best = std::numeric_limits<double>::max();
  for (int k = 0; k < 20; ++k) {
    const auto begin = clock_type::now();
    benchmark::DoNotOptimize(chain(100'000));
    best = std::min(best, since(begin));
  }
  return static_cast<long>(us * 100'000 / best);
}

/// The median time of a call, after `gap_us` of other work each.
template <class Call>
double call_us(double gap_us, const Call& call) {
  constexpr int first = 20, calls = 100;  // the first ones wake the threads
  std::vector<double> times;
  for (int k = 0; k < first + calls; ++k) {
    const auto gap = clock_type::now();
    while (since(gap) < gap_us) {
    }
    const auto begin = clock_type::now();
    call();
    if (k >= first) times.push_back(since(begin));
  }
  std::nth_element(times.begin(), times.begin() + calls / 2, times.end());
  return times[calls / 2];
}

void dispatch(benchmark::State& state, const std::string& name, double gap_us) {
  const long n = chain_of_us(20);
  const auto piece = [](void* length, long) { benchmark::DoNotOptimize(chain(*static_cast<long*>(length))); };
  long length = n;
  thread_pool ours(2);
  std::vector<dispatch_bench::named_pool> others = o2::make_pools();
  for (auto& other : native::make_pools()) others.push_back({other.name + "_native", std::move(other.pool)});
  const auto quiet = [] { std::this_thread::sleep_for(std::chrono::milliseconds(30)); };
  for (auto _ : state) {
    figures f(name);
    if (usable_cpus().size() < 2) f.unfit("one CPU");
    f.sample([&] {
      quiet();
      const double one = call_us(gap_us, [&] { piece(&length, 0); });
      double mine = 0;
      {
        const awake scope(ours);
        mine = call_us(gap_us, [&] {
          ours.parallel_for(2, 1, [&](index_t begin, index_t end, int) {
            for (index_t i = begin; i < end; ++i) piece(&length, 0);
          });
        });
      }
      f.add("of_piece", mine / one);
      f.note("us", mine);
      double best = std::numeric_limits<double>::max();
      for (dispatch_bench::named_pool& other : others) {
        quiet();
        const double theirs = call_us(gap_us, [&] { other.pool->run(piece, &length); });
        f.note("us_" + other.name, theirs);
        best = std::min(best, theirs);
      }
      f.add("over_best", best / mine);
    });
    f.report(state);
  }
}

/// Processor time of all threads but this one.
double processor_seconds() {
  timespec all{}, own{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &own);
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &all);
  return static_cast<double>(all.tv_sec - own.tv_sec) + 1e-9 * static_cast<double>(all.tv_nsec - own.tv_nsec);
}

void idle(benchmark::State& state, const std::string& name) {
  thread_pool pool(std::max(2, default_concurrency()));
  std::atomic<index_t> sum{0};
  for (auto _ : state) {
    figures f(name);
    f.sample([&] {
      {
        const awake scope(pool);
        for (int k = 0; k < 100; ++k)
          pool.parallel_for(64, 1, [&](index_t begin, index_t, int) { sum += begin; });
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const double before = processor_seconds();
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      f.add("seconds_per_second", (processor_seconds() - before) / 0.1);
    });
    f.report(state);
  }
}

void lines(benchmark::State& state, const std::string& name) {
  struct alignas(64) line {
    std::atomic<long> turn{0};
  } shared;
  for (auto _ : state) {
    figures f(name);
    if (usable_cpus().size() < 2) f.unfit("one CPU");
    f.sample([&] {
      constexpr long trips = 20'000;
      shared.turn = 0;
      std::thread other([&] {
        for (long k = 0; k < trips; ++k) {
          while (shared.turn.load(std::memory_order_acquire) != 2 * k + 1) {
          }
          shared.turn.store(2 * k + 2, std::memory_order_release);
        }
      });
      const auto begin = clock_type::now();
      for (long k = 0; k < trips; ++k) {
        shared.turn.store(2 * k + 1, std::memory_order_release);
        while (shared.turn.load(std::memory_order_acquire) != 2 * k + 2) {
        }
      }
      f.add("ns", 1000 * since(begin) / trips);
      other.join();
    });
    f.report(state);
  }
}

const bool registered = [] {
  for (const int gap : {0, 20, 100, 200, 1000}) {
    add("threads/dispatch/gap:" + std::to_string(gap),
        [gap](benchmark::State& state, const std::string& name) { dispatch(state, name, gap); });
  }
  add("threads/idle", idle);
  add("threads/lines", lines);
  return true;
}();

}  // namespace
