// Whole steps of train_ctr's models as graphs: what the graph costs, and what SmartStage gains.
//
//   graph/step_overhead            DLRM's step, inline on one thread, over the same calls written by hand
//   graph/smart_stage_step/dlrm    what the cut moved runs on a thread of its own: over the user's stage, and
//                  .../wdl         over the larger of both sides
//                  .../lr
//
// Batches of 128 synthetic rows of Criteo's shape, kept as the reader leaves them: 13 integers and 26
// fingerprints; the source copies 34 KB. Preprocessing is decode, hash and bucket of them, and where ids are
// resolved before the lookup that too; it is the side that SmartStage moves ahead. The user's stage stands
// right behind the source.
//
// Floors, before anything was measured. The graph of DLRM has 79 ops that cost 2 to 8 ns each beside their
// work, under 1 us of a step of about 3 ms: 1.0002 is predicted, and the noise decides. SmartStage hides the
// smaller side: the step is the larger one and the handing over, two waits of a sleeping thread in the worst
// case (10 us): 1.01 predicted. Preprocessing takes about 1.3 us a row: 13 log1p and 13 log2 of 20 ns each,
// 26 products and 26 gathers from the counts, 26 KB to 100 KB a column: 170 us, 5 % of DLRM's step, and more
// than a fifth of lr's.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/graph/passes/smart_stage.hpp>
#include <deeprec/graph/step/staged_program.hpp>
#include <deeprec/graph/step/step_program.hpp>
#include <deeprec/plan/trace_recorder.hpp>

#include "graph/step_batches.hpp"
#include "graph/step_by_hand.hpp"
#include "models/dlrm.hpp"
#include "models/logistic_regression.hpp"
#include "models/wide_deep.hpp"
#include "support/add.hpp"
#include "support/figures.hpp"
#include "support/machine.hpp"

namespace {

using namespace ctr;
using deeprec_bench::add;
using deeprec_bench::figures;
using deeprec_bench::seconds_of;
using graph_bench::batch_source;
using graph_bench::step_batches;

constexpr index_t batch = 128, steps = 64;
constexpr std::size_t capacity = 4;
constexpr const char* wrong_answer = "wrong answer: the weights differ";

const step_batches& shared_data() {
  static const step_batches data(batch, 64);
  return data;
}

/// A model and its step as a graph. Does not move: the graph refers to the model.
template <class Model>
struct trained_graph {
  deeprec::inline_executor here;
  deeprec::executor_ref on{here};
  Model model{on, *shared_data().tables, 1};
  graph_step step = make_graph_step(model, *shared_data().tables, batch_source(shared_data(), steps));
};

void overhead(benchmark::State& state, const std::string& name) {
  for (auto _ : state) {
    trained_graph<dlrm> ours, other;
    deeprec::step_program program = deeprec::step_program::compile(ours.step.graph).or_throw();
    deeprec::step_state values = program.make_state();
    graph_bench::dlrm_by_hand hand(other.model, *shared_data().tables);
    batch_source source(shared_data(), steps);
    raw_rows raw;
    const auto by_graph = [&] {
      while (program.run(ours.on, values).or_throw()) {
      }
    };
    const auto by_hand = [&] {
      while (source(raw)) hand.run(other.on, raw).or_throw();
    };
    by_graph();
    by_hand();
    if (checksum(ours.model) != checksum(other.model)) return state.SkipWithError(wrong_answer);
    figures f(name);
    f.sample([&] {
      const auto [mine, theirs] = f.pair("speedup", "by_hand", by_graph, by_hand);
      f.add("of_by_hand", mine / theirs);
      f.note("step_ms", mine * 1e3 / steps);
    });
    index_t ops = 0;
    for (index_t op = 0; op < ours.step.graph.size(); ++op) ops += ours.step.graph.is_run(op) ? 1 : 0;
    f.note("ops", static_cast<double>(ops));
    f.report(state);
  }
}

template <class Model>
void staged(benchmark::State& state, const std::string& name) {
  for (auto _ : state) {
    deeprec::thread_pool pool(1);
    trained_graph<Model> alone, user, smart;
    const deeprec::flat_graph flat = alone.step.graph.flat().or_throw();
    const deeprec::stage_cut cut = smart_stage(flat, {.rule = deeprec::stage_rule::farthest}).or_throw();
    deeprec::step_program program = deeprec::step_program::compile(alone.step.graph).or_throw();
    deeprec::step_state values = program.make_state();
    const deeprec::staged_options options{.capacity = capacity};
    auto by_user = deeprec::staged_program::compile(user.step.graph, options).or_throw();
    auto by_smart = deeprec::staged_program::compile(smart.step.graph, cut, options).or_throw();
    // The sides alone: the spans of a run on one thread, by the side of the cut on which their ops are.
    deeprec::trace_recorder trace({.threads = 1, .spans = 1 << 17});
    double ahead = 0, rest = 0, moved = 0;
    const auto sides = [&] {
      trace.clear();
      deeprec::context<deeprec::executor_ref> on(alone.on);
      on.trace = &trace;
      while (program.run(on, values).or_throw()) {
      }
      ahead = rest = moved = 0;
      for (const deeprec::trace_cost& c : trace.costs()) {
        if (c.op < 0) continue;
        (by_smart.is_staged(c.op) ? ahead : rest) += 1e-9 * c.total_ns;
        if (by_smart.is_staged(c.op) && !by_user.is_staged(c.op)) moved += 1e-9 * c.total_ns;
      }
    };
    const auto with_user = [&] { by_user.run(pool, [](deeprec::step_state&) {}).or_throw(); };
    const auto with_smart = [&] { by_smart.run(pool, [](deeprec::step_state&) {}).or_throw(); };
    sides();
    with_user();
    with_smart();
    if (trace.dropped() != 0 || checksum(alone.model) != checksum(user.model) ||
        checksum(alone.model) != checksum(smart.model)) {
      return state.SkipWithError(wrong_answer);
    }
    figures f(name);
    if (deeprec::usable_cpus().size() < 2) f.unfit("one CPU");
    f.sample([&] {
      if (f.swapped()) sides();
      const auto [mine, theirs] = f.pair("speedup", "user_stage", with_smart, with_user);
      if (!f.swapped()) sides();
      const double larger = std::max(ahead, rest);
      f.add("of_larger_side", mine / larger);
      f.add("share_of_limit", larger / mine);
      f.note("step_ms", mine * 1e3 / steps);
      f.note("user_stage_ms", theirs * 1e3 / steps);
      f.note("ahead_ms", ahead * 1e3 / steps);
      f.note("rest_ms", rest * 1e3 / steps);
      f.note("preprocessing_share", moved / (ahead + rest));
    });
    f.note("staged_ops", static_cast<double>(by_smart.staged_ops().size()));
    f.say("preprocessing: decode, hash, bucket and resolve");
    f.report(state);
  }
}

const bool registered = [] {
  add("graph/step_overhead", overhead);
  add("graph/smart_stage_step/dlrm", staged<dlrm>);
  add("graph/smart_stage_step/wdl", staged<wide_deep>);
  add("graph/smart_stage_step/lr", staged<logistic_regression>);
  return true;
}();

}  // namespace
