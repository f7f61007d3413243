// DLRM's step cut by samples on two threads of a thread_pool, over one thread.
//
//   step/threads/batch:1 ... batch:8192    speedup: the time on one thread, of the same step or of the batch
//                                          verb by verb, whichever takes less, over the time on two
//
// Small steps have one part and run on one thread; the floor of a large one is half of its time.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <string>

#include <deeprec/core/executor.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "graph/step_batches.hpp"
#include "graph/step_by_hand.hpp"
#include "graph/step_by_lanes.hpp"
#include "support/add.hpp"
#include "support/figures.hpp"
#include "support/machine.hpp"

namespace {

using deeprec_bench::add;
using namespace ctr;

struct trained {
  trained(deeprec::executor_ref executor, const graph_bench::step_batches& data, index_t steps)
      : on(executor), model(on, *data.tables, 1), source(data, steps) {}
  deeprec::executor_ref on;
  dlrm model;
  graph_bench::batch_source source;
  raw_rows raw;
};
struct trained_by_lanes : trained {
  trained_by_lanes(deeprec::executor_ref executor, const graph_bench::step_batches& data, index_t steps)
      : trained(executor, data, steps), step(model, *data.tables, on) {}
  void run() {
    const deeprec::awake scope(on);
    while (source(raw)) step.run(raw).or_throw();
  }
  graph_bench::dlrm_by_lanes step;
};
struct trained_by_hand : trained {
  trained_by_hand(deeprec::executor_ref executor, const graph_bench::step_batches& data, index_t steps)
      : trained(executor, data, steps), step(model, *data.tables) {}
  void run() {
    while (source(raw)) step.run(on, raw).or_throw();
  }
  graph_bench::dlrm_by_hand step;
};

void step_threads(benchmark::State& state, const std::string& name, index_t batch) {
  const index_t steps = std::max<index_t>(4, 4096 / batch);
  const graph_bench::step_batches data(batch, std::min<index_t>(steps, 1024));
  deeprec::inline_executor here;
  deeprec::thread_pool pool(2);
  for (auto _ : state) {
    trained_by_lanes one(deeprec::executor_ref(here), data, steps),
        two(deeprec::executor_ref(pool), data, steps);
    trained_by_hand whole(deeprec::executor_ref(here), data, steps);
    one.run();
    two.run();
    if (checksum(one.model) != checksum(two.model)) {
      return state.SkipWithError("wrong answer: the weights differ");
    }
    deeprec_bench::figures f(name);
    if (deeprec::usable_cpus().size() < 2) f.unfit("one CPU");
    f.sample([&] {
      const auto [mine, theirs] = f.pair("speedup", "lanes", [&] { two.run(); }, [&] { one.run(); });
      f.pair("speedup", "whole", [&] { two.run(); }, [&] { whole.run(); });
      f.note("samples_per_second", static_cast<double>(steps * batch) / mine);
      f.note("step_us", mine * 1e6 / static_cast<double>(steps));
      f.note("one_thread_us", theirs * 1e6 / static_cast<double>(steps));
    });
    f.report(state);
  }
}

const bool registered = [] {
  for (const index_t batch : {1, 8, 32, 128, 512, 2048, 8192}) {
    add("step/threads/batch:" + std::to_string(batch),
        [batch](benchmark::State& state, const std::string& name) { step_threads(state, name, batch); });
  }
  return true;
}();

}  // namespace
