// The staging queues against the queues that people reach for, in one run, pinned: every round runs each
// once. `of_best` is our rate over that of the best peer (its median over both builds and all its ways to
// wait), round by round; its interval is that of the peer which is the best when sampling ends.
//
//   queue/spsc/8B/deep, 64B/deep    one producer, one consumer, capacity 1024
//   queue/spsc/cap2                 the same with room for two items; peers that hold more are no peers here
//   queue/spsc/rtt                  there and back through two queues
//   queue/spsc/geomean              of the four, round by round
//   queue/mpmc/1p1c, 2p2c, 4p4c     capacity 1024, on two CPUs
//   queue/rtt_parking               round trip with the default strategy, which can sleep
//   queue/bulk32                    32 items at once over one at a time
//   queue/vs_mutex                  staging_queue over DeepRec's buffer, capacity 2
//   queue/idle                      CPU time of a thread that is blocked
#include <benchmark/benchmark.h>

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/queue/mpmc_ring.hpp>
#include <deeprec/queue/spsc_ring.hpp>
#include <deeprec/queue/staging_queue.hpp>

#include "queue/baseline.hpp"
#include "support/add.hpp"
#include "support/figures.hpp"

namespace {

using namespace deeprec;
using namespace queue_bench;
using deeprec_bench::add;
using deeprec_bench::figures;
using deeprec_bench::median;

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

/// Ours and the peers in one shape of use, round after round.
class cell {
 public:
  cell(kind what, run ours, const spec& s, bool exactly_two = false) : ours_(ours), spec_(s) {
    for (const contender& c : peers()) {
      const bool fits = c.what == what || (exactly_two && c.what == kind::spsc_two);
      if (fits && s.producers <= c.sides && (!exactly_two || (c.holds != nullptr && c.holds() == 2))) {
        others_.push_back(&c);
      }
    }
  }
  [[nodiscard]] bool has_peers() const { return !others_.empty(); }
  [[nodiscard]] bool wrong() const { return wrong_; }

  /// Every contender once. The other order every second time, so that no one always follows the same.
  void round(bool swapped, bool counted) {
    const auto run_ours = [&] {
      const double seconds = ours_(spec_);
      wrong_ |= seconds < 0;
      if (counted) mine_.push_back(static_cast<double>(spec_.items) / seconds);
    };
    if (!swapped) run_ours();
    for (const contender* c : others_) {
      spec smaller = spec_;
      if (c->items != 0) smaller.items = std::min(spec_.items, c->items);
      const double seconds = c->seconds(smaller);
      wrong_ |= seconds < 0;
      if (counted) theirs_[c].push_back(static_cast<double>(smaller.items) / seconds);
    }
    if (swapped) run_ours();
  }
  /// Our rate in the last round.
  [[nodiscard]] double rate() const { return mine_.back(); }
  [[nodiscard]] const contender* best() const {
    const contender* found = nullptr;
    double most = 0;
    for (const auto& [c, rates] : theirs_) {
      if (const double rate = median(rates); rate > most) most = rate, found = c;
    }
    return found;
  }
  [[nodiscard]] double best_rate() const { return median(theirs_.at(best())); }
  /// Our rate over the best peer's, round by round.
  [[nodiscard]] std::vector<double> of_best() const {
    const std::vector<double>& rates = theirs_.at(best());
    std::vector<double> ratios;
    for (std::size_t i = 0; i < rates.size(); ++i) ratios.push_back(mine_[i] / rates[i]);
    return ratios;
  }
  void list() const {
    if (std::getenv("DEEPREC_BENCH_VERBOSE") == nullptr) return;
    const auto line = [](const char* name, double rate) {
      std::fprintf(stderr, "  %-28s %10.2f M/s %8.1f ns\n", name, rate / 1e6, 1e9 / rate);
    };
    line("ours", median(mine_));
    for (const auto& [c, rates] : theirs_) line(c->name, median(rates));
  }

 private:
  run ours_;
  spec spec_;
  std::vector<const contender*> others_;
  std::vector<double> mine_;
  std::map<const contender*, std::vector<double>> theirs_;
  bool wrong_ = false;
};

constexpr const char* lost = "wrong answer: an item was lost or out of order";

void needs_two_cpus(figures& f) {
  if (usable_cpus().size() < 2) f.unfit("one CPU");
}

/// Samples the cells together; of_best is their geometric mean.
void compare(benchmark::State& state, const std::string& name, std::vector<cell> cells) {
  for (auto _ : state) {
    for (const cell& c : cells) {
      if (!c.has_peers()) return state.SkipWithError("no peer here");
    }
    figures f(name);
    needs_two_cpus(f);
    f.sample([&] {
      for (cell& c : cells) c.round(f.swapped(), f.counts());
      if (!f.counts()) return;
      // Which peer is the best may change: the whole series anew.
      std::vector<double> product(cells[0].of_best().size(), 1.0);
      for (const cell& c : cells) {
        const std::vector<double> ratios = c.of_best();
        for (std::size_t i = 0; i < product.size(); ++i) product[i] *= ratios[i];
      }
      for (double& p : product) p = std::pow(p, 1.0 / static_cast<double>(cells.size()));
      f.set("of_best", product);
      if (cells.size() == 1) {
        f.add("items_per_second", cells[0].rate());
        f.note("best_per_second", cells[0].best_rate());
      }
    });
    for (const cell& c : cells) {
      if (c.wrong()) return state.SkipWithError(lost);
      f.say(std::string("best peer: ") + c.best()->name);
      c.list();
    }
    f.report(state);
  }
}

cell spsc_cell(int which) {
  switch (which) {
    case 0:
      return {kind::spsc_8, spsc<narrow, std::uint64_t, wait::own>, {.items = 400'000}};
    case 1:
      return {kind::spsc_64, spsc<broad, wide, wait::own>, {.items = 200'000}};
    case 2:
      return {kind::spsc_8, spsc<narrow, std::uint64_t, wait::own>, {.capacity = 2, .items = 50'000}, true};
    default:
      return {
          kind::round_trip, round_trip<narrow, std::uint64_t, wait::own>, {.capacity = 2, .items = 20'000}};
  }
}

void mpmc_bench(benchmark::State& state, const std::string& name, int sides) {
  compare(state, name,
          {cell(kind::mpmc, mpmc<shared, std::uint64_t, wait::own>,
                {.producers = sides, .consumers = sides, .items = 200'000})});
}

void rtt_parking(benchmark::State& state, const std::string& name) {
  for (auto _ : state) {
    figures f(name);
    needs_two_cpus(f);
    bool wrong = false;
    const spec s{.capacity = 2, .items = 100'000};
    const auto ns_of = [&](run what) {
      const double seconds = what(s);
      wrong |= seconds < 0;
      return seconds / static_cast<double>(s.items) * 1e9;
    };
    f.sample([&] {
      f.add("round_trip_ns", ns_of(round_trip<parking, std::uint64_t, wait::own>));
      f.note("staging_queue_ns", ns_of(round_trip<staging, std::uint64_t, wait::own>));
    });
    if (wrong) return state.SkipWithError(lost);
    f.report(state);
  }
}

void bulk32(benchmark::State& state, const std::string& name) {
  for (auto _ : state) {
    figures f(name);
    needs_two_cpus(f);
    bool wrong = false;
    const spec s{.items = 3'200'000};
    f.sample([&] {
      double seconds[2];
      for (const int i : {f.swapped() ? 1 : 0, f.swapped() ? 0 : 1}) {
        seconds[i] =
            i == 0 ? spsc<narrow, std::uint64_t, wait::own>(s) : spsc<in_bulk, std::uint64_t, wait::own>(s);
        wrong |= seconds[i] < 0;
      }
      f.add("speedup", seconds[0] / seconds[1]);
    });
    if (wrong) return state.SkipWithError(lost);
    f.report(state);
  }
}

void vs_mutex(benchmark::State& state, const std::string& name) {
  for (auto _ : state) {
    figures f(name);
    needs_two_cpus(f);
    bool wrong = false;
    f.sample([&] {
      for (const run theirs : {&o2::staged_buffer_seconds, &native::staged_buffer_seconds}) {
        const double other = theirs({.capacity = 2, .items = 2'000}) / 2'000;
        const double ours =
            spsc<staging, std::uint64_t, wait::own>({.capacity = 2, .items = 100'000}) / 100'000;
        wrong |= other < 0 || ours < 0;
        f.add("speedup", other / ours, theirs == &o2::staged_buffer_seconds ? "o2" : "native");
      }
    });
    if (wrong) return state.SkipWithError(lost);
    f.report(state);
  }
}

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

void idle(benchmark::State& state, const std::string& name) {
  using namespace std::chrono_literals;
  for (auto _ : state) {
    figures f(name);
    staging_queue<int> empty(1), full(1);
    static_cast<void>(full.put(1));
    bool wrong = false;
    f.sample([&] {
      const double before = cpu_seconds();
      const auto begin = std::chrono::steady_clock::now();
      const queue_result how = f.swapped() ? empty.take(within(10ms)).result() : full.put(2, within(10ms));
      const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      wrong |= how != queue_result::timed_out;
      f.add("cpu_share", (cpu_seconds() - before) / wall);
    });
    if (wrong) return state.SkipWithError("wrong answer: no time-out");
    f.report(state);
  }
}

const bool registered = [] {
  using state = benchmark::State;
  using string = std::string;
  const char* const spsc_names[] = {"8B/deep", "64B/deep", "cap2", "rtt"};
  for (int which = 0; which < 4; ++which) {
    add(string("queue/spsc/").append(spsc_names[which]),
        [which](state& s, const string& name) { compare(s, name, {spsc_cell(which)}); });
  }
  add("queue/spsc/geomean", [](state& s, const string& name) {
    compare(s, name, {spsc_cell(0), spsc_cell(1), spsc_cell(2), spsc_cell(3)});
  });
  for (const int sides : {1, 2, 4}) {
    const string n = std::to_string(sides);
    add("queue/mpmc/" + n + "p" + n + "c",
        [sides](state& s, const string& name) { mpmc_bench(s, name, sides); });
  }
  add("queue/rtt_parking", rtt_parking);
  add("queue/bulk32", bulk32);
  add("queue/vs_mutex", vs_mutex);
  add("queue/idle", idle);
  return true;
}();

}  // namespace
