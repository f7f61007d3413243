// The staging queues against the queues that people reach for, in one run, pinned: every round runs each once,
// 33 rounds, medians. `of_best` is our rate over that of the best peer (its median over both builds and all
// its ways to wait), pair by pair.
//
//   queue/spsc/8B/deep, 64B/deep    one producer, one consumer, capacity 1024
//   queue/spsc/cap2                 the same with room for two items; peers that hold more are no peers here
//   queue/spsc/rtt                  there and back through two queues
//   queue/spsc/geomean              of the four
//   queue/mpmc/1p1c, 2p2c, 4p4c     capacity 1024, on two CPUs
//   queue/rtt_parking               round trip with the default strategy, which can sleep
//   queue/bulk32                    32 items at once over one at a time
//   queue/vs_mutex                  staging_queue over DeepRec's buffer, capacity 2
//   queue/idle                      CPU time of a thread that is blocked
#include <benchmark/benchmark.h>

#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include <deeprec/staging/mpmc_ring.hpp>
#include <deeprec/staging/spsc_ring.hpp>
#include <deeprec/staging/staging_queue.hpp>

#include "queue/baseline.hpp"
#include "support/paired.hpp"

namespace {

using namespace deeprec;
using namespace queue_bench;
using deeprec_bench::median;
constexpr int rounds = 33;

template <class Ring>
struct with_own_wait {
  explicit with_own_wait(std::size_t capacity) : q(capacity) {}
  template <class T>
  void push(const T& v) {
    static_cast<void>(q.push(v));
  }
  template <class T>
  void pop(T& v) {
    static_cast<void>(q.pop(v));
  }
  Ring q;
};
struct staging {
  explicit staging(std::size_t capacity) : q(capacity) {}
  void push(std::uint64_t v) { static_cast<void>(q.put(v)); }
  void pop(std::uint64_t& v) { v = *q.take(); }
  staging_queue<std::uint64_t> q;
};
// 32 at once, for the harness's loop: it sees one item at a time.
struct in_bulk {
  static constexpr std::size_t many = 32;
  explicit in_bulk(std::size_t capacity) : q(capacity) {}
  void push(std::uint64_t v) {
    out[filled++] = v;
    if (filled == many) flush();
  }
  void flush() {
    std::size_t done = 0;
    while (done < many) done += q.try_push_n(out + done, many - done);
    filled = 0;
  }
  void pop(std::uint64_t& v) {
    if (read == there) {
      read = 0;
      do there = q.try_pop_n(in, many);
      while (there == 0);
    }
    v = in[read++];
  }
  spsc_ring<std::uint64_t, spin_wait> q;
  alignas(64) std::uint64_t out[many];
  std::size_t filled = 0;
  alignas(64) std::uint64_t in[many];
  std::size_t there = 0;
  std::size_t read = 0;
};

using narrow = with_own_wait<spsc_ring<std::uint64_t, spin_wait>>;
using broad = with_own_wait<spsc_ring<wide, spin_wait>>;
using parking = with_own_wait<spsc_ring<std::uint64_t>>;
using shared = with_own_wait<mpmc_ring<std::uint64_t>>;

const std::vector<contender>& peers() {
  static const std::vector<contender> all = [] {
    std::vector<contender> list;
#if defined(HAVE_BOOST)
    o2::add_boost(list), native::add_boost(list);
#endif
#if defined(HAVE_MOODYCAMEL)
    o2::add_moodycamel(list), native::add_moodycamel(list);
#endif
#if defined(HAVE_TBB)
    o2::add_tbb(list), native::add_tbb(list);
#endif
#if defined(HAVE_ATOMIC_QUEUE)
    o2::add_atomic_queue(list), native::add_atomic_queue(list);
#endif
#if defined(HAVE_RIGTORP)
    o2::add_rigtorp(list), native::add_rigtorp(list);
#endif
    return list;
  }();
  return all;
}

struct cell {
  double rate = 0;     // ours, items per second
  double of_best = 0;  // over the best peer
  double best = 0;
  std::string best_name;
  bool wrong = false;
};

// Every contender once per round. The other order every second time, so that no one always follows the same.
cell compare(kind what, run ours, const spec& s, bool exactly_two = false) {
  std::vector<const contender*> others;
  for (const contender& c : peers()) {
    const bool fits = c.what == what || (exactly_two && c.what == kind::spsc_two);
    if (fits && s.producers <= c.sides && (!exactly_two || (c.holds != nullptr && c.holds() == 2))) {
      others.push_back(&c);
    }
  }
  cell answer;
  std::vector<double> mine;
  std::map<const contender*, std::vector<double>> theirs;
  for (int r = -1; r < rounds; ++r) {
    const auto run_ours = [&] {
      const double seconds = ours(s);
      answer.wrong |= seconds < 0;
      if (r >= 0) mine.push_back(static_cast<double>(s.items) / seconds);
    };
    if (r % 2 == 0) run_ours();
    for (const contender* c : others) {
      spec smaller = s;
      if (c->items != 0) smaller.items = std::min(s.items, c->items);
      const double seconds = c->seconds(smaller);
      answer.wrong |= seconds < 0;
      if (r >= 0) theirs[c].push_back(static_cast<double>(smaller.items) / seconds);
    }
    if (r % 2 != 0) run_ours();
  }
  answer.rate = median(mine);
  const bool verbose = std::getenv("DEEPREC_BENCH_VERBOSE") != nullptr;
  if (verbose) std::fprintf(stderr, "  %-28s %10.2f M/s %8.1f ns\n", "ours", answer.rate / 1e6, 1e9 / answer.rate);
  for (const auto& [c, rates] : theirs) {
    const double rate = median(rates);
    if (verbose) std::fprintf(stderr, "  %-28s %10.2f M/s %8.1f ns\n", c->name, rate / 1e6, 1e9 / rate);
    if (rate <= answer.best) continue;
    answer.best = rate;
    answer.best_name = c->name;
    std::vector<double> ratios;
    for (std::size_t i = 0; i < rates.size(); ++i) ratios.push_back(mine[i] / rates[i]);
    answer.of_best = median(ratios);
  }
  return answer;
}

bool report(benchmark::State& state, const cell& c) {
  if (c.wrong) {
    state.SkipWithError("wrong answer: an item was lost or out of order");
    return false;
  }
  if (c.best == 0) {
    state.SkipWithError("no peer here");
    return false;
  }
  state.counters["of_best"] = c.of_best;
  state.counters["speedup"] = c.of_best;
  state.counters["items_per_second"] = c.rate;
  state.counters["best_per_second"] = c.best;
  state.SetLabel("best peer: " + c.best_name);
  state.SetIterationTime(1e6 / c.rate);
  return true;
}

cell spsc_cell(int which) {
  switch (which) {
    case 0: return compare(kind::spsc_8, spsc<narrow, std::uint64_t, wait::own>, {.items = 400'000});
    case 1: return compare(kind::spsc_64, spsc<broad, wide, wait::own>, {.items = 200'000});
    case 2:
      return compare(kind::spsc_8, spsc<narrow, std::uint64_t, wait::own>, {.capacity = 2, .items = 50'000}, true);
    default:
      return compare(kind::round_trip, round_trip<narrow, std::uint64_t, wait::own>,
                     {.capacity = 2, .items = 20'000});
  }
}

std::map<int, cell>& measured() {
  static std::map<int, cell> cells;
  return cells;
}
void spsc_geomean(benchmark::State& state) {
  for (auto _ : state) {
    double product = 1;
    for (int which = 0; which < 4; ++which) {
      if (measured().find(which) == measured().end()) measured()[which] = spsc_cell(which);
      const cell& c = measured()[which];
      if (c.wrong) return state.SkipWithError("wrong answer: an item was lost or out of order");
      if (c.best == 0) return state.SkipWithError("no peer here");
      product *= c.of_best;
    }
    state.counters["of_best"] = std::pow(product, 0.25);
    state.counters["speedup"] = std::pow(product, 0.25);
    state.SetIterationTime(1e-3);
  }
}

void mpmc_bench(benchmark::State& state, int sides) {
  for (auto _ : state) {
    const cell c = compare(kind::mpmc, mpmc<shared, std::uint64_t, wait::own>,
                           {.producers = sides, .consumers = sides, .items = 200'000});
    if (!report(state, c)) return;
  }
}

// Ours alone, one run after the other.
double median_seconds(run what, const spec& s, bool& wrong) {
  std::vector<double> all;
  for (int r = -1; r < rounds; ++r) {
    const double seconds = what(s);
    wrong |= seconds < 0;
    if (r >= 0) all.push_back(seconds / static_cast<double>(s.items));
  }
  return median(all);
}

void rtt_parking(benchmark::State& state) {
  for (auto _ : state) {
    bool wrong = false;
    const spec s{.capacity = 2, .items = 100'000};
    const double ring = median_seconds(round_trip<parking, std::uint64_t, wait::own>, s, wrong);
    const double queue = median_seconds(round_trip<staging, std::uint64_t, wait::own>, s, wrong);
    if (wrong) return state.SkipWithError("wrong answer: an item was lost or out of order");
    state.counters["round_trip_ns"] = ring * 1e9;
    state.counters["staging_queue_ns"] = queue * 1e9;
    state.SetIterationTime(ring);
  }
}

void bulk32(benchmark::State& state) {
  for (auto _ : state) {
    bool wrong = false;
    const spec s{.items = 3'200'000};
    std::vector<double> ratios;
    double seconds = 0;
    for (int r = -1; r < rounds; ++r) {
      const double single = spsc<narrow, std::uint64_t, wait::own>(s);
      const double bulk = spsc<in_bulk, std::uint64_t, wait::own>(s);
      wrong |= single < 0 || bulk < 0;
      if (r >= 0) ratios.push_back(single / bulk);
      seconds = bulk;
    }
    if (wrong) return state.SkipWithError("wrong answer: an item was lost or out of order");
    state.counters["speedup"] = median(ratios);
    state.SetIterationTime(seconds);
  }
}

void vs_mutex(benchmark::State& state) {
  for (auto _ : state) {
    double worst = 1e9;
    double ours = 0;
    for (const run theirs : {&o2::staged_buffer_seconds, &native::staged_buffer_seconds}) {
      std::vector<double> ratios;
      for (int r = -1; r < rounds; ++r) {
        const double other = theirs({.capacity = 2, .items = 2'000}) / 2'000;
        ours = spsc<staging, std::uint64_t, wait::own>({.capacity = 2, .items = 100'000}) / 100'000;
        if (other < 0 || ours < 0) return state.SkipWithError("wrong answer: an item was lost or out of order");
        if (r >= 0) ratios.push_back(other / ours);
      }
      worst = std::min(worst, median(ratios));
    }
    state.counters["speedup"] = worst;
    state.SetIterationTime(ours);
  }
}

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

void idle(benchmark::State& state) {
  using namespace std::chrono_literals;
  for (auto _ : state) {
    staging_queue<int> empty(1), full(1);
    static_cast<void>(full.put(1));
    std::vector<double> shares;
    double wall = 0;
    for (int r = 0; r < rounds; ++r) {
      const bool taking = r % 2 == 0;
      const double before = cpu_seconds();
      const auto begin = std::chrono::steady_clock::now();
      const queue_result how = taking ? empty.take(within(10ms)).result() : full.put(2, within(10ms));
      wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      if (how != queue_result::timed_out) return state.SkipWithError("wrong answer: no time-out");
      shares.push_back((cpu_seconds() - before) / wall);
    }
    state.counters["cpu_share"] = median(shares);
    state.SetIterationTime(wall);
  }
}

const char* const spsc_names[] = {"queue/spsc/8B/deep", "queue/spsc/64B/deep", "queue/spsc/cap2", "queue/spsc/rtt"};
const bool registered = [] {
  const auto set = [](benchmark::internal::Benchmark* b) {
    b->Iterations(1)->UseManualTime()->Unit(benchmark::kMicrosecond);
  };
  for (int which = 0; which < 4; ++which) {
    set(benchmark::RegisterBenchmark(spsc_names[which], [which](benchmark::State& s) {
      for (auto _ : s) {
        measured()[which] = spsc_cell(which);
        if (!report(s, measured()[which])) return;
      }
    }));
  }
  set(benchmark::RegisterBenchmark("queue/spsc/geomean", spsc_geomean));
  for (const int sides : {1, 2, 4}) {
    const std::string n = std::to_string(sides);
    set(benchmark::RegisterBenchmark(("queue/mpmc/" + n + "p" + n + "c").c_str(),
                                     [sides](benchmark::State& s) { mpmc_bench(s, sides); }));
  }
  set(benchmark::RegisterBenchmark("queue/rtt_parking", rtt_parking));
  set(benchmark::RegisterBenchmark("queue/bulk32", bulk32));
  set(benchmark::RegisterBenchmark("queue/vs_mutex", vs_mutex));
  set(benchmark::RegisterBenchmark("queue/idle", idle));
  return true;
}();

}  // namespace
