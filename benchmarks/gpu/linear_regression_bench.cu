// The linear regression of the GPU MultiStream document on streams, as
// examples/linear_regression_streams.cu runs it: two inputs of 17 numbers, as in the document, and four
// inputs that keep a card busy, which the claims are about. None of this has run yet.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <string>

#include "../../examples/linear_regression.cuh"
#include "support.hpp"

using namespace deeprec;
using namespace gpu_suite;

namespace {

// Launched op by op, with all that the host does; as a graph, on the device.
std::string regression(benchmark::State& state, int inputs, index_t samples, index_t width, bool graph) {
  const int steps = 10;
  linear_regression::model model(inputs, samples, width);
  struct side {
    side(int n, int inputs)
        : step(linear_regression::make_work(inputs, steps, n)), pool(n), watch(pool.stream(0).get()) {
      plan_streams(step.work, n, plan).or_throw();
    }
    linear_regression::step_work step;
    cuda_stream_pool pool;
    stream_plan plan;
    stopwatch watch;
  };
  side one(1, inputs), all(inputs, inputs);
  const auto run = [&](side& s, bool as_graph) {
    const auto launch = [&](index_t op, cuda_stream& on) {
      return model.launch(s.step.ops[static_cast<std::size_t>(op)], on);
    };
    (as_graph ? s.pool.replay(s.plan, launch) : s.pool.run(s.plan, launch)).or_throw();
  };
  const auto fault = [&](side& s, bool as_graph) {
    s.pool.synchronize().or_throw();
    model.reset();
    for (int runs = spoils() ? 2 : 1; runs > 0; --runs) run(s, as_graph);
    s.pool.synchronize().or_throw();
    return model.fault(steps);
  };
  for (side* const s : {&one, &all}) {
    std::string wrong = fault(*s, false);
    if (wrong.empty() && graph) wrong = fault(*s, true);
    if (!wrong.empty()) return wrong;
    s->watch.warm_up([&](int) { run(*s, graph); });
    s->pool.synchronize().or_throw();
  }
  const auto timed = [&](side& s) {
    const auto call = [&](int) { run(s, graph); };
    return graph ? s.watch.device_once(2, call) : s.watch.with_host_once(5, call);
  };
  double ms = 1e9;
  const figure ratio = ratio_in_turns(
      25, [&] { return timed(one); },
      [&] {
        const double now = timed(all);
        ms = std::min(ms, now);
        return now;
      });
  for (side* const s : {&one, &all}) {
    if (std::string wrong = fault(*s, graph); !wrong.empty()) return wrong;
  }
  tell(state, "speedup", ratio);
  state.counters["least_ms"] = ms;
  state.counters["late"] = one.watch.late() + all.watch.late();
  return {};
}
constexpr index_t samples = pick(4096, 300), width = pick(1024, 6);
std::string eager(benchmark::State& state) { return regression(state, 4, samples, width, false); }
std::string graph(benchmark::State& state) { return regression(state, 4, samples, width, true); }
std::string small_eager(benchmark::State& state) { return regression(state, 2, 17, 1, false); }
std::string small_graph(benchmark::State& state) { return regression(state, 2, 17, 1, true); }

const bool enlisted = [] {
  enlist("gpu/streams/eager/linear_regression", eager);
  enlist("gpu/streams/graph/linear_regression", graph);
  enlist("gpu/streams/eager/linear_regression/document", small_eager);
  enlist("gpu/streams/graph/linear_regression/document", small_graph);
  return true;
}();

}  // namespace
