// The blocks of a step: planned_resource, malloc, huge pages and the pools of the standard library.
//
//   memory/step64MiB/malloc   a step that allocates 64 MiB, writes a byte to each page and frees it: the time
//                             of malloc over ours (speedup), of malloc on huge pages (speedup_huge)
//   memory/pair               a step of 48 requests of 1 KB to 1 MB with nested and overlapping lifetimes:
//                             nanoseconds of a request and its end (ns), of the peers (ns_malloc ...),
//                             and of other mallocs, where this machine has them (ns_jemalloc ...)
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <deeprec/memory/planned_resource.hpp>

#include "memory/peer_malloc.hpp"
#include "memory/step_baseline.hpp"
#include "support/add.hpp"
#include "support/figures.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bench;
using memory_bench::event;

void touch(void* block, std::size_t bytes) {
  auto* const at = static_cast<volatile char*>(block);
  for (std::size_t i = 0; i < bytes; i += 4096) at[i] = 1;
}

/// Called through its base, as verbs do.
void touch_on(std::pmr::memory_resource& memory, std::size_t bytes) {
  void* const block = memory.allocate(bytes, 64);
  touch(block, bytes);
  memory.deallocate(block, bytes, 64);
}

void step(benchmark::State& state, const std::string& name) {
  constexpr std::size_t bytes = std::size_t{64} << 20;
  constexpr int steps = 10;
  for (auto _ : state) {
    figures f(name);
    planned_resource memory;
    const auto ours = [&] {
      for (int s = 0; s < steps; ++s) {
        const planned_resource::step now = memory.begin();
        touch_on(memory, bytes);
      }
    };
    for (int s = 0; s < 2; ++s) ours();
    f.sample([&] {
      f.pair("speedup", "o2", ours, [] {
        for (int s = 0; s < steps; ++s) o2::touch_malloc(bytes);
      });
      f.pair("speedup", "native", ours, [] {
        for (int s = 0; s < steps; ++s) native::touch_malloc(bytes);
      });
      f.pair("speedup_huge", "o2", ours, [] {
        for (int s = 0; s < steps; ++s) o2::touch_huge(bytes);
      });
      const auto seconds = f.pair("speedup_huge", "native", ours, [] {
        for (int s = 0; s < steps; ++s) native::touch_huge(bytes);
      });
      f.note("us_per_step", seconds.first / steps * 1e6);
    });
    const planned_report report = memory.report();
    if (report.missed_steps > 0 || report.served_steps + 4 < report.steps)
      return state.SkipWithError("a step was not served");
    f.report(state);
  }
}

/// Requests and ends of a step.
std::vector<event> events_of_step() {
  constexpr std::uint32_t requests = 48;
  std::mt19937_64 random(7);
  std::vector<event> events;
  std::vector<std::uint32_t> live;
  std::vector<std::uint32_t> bytes;
  for (std::uint32_t b = 0; b < requests; ++b)
    bytes.push_back(static_cast<std::uint32_t>(1024 << random() % 10) +
                    static_cast<std::uint32_t>(random() % 1000));
  std::uint32_t next = 0;
  while (next < requests || !live.empty()) {
    if (next < requests && (live.size() < 2 || (live.size() < 8 && random() % 2 == 0))) {
      events.push_back({next, bytes[next]});
      live.push_back(next++);
    } else {
      const std::size_t at = random() % 2 == 0 ? live.size() - 1 : random() % live.size();
      events.push_back({live[at], 0});
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  return events;
}

/// The step of `pair`, many times.
struct pair_steps {
  static constexpr std::size_t steps = 2000;
  std::vector<event> events = events_of_step();
  std::size_t pairs = events.size() / 2;
  std::vector<std::uint32_t> bytes = std::vector<std::uint32_t>(pairs);

  pair_steps() {
    for (const event& e : events) {
      if (e.bytes > 0) bytes[e.block] = e.bytes;
    }
  }
  [[nodiscard]] double in_ns(double seconds) const {
    return seconds / static_cast<double>(steps * pairs) * 1e9;
  }
  [[nodiscard]] double ns_of(memory_bench::run_events run) const {
    std::vector<void*> blocks(pairs);
    return in_ns(seconds_of([&] { run(events.data(), events.size(), bytes.data(), steps, blocks.data()); }));
  }
};
constexpr std::string_view peer_task = "pair";

void pair(benchmark::State& state, const std::string& name) {
  const pair_steps work;
  const auto& [events, pairs, bytes] = work;
  constexpr std::size_t steps = pair_steps::steps;
  for (auto _ : state) {
    figures f(name);
    planned_resource memory;
    std::vector<void*> blocks(pairs);
    const auto ours = [&] {
      std::pmr::memory_resource* const to = &memory;
      for (std::size_t s = 0; s < steps; ++s) {
        const planned_resource::step now = memory.begin();
        for (const event& e : events) {
          if (e.bytes > 0) {
            blocks[e.block] = to->allocate(e.bytes, 16);
          } else {
            to->deallocate(blocks[e.block], bytes[e.block], 16);
          }
        }
      }
    };
    ours();
    f.sample([&] {
      f.add("ns", work.in_ns(seconds_of(ours)));
      f.note("ns_malloc", work.ns_of(&native::malloc_events));
      f.note("ns_pmr_pool", work.ns_of(&native::pool_events));
      f.note("ns_pmr_monotonic", work.ns_of(&native::monotonic_events));
      if (!f.counts() || f.rounds() % 7 != 0) return;
      for (const memory_bench::peer_malloc& peer : memory_bench::peer_mallocs) {
        const auto ns = memory_bench::figures_of_peer(peer, std::string(peer_task), 1);
        if (!ns.empty()) f.note(std::string("ns_") + peer.name, ns[0]);
      }
    });
    const planned_report report = memory.report();
    if (report.missed_steps > 0 || report.served_steps + 4 < report.steps)
      return state.SkipWithError("a step was not served");
    f.note("arena_over_live",
           static_cast<double>(report.planned_bytes) / static_cast<double>(report.live_bytes));
    f.report(state);
  }
}

const bool registered = [] {
  if (memory_bench::task_as_peer() == peer_task) {
    const pair_steps work;
    double best = 1e9;
    for (int k = 0; k < 5; ++k) best = std::min(best, work.ns_of(&native::malloc_events));
    memory_bench::end_as_peer({best});
  }
  add("memory/step64MiB", step);
  add("memory/pair", pair);
  return true;
}();

}  // namespace
