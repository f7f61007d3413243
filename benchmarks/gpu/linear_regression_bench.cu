// The linear regression of the GPU MultiStream document on streams, as
// examples/linear_regression_streams.cu runs it: two inputs of 17 numbers, as in the document, and four
// inputs that keep a card busy, which the claims are about. None of this has run yet.

#include <benchmark/benchmark.h>

#include <string>

#include "../../examples/linear_regression.cuh"
#include "support.hpp"

using namespace deeprec;
using namespace gpu_suite;

namespace {

std::string regression(benchmark::State& state, int inputs, index_t samples, index_t width, bool graph) {
  const int steps = 10;
  linear_regression::model model(inputs, samples, width);
  double ms[2] = {};
  for (const int n : {1, inputs}) {
    const linear_regression::step_work step = linear_regression::make_work(inputs, steps, n);
    const auto launch = [&](index_t op, cuda_stream& on) {
      return model.launch(step.ops[static_cast<std::size_t>(op)], on);
    };
    cuda_stream_pool pool(n);
    stream_plan plan;
    plan_streams(step.work, n, plan).or_throw();
    const auto call = [&](int) { (graph ? pool.replay(plan, launch) : pool.run(plan, launch)).or_throw(); };
    model.reset();
    pool.run(plan, launch).or_throw();
    pool.synchronize().or_throw();
    if (graph) {
      model.reset();
      call(0);
      pool.synchronize().or_throw();
    }
    if (std::string fault = model.fault(steps); !fault.empty()) return fault;
    ms[n == 1 ? 0 : 1] = milliseconds(pool.stream(0).get(), 40, call);
  }
  state.counters["speedup"] = ms[0] / ms[1];
  state.counters["ms"] = ms[1];
  return {};
}
std::string eager(benchmark::State& state) { return regression(state, 4, 4096, 1024, false); }
std::string graph(benchmark::State& state) { return regression(state, 4, 4096, 1024, true); }
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
