// One thread that finds beside one that inserts, each on a processor of its own.
//
//   growing/threads   20 million keys, batches of 4096: the pace of finds beside insertions of new keys over
//                     that alone (of_alone); and the same with the insertions in another index, which is what
//                     sharing caches and memory costs by itself (of_alone_elsewhere)
#include <benchmark/benchmark.h>

#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <deeprec/exec/thread_pool.hpp>

#include "growing/sides.hpp"
#include "support/add.hpp"
#include "support/figures.hpp"

namespace {

using namespace growing_bench;
using namespace deeprec_bench;

/// A thread that inserts new keys, from one on, until the end.
class inserter {
 public:
  inserter(ours& side, std::uint64_t from, int cpu)
      : thread_([this, &side, from, cpu] {
          detail::pin_this_thread(cpu);
          for (std::uint64_t i = from; !stop_.load(std::memory_order_relaxed); i += batch) {
            fill(side, i, i + batch);
            inserted_.store(i + batch - from, std::memory_order_release);
          }
        }) {
    while (inserted() == 0) ::sched_yield();
  }
  inserter(const inserter&) = delete;
  inserter& operator=(const inserter&) = delete;
  ~inserter() {
    stop_.store(true, std::memory_order_relaxed);
    thread_.join();
  }
  [[nodiscard]] std::uint64_t inserted() const { return inserted_.load(std::memory_order_acquire); }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> inserted_{0};
  std::thread thread_;  // last: it begins when the others are there
};

void threads(benchmark::State& state, const std::string& name) {
  constexpr std::uint64_t keys = 20'000'000;
  constexpr int passes = 4;
  if (!memory_plan::of(3 * keys * ours::bytes_per_key).unfit.empty())
    return state.SkipWithError("unfit: no memory for so many keys twice");
  const std::vector<int> cpus = usable_cpus();
  cpu_set_t before;
  ::sched_getaffinity(0, sizeof(before), &before);
  detail::pin_this_thread(cpus.front());
  for (auto _ : state) {
    figures f(name);
    if (cpus.size() < 2) f.unfit("one CPU");
    std::optional<ours> here, elsewhere;
    pass probes;
    bool right = true;
    const auto seconds_beside = [&](ours* inserts_to) {
      std::optional<inserter> other;
      if (inserts_to != nullptr)
        other.emplace(*inserts_to, static_cast<std::uint64_t>(inserts_to->index().size()), cpus.back());
      const double start = clock_now();
      const std::uint64_t first = other ? other->inserted() : 0;
      double seconds = 0;
      for (int p = 0; p < passes; ++p) {
        probes.draw_present(keys);
        seconds += seconds_of([&] { probes.find(*here); });
        right = probes.was_right() && right;
      }
      if (other)
        f.note("inserts_per_second", static_cast<double>(other->inserted() - first) / (clock_now() - start));
      return seconds;
    };
    f.sample([&] {
      for (std::optional<ours>* const one : {&here, &elsewhere}) {
        if (*one && (*one)->index().size() < static_cast<index_t>(keys / 4 * 5)) continue;
        one->emplace();
        fill(**one, 0, keys);
      }
      double alone = 0;
      if (f.swapped()) alone = seconds_beside(nullptr);
      const double beside = seconds_beside(&*here);
      if (!f.swapped()) alone = seconds_beside(nullptr);
      f.add("of_alone", alone / beside);
      f.add("of_alone_elsewhere", alone / seconds_beside(&*elsewhere));
      f.note("ns_per_key", alone / passes / static_cast<double>(pass::size) * 1e9);
    });
    if (!right) return state.SkipWithError("wrong answer: other codes");
    f.report(state);
  }
  ::sched_setaffinity(0, sizeof(before), &before);
}

const bool registered = [] {
  add("growing/threads", threads);
  return true;
}();

}  // namespace
