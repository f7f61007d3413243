// Lookups at a remote store under a stale window, over synchronous training.
//
//   pipeline/stale_window/w:2   a round trip of 4 +- 2 ms for each lookup, 2 ms of compute, W = 2
//   pipeline/stale_window/w:4   the same, W = 4; and w:1, w:8
//
// The store is simulated, and everything that takes time waits: a request and its answer travel for
// 2 +- 1 ms each (uniform, drawn by step, the same for both sides), 64 KiB of rows at 4 GB/s among it; so
// does an update, and compute is on a device. Synchronous training sends an update with the next request, so
// a step takes 4 + 2 = 6 ms.
//
// What to expect. With W = 2 lookup t + 2 reads when update t has arrived: 2 (answer) + 2 (compute) + 2
// (update) ms for every two steps, 3 ms a step or a speedup of 2, less what the jitter costs. With W = 4 that
// is 1.5 ms, less than compute takes: 2 ms a step, a speedup of 3. `predicted` is the recurrence of the
// definition with the draws of the run: 1.89 and 2.91. The answer, which the definition determines, is
// compared bit by bit with a simulation before anything is timed.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <deeprec/core/random.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/schedule/stale_loop.hpp>
#include <deeprec/schedule/stale_window.hpp>

#include "support/add.hpp"
#include "support/figures.hpp"
#include "support/waiting.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bench;
using clock_type = std::chrono::steady_clock;
using milliseconds = std::chrono::duration<double, std::milli>;

constexpr index_t steps = 150;
constexpr double one_way_ms = 2, jitter_ms = 1, compute_ms = 2;
constexpr double bytes_of_rows = 65536, bytes_per_ms = 4e6;
constexpr index_t elements = 64;

clock_type::time_point after(clock_type::time_point begin, double ms) {
  return begin + std::chrono::duration_cast<clock_type::duration>(milliseconds(ms));
}
void wait_ms(double ms) { wait_until(after(clock_type::now(), ms)); }

/// How long the request, the answer and the update of a step travel.
struct travel {
  double request, answer, update;
};
travel travel_of(index_t step) {
  const counter_rng rng(77);
  const auto drawn = [&](std::uint64_t which) {
    return one_way_ms + jitter_ms * (2 * rng.uniform(which, static_cast<std::uint64_t>(step)) - 1);
  };
  static_assert(bytes_of_rows / bytes_per_ms < one_way_ms - jitter_ms);  // the drawn time contains the rows'
  return {drawn(0), drawn(1), drawn(2)};
}

using rows_type = std::array<float, elements>;
rows_type first_rows() {
  rows_type rows{};
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i) * 0.125F;
  return rows;
}
void make_gradient(index_t step, rows_type& rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i] = rows[i] * 0.5F - static_cast<float>((static_cast<std::size_t>(step) + i) % 7);
  }
}
void apply_to(rows_type& store, const rows_type& gradient) {
  for (std::size_t i = 0; i < store.size(); ++i) store[i] -= 0.1F * gradient[i];
}

rows_type by_definition(index_t window) {
  std::vector<rows_type> versions = {first_rows()};
  for (index_t t = 0; t < steps; ++t) {
    rows_type rows = versions[static_cast<std::size_t>(std::max<index_t>(0, t - window + 1))];
    make_gradient(t, rows);
    versions.push_back(versions.back());
    apply_to(versions.back(), rows);
  }
  return versions.back();
}

rows_type synchronous() {
  rows_type store = first_rows();
  for (index_t t = 0; t < steps; ++t) {
    const travel times = travel_of(t);
    wait_ms(times.request + times.answer);
    rows_type rows = store;
    wait_ms(compute_ms);
    make_gradient(t, rows);
    apply_to(store, rows);
  }
  return store;
}

/// A loop with its threads and buffers, which are kept from run to run.
class windowed {
 public:
  windowed(index_t window, bool updates_travel)
      : updates_travel_(updates_travel),
        window_(window),
        loop_(window_),
        slots_(static_cast<std::size_t>(loop_.slots())),
        pool_(thread_pool_options{.threads = 1}) {}

  rows_type run() {
    store_ = first_rows();
    loop_
        .run(
            pool_, [](stale_step step) { return step.number < steps; },
            [this](stale_step step) -> status {
              const travel times = travel_of(step.number);
              wait_ms(times.request);
              {
                const auto reading = window_.read(step.number);
                if (!reading) return reading.outcome();
                of(step).rows = store_;
              }
              wait_ms(times.answer);
              return {};
            },
            [this](stale_step step) {
              wait_ms(compute_ms);
              make_gradient(step.number, of(step).rows);
              of(step).sent = clock_type::now();
            },
            [this](stale_step step) -> status {
              if (updates_travel_) {
                wait_until(after(of(step).sent, travel_of(step.number).update));
              }
              const auto writing = window_.apply(step.number);
              if (!writing) return writing.outcome();
              apply_to(store_, of(step).rows);
              return {};
            })
        .or_throw();
    return store_;
  }

 private:
  struct slot {
    rows_type rows;
    clock_type::time_point sent;
  };
  slot& of(stale_step step) { return slots_[static_cast<std::size_t>(step.slot)]; }

  bool updates_travel_;
  stale_window<> window_;
  stale_loop<stale_window<>> loop_;
  std::vector<slot> slots_;
  rows_type store_{};
  thread_pool pool_;
};

/// The speedup that the definition allows with these draws: the recurrence of reads, computes and updates.
double predicted(index_t window, bool updates_travel) {
  const index_t slots = window + 1;
  std::vector<double> computed(steps), applied(steps);
  double synchronous_ms = 0;
  const auto at = [](const std::vector<double>& of, index_t t) {
    return t < 0 ? 0.0 : of[static_cast<std::size_t>(t)];
  };
  for (index_t t = 0; t < steps; ++t) {
    const travel times = travel_of(t);
    synchronous_ms += times.request + times.answer + compute_ms;
    const double read = std::max(at(applied, t - slots) + times.request, at(applied, t - window));
    const double here = std::max(read + times.answer, at(computed, t - 1));
    computed[static_cast<std::size_t>(t)] = here + compute_ms;
    const index_t u = t - window + 1;  // the update that this reading lets through
    for (index_t ended = u < 0 ? steps : u; ended <= (t + 1 == steps ? t : u) && ended < steps; ++ended) {
      const double arrives = at(computed, ended) + (updates_travel ? travel_of(ended).update : 0);
      applied[static_cast<std::size_t>(ended)] = std::max({arrives, read, at(applied, ended - 1)});
    }
  }
  return synchronous_ms / applied.back();
}

void remote_lookups(benchmark::State& state, index_t window) {
  windowed ours(window, true), at_once(window, false);
  if (ours.run() != by_definition(window) || at_once.run() != by_definition(window) ||
      synchronous() != by_definition(1)) {
    state.SkipWithError("wrong answer: the rows are not those of the definition");
    return;
  }
  figures f("pipeline/stale_window/w:" + std::to_string(window));
  f.sample([&] {
    const auto [mine, plain] = f.pair("speedup", "", [&] { ours.run(); }, [&] { synchronous(); });
    f.note("step_ms", mine * 1e3 / static_cast<double>(steps));
    f.note("synchronous_step_ms", plain * 1e3 / static_cast<double>(steps));
    if (f.counts()) f.note("speedup_updates_at_once", plain / seconds_of([&] { at_once.run(); }));
  });
  f.note("predicted", predicted(window, true));
  f.note("predicted_updates_at_once", predicted(window, false));
  f.say("simulated store: request, answer and update travel 2 +- 1 ms each, 64 KiB at 4 GB/s, compute 2 ms");
  for (auto _ : state) {
  }
  f.report(state);
}

const bool registered = [] {
  for (const int window : {1, 2, 4, 8}) {
    add("pipeline/stale_window/w:" + std::to_string(window),
        [window](benchmark::State& state, const std::string&) { remote_lookups(state, window); });
  }
  return true;
}();

}  // namespace
