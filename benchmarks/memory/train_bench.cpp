// Training steps of the models as graphs, at 2,048 samples on one thread, with and without plans of memory.
//
//   memory/train/M   values share memory, scratch comes from an arena: pace over steps without (pace); bytes
//                    of values and of what verbs allocate over theirs (bytes); minor page faults of a step
//                    (faults, and without plans faults_apart)
#include <benchmark/benchmark.h>

#include <sys/resource.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include <deeprec/graph/step/plan_memory.hpp>
#include <deeprec/graph/step/step_program.hpp>
#include <deeprec/memory/counting_resource.hpp>
#include <deeprec/memory/planned_resource.hpp>

#include "graph/step_batches.hpp"
#include "models/dcn.hpp"
#include "models/deepfm.hpp"
#include "models/dlrm.hpp"
#include "models/wide_deep.hpp"
#include "support/add.hpp"
#include "support/figures.hpp"

namespace {

using namespace ctr;
using deeprec_bench::add;
using deeprec_bench::figures;
using graph_bench::batch_source;
using graph_bench::step_batches;

constexpr index_t batch = 2048, batches = 8;

const step_batches& shared_data() {
  static const step_batches data(batch, batches);
  return data;
}

/// A model, its step as a graph, and the context in which steps run. Does not move.
template <class Model>
struct trained {
  deeprec::inline_executor here;
  deeprec::executor_ref executor{here};
  step_context on{executor};
  Model model{on, *shared_data().tables, 1};
  graph_step step =
      make_graph_step(model, *shared_data().tables, batch_source(shared_data(), batches), graph_use::train);
  deeprec::step_program program = deeprec::step_program::compile(step.graph).or_throw();
  deeprec::step_state values = program.make_state();
};

long faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

template <class Model>
void train(benchmark::State& state, const std::string& name) {
  for (auto _ : state) {
    // They outlive what steps resolved, which keeps its memory from one step to the next.
    deeprec::counting_resource upstream, peak;
    deeprec::planned_options options;
    options.upstream = &upstream;
    deeprec::planned_resource scratch(options);
    trained<Model> ours, apart, counted;
    ours.on.memory = &scratch;
    counted.on.memory = &peak;
    const auto all = [](trained<Model>& one) {
      while (one.program.run(one.on, one.values).or_throw()) {
      }
    };
    const auto planned = [&] {
      for (bool more = true; more;) {
        const deeprec::planned_resource::step now = scratch.begin(batch);
        more = ours.program.run(ours.on, ours.values).or_throw();
      }
    };
    planned();
    const deeprec::value_plan plan = plan_memory(ours.program, ours.values).or_throw();
    place_values(ours.values, plan).or_throw();
    all(apart);
    all(counted);
    for (int run = 0; run < 3; ++run) {  // every row was read
      planned();
      all(apart);
    }
    if (checksum(ours.model) != checksum(apart.model))
      return state.SkipWithError("wrong answer: the weights differ");
    upstream.forget_most();
    planned();
    const auto bytes =
        static_cast<double>(plan.bytes + scratch.report().arena_bytes + upstream.statistics().most_bytes);
    const auto bytes_apart = static_cast<double>(plan.apart_bytes + peak.statistics().most_bytes);
    figures f(name);
    f.note("megabytes", bytes * 1e-6);
    f.note("megabytes_apart", bytes_apart * 1e-6);
    f.sample([&] {
      long before = faults();
      const auto with = [&] {
        before = faults();
        planned();
        f.note("faults", static_cast<double>(faults() - before) / batches);
      };
      const auto without = [&] {
        before = faults();
        all(apart);
        f.note("faults_apart", static_cast<double>(faults() - before) / batches);
      };
      const auto seconds = f.pair("pace", "", with, without);
      f.note("ms_per_step", seconds.first * 1e3 / batches);
      f.add("bytes", bytes / bytes_apart);
    });
    const deeprec::planned_report report = scratch.report();
    if (report.missed_steps > 0) return state.SkipWithError("a step left its plan");
    f.report(state);
  }
}

const bool registered = [] {
  add("memory/train/dlrm", train<dlrm>);
  add("memory/train/wdl", train<wide_deep>);
  add("memory/train/deepfm", train<deepfm>);
  add("memory/train/dcn", train<dcn>);
  return true;
}();

}  // namespace
