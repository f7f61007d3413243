// The ops of whole training steps by learnt costs, beside the same steps op by op: both on the same threads,
// which the verbs in an op share.
//
//   graph/executor/cost/step/M   a step of 128 samples (batch:128) or 2,048 of model M, op by op over by cost
//                                (pace); op by op (inline), and by ops as they become ready (pool), over by
//                                cost (speedup); whether the last run was on threads is not told: the costs
//                                decide it
//
// Predicted: a step whose verbs share their work leaves nothing to gain, and by_cost then stays on the
// calling thread, where a run in turn costs it one timed run of 256 at most and two readings of a clock for
// each other run: below 0.1 %.
#include <benchmark/benchmark.h>

#include <string>

#include <deeprec/core/executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/graph/step/step_program.hpp>

#include "graph/step_batches.hpp"
#include "models/dcn.hpp"
#include "models/deepfm.hpp"
#include "models/dlrm.hpp"
#include "models/logistic_regression.hpp"
#include "models/wide_deep.hpp"
#include "support/add.hpp"
#include "support/figures.hpp"

namespace {

using namespace ctr;
using deeprec_bench::add;
using deeprec_bench::figures;
using deeprec_bench::seconds_of;
using graph_bench::batch_source;
using graph_bench::step_batches;

constexpr index_t batches = 8;

template <index_t Batch>
const step_batches& shared_data() {
  static const step_batches data(Batch, batches);
  return data;
}

/// A model and its step as a graph. Does not move.
template <class Model, index_t Batch>
struct trained {
  deeprec::thread_pool& pool;
  deeprec::executor_ref executor{pool};
  step_context on{executor};
  Model model{on, *shared_data<Batch>().tables, 1};
  graph_step step = make_graph_step(model, *shared_data<Batch>().tables,
                                    batch_source(shared_data<Batch>(), batches), graph_use::train);
  deeprec::step_program program;
  deeprec::step_state values = program.make_state();

  trained(deeprec::thread_pool& threads, deeprec::op_schedule schedule)
      : pool(threads),
        program(deeprec::step_program::compile(step.graph, {.schedule = schedule}).or_throw()) {}
  void run() {
    while (program.run(on, values).or_throw()) {
    }
  }
};

template <class Model, index_t Batch>
void train(benchmark::State& state, const std::string& name) {
  deeprec::thread_pool pool;
  const deeprec::awake scope(pool);
  for (auto _ : state) {
    trained<Model, Batch> by_cost(pool, deeprec::op_schedule::by_cost);
    trained<Model, Batch> in_turn(pool, deeprec::op_schedule::in_turn);
    trained<Model, Batch> as_ready(pool, deeprec::op_schedule::as_ready);
    figures f(name);
    for (int i = 0; i < 10; ++i) {  // what is learnt in the first runs
      by_cost.run();
      in_turn.run();
      as_ready.run();
    }
    f.sample([&] {
      double ready = 0;
      if (f.swapped()) ready = seconds_of([&] { as_ready.run(); });
      const auto [cost, turn] = f.pair("pace", "", [&] { by_cost.run(); }, [&] { in_turn.run(); });
      if (!f.swapped()) ready = seconds_of([&] { as_ready.run(); });
      f.add("speedup", turn / cost, "inline");
      f.add("speedup", ready / cost, "pool");
      f.note("ms_per_step", cost * 1e3 / batches);
    });
    if (checksum(by_cost.model) != checksum(in_turn.model) ||
        checksum(by_cost.model) != checksum(as_ready.model))
      return state.SkipWithError("wrong answer: the weights differ");
    f.report(state);
  }
}

template <class Model>
void add_model(const std::string& name) {
  add("graph/executor/cost/step/" + name + "/batch:128", train<Model, 128>);
  add("graph/executor/cost/step/" + name + "/batch:2048", train<Model, 2048>);
}

const bool registered = [] {
  add_model<dlrm>("dlrm");
  add_model<wide_deep>("wdl");
  add_model<deepfm>("deepfm");
  add_model<dcn>("dcn");
  add_model<logistic_regression>("lr");
  return true;
}();

}  // namespace
