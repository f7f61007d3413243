// Towers of small lookups that no one of fills the card, on one stream and on four; then a join.
//
// Launched op by op, a step's time is what it takes with all that the host does for it: steps follow each
// other without a stop. As a graph it is the device's.

#include <benchmark/benchmark.h>

#include <deeprec/embedding/lookup/lookup.cuh>
#include <deeprec/plan/cuda_stream_pool.hpp>

#include <memory>
#include <string>
#include <vector>

#include "data.cuh"

using namespace deeprec;
using namespace gpu_suite;

namespace {

std::string towers(benchmark::State& state, bool graph) {
  const index_t towers = pick(8, 5), steps = pick(6, 3), rows = pick(50'000, 60), width = 32,
                bags = pick(256, 6), hotness = 32;
  const table source(rows, width);
  const auto sets = make_sets(rows, bags, hotness, static_cast<int>(towers));
  const index_t numbers = towers * bags * width;
  task_list work;
  for (index_t t = 0; t < towers; ++t) {
    index_t last = work.add({});
    for (index_t k = 1; k < steps; ++k) last = work.add({last});
  }
  // One stream, and four.
  struct side {
    explicit side(int n, const task_list& work, index_t numbers)
        : pool(n), watch(pool.stream(0).get()), out(static_cast<std::size_t>(numbers)) {
      plan_streams(work, n, plan).or_throw();
    }
    cuda_stream_pool pool;
    stream_plan plan;
    stopwatch watch;
    device_array<float> out;
  };
  side one(1, work, numbers), four(4, work, numbers);
  const auto run = [&](side& s, bool as_graph) {
    const auto launch = [&](index_t op, cuda_stream& on) {
      const index_t t = op / steps;
      return lookup(on, source.read_only(), of_call(sets, static_cast<int>(t)).view(), combiner::sum,
                    matrix_view<float, device_space>(s.out.data() + t * bags * width, bags, width));
    };
    (as_graph ? s.pool.replay(s.plan, launch) : s.pool.run(s.plan, launch)).or_throw();
  };
  const auto fault = [&](side& s) -> std::string {
    s.pool.synchronize().or_throw();
    for (index_t t = 0; t < towers; ++t) {
      std::string wrong = sums_fault("tower " + std::to_string(t), of_call(sets, static_cast<int>(t)),
                                     s.out.data() + t * bags * width, width, width);
      if (!wrong.empty()) return wrong;
    }
    return {};
  };
  for (side* const s : {&one, &four}) {
    for (const bool as_graph : {false, graph}) {
      poison(s->out.data(), numbers);
      run(*s, as_graph);
      if (std::string wrong = fault(*s); !wrong.empty()) return wrong;
    }
    poison(s->out.data(), numbers);
    s->watch.warm_up([&](int) { run(*s, graph); });
  }
  const auto timed = [&](side& s, bool with_host) {
    const auto call = [&](int) { run(s, graph); };
    return with_host ? s.watch.with_host_once(pick(10, 2), call) : s.watch.device_once(pick(2, 1), call);
  };
  const auto ratio = [&](bool with_host) {
    return ratio_in_turns(25, [&] { return timed(one, with_host); }, [&] { return timed(four, with_host); });
  };
  const figure device = ratio(false), host = ratio(true);
  for (side* const s : {&one, &four}) {
    if (std::string wrong = fault(*s); !wrong.empty()) return wrong;
  }
  tell(state, "speedup", graph ? device : host);
  state.counters["device"] = device.median;
  state.counters["with_host"] = host.median;
  state.counters["late"] = one.watch.late() + four.watch.late();
  return {};
}
std::string eager(benchmark::State& state) { return towers(state, false); }
std::string graph(benchmark::State& state) { return towers(state, true); }

const bool enlisted = [] {
  enlist("gpu/streams/eager", eager);
  enlist("gpu/streams/graph", graph);
  return true;
}();

}  // namespace
