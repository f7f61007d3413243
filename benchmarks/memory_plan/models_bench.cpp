// Places for what a training step of a model allocates, at 2,048 samples on one thread: values of its graph,
// each from the op that makes it to the last one that takes it, and the scratch of verbs.
//
//   memory_plan/vs_deeprec/M   bytes by DeepRec's binned best fit over ours (less), ours over the most bytes
//                              that live at once (of_live), and over all blocks apart (of_apart)
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <deeprec/core/trace.hpp>
#include <deeprec/graph/step/plan_memory.hpp>
#include <deeprec/graph/step/step_program.hpp>
#include <deeprec/memory/allocation_log.hpp>
#include <deeprec/memory/plans/block_plan.hpp>
#include <deeprec/memory/plans/check_block_plan.hpp>

#include "graph/step_batches.hpp"
#include "models/dcn.hpp"
#include "models/deepfm.hpp"
#include "models/dlrm.hpp"
#include "models/wide_deep.hpp"
#include "support/add.hpp"
#include "support/figures.hpp"

namespace {

using namespace ctr;
using deeprec::block_lifetime;
using deeprec_bench::add;
using deeprec_bench::figures;
using graph_bench::batch_source;
using graph_bench::step_batches;

constexpr index_t batch = 2048;

const step_batches& shared_data() {
  static const step_batches data(batch, 4);
  return data;
}

/// The number of allocations and frees before each op of a step.
class op_times final : public deeprec::trace_sink {
 public:
  op_times(const deeprec::allocation_log& log, index_t ops)
      : log_(log), before_(static_cast<std::size_t>(ops)) {}
  void begin(const char*) noexcept override {}
  void end(const char*) noexcept override {}
  void begin_op(const deeprec::traced_op& op) noexcept override {
    before_[static_cast<std::size_t>(op.op)] = static_cast<std::int64_t>(log_.events().size());
  }
  void end_op(const deeprec::traced_op&) noexcept override {}
  [[nodiscard]] std::int64_t before(index_t op) const { return before_[static_cast<std::size_t>(op)]; }

 private:
  const deeprec::allocation_log& log_;
  std::vector<std::int64_t> before_;
};

/// What a step of the model allocates, with lifetimes: times are twice the numbers of events, so that a value
/// that is made with no event before it has a time of its own.
template <class Model>
std::vector<block_lifetime> blocks_of_step() {
  deeprec::allocation_log log;  // outlives what the step resolves
  deeprec::logging_resource memory(log);
  deeprec::inline_executor here;
  deeprec::executor_ref executor(here);
  step_context on(executor);
  Model model(on, *shared_data().tables, 1);
  graph_step step =
      make_graph_step(model, *shared_data().tables, batch_source(shared_data(), 4), graph_use::train);
  const deeprec::step_program program = deeprec::step_program::compile(step.graph).or_throw();
  deeprec::step_state values = program.make_state();
  on.memory = &memory;
  for (int s = 0; s < 2; ++s) static_cast<void>(program.run(on, values).or_throw());
  const deeprec::value_plan plan = plan_memory(program, values).or_throw();
  const std::size_t first = log.events().size();
  op_times times(log, step.graph.size());
  on.trace = &times;
  static_cast<void>(program.run(on, values).or_throw());
  on.trace = nullptr;

  const auto events = std::span(log.events()).subspan(first);
  const auto end_of_step = static_cast<std::int64_t>(first + events.size());
  std::vector<block_lifetime> blocks;
  std::vector<std::int64_t> begins;  // of ops, by their places in the order
  for (const auto op : program.plan().order()) begins.push_back(2 * times.before(op));
  for (std::size_t i = 1; i < begins.size(); ++i) begins[i] = std::max(begins[i], begins[i - 1]);
  const auto begin_of = [&](std::int64_t place) {
    return place < static_cast<std::int64_t>(begins.size()) ? begins[static_cast<std::size_t>(place)]
                                                            : 2 * end_of_step;
  };
  for (const auto& v : plan.values) {
    // An op without an allocation takes no time by events, yet its values are there.
    const std::int64_t begin = begin_of(v.begin), end = begin_of(v.end);
    blocks.push_back({begin, std::max(end, begin + 1), v.bytes, 64});
  }
  std::vector<std::int64_t> block_of;
  for (std::size_t i = 0; i < events.size(); ++i) {
    const auto time = 2 * static_cast<std::int64_t>(first + i) + 1;
    const auto block = static_cast<std::size_t>(events[i].block);
    if (events[i].what == deeprec::allocation_event::kind::allocated) {
      if (block_of.size() <= block) block_of.resize(block + 1, -1);
      block_of[block] = static_cast<std::int64_t>(blocks.size());
      blocks.push_back({time, 2 * end_of_step,
                        std::size_t{64} * ((static_cast<std::size_t>(events[i].bytes) + 63) / 64), 64});
    } else if (block < block_of.size() && block_of[block] >= 0) {  // else of the step before
      blocks[static_cast<std::size_t>(block_of[block])].end = time;
    }
  }
  return blocks;
}

template <class Model>
void vs_deeprec(benchmark::State& state, const std::string& name) {
  const std::vector<block_lifetime> blocks = blocks_of_step<Model>();
  deeprec::block_plan_options binned;
  binned.policies = {deeprec::block_policy::binned};
  for (auto _ : state) {
    figures f(name);
    const deeprec::block_plan ours = plan_blocks(blocks).or_throw();
    const deeprec::block_plan theirs = plan_blocks(blocks, binned).or_throw();
    if (!check_block_plan(blocks, ours.offsets, ours.bytes).ok())
      return state.SkipWithError("wrong answer: blocks overlap");
    double apart = 0;
    for (const block_lifetime& b : blocks) apart += static_cast<double>(b.bytes);
    const auto bytes = static_cast<double>(ours.bytes);
    f.sample([&] {
      f.add("less", static_cast<double>(theirs.bytes) / bytes);
      f.add("of_live", bytes / static_cast<double>(ours.live_bytes));
      f.add("of_apart", bytes / apart);
      f.note("megabytes", bytes * 1e-6);
      f.note("megabytes_binned", static_cast<double>(theirs.bytes) * 1e-6);
      f.note("blocks", static_cast<double>(blocks.size()));
    });
    f.report(state);
  }
}

const bool registered = [] {
  add("memory_plan/vs_deeprec/dlrm", vs_deeprec<dlrm>);
  add("memory_plan/vs_deeprec/wdl", vs_deeprec<wide_deep>);
  add("memory_plan/vs_deeprec/deepfm", vs_deeprec<deepfm>);
  add("memory_plan/vs_deeprec/dcn", vs_deeprec<dcn>);
  return true;
}();

}  // namespace
