// The lookups of 26 tables in one launch, against the same op by op (op_by_op.hpp) as a CUDA graph. 5 % of
// the ids are invalid and pruned; no bag is empty, so both sides have one answer.
//
// speedup is the smaller one of two: on the device, and call after call with all that the host does (for us
// it prepares a launch, for them it launches a graph).

#include <benchmark/benchmark.h>

#include <deeprec/embedding/groups/lookup_features.cuh>
#include <deeprec/plan/cuda_stream_pool.hpp>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "op_by_op.hpp"

using namespace deeprec;
using namespace gpu_suite;

namespace {

std::string fused_26(benchmark::State& state) {
  using bags_type = index_set::bags_type;
  const index_t tables = pick(26, 4), rows = pick(100'000, 70), width = 16, bags = pick(512, 16),
                hotness = 10;
  const int rounds = 4;
  std::vector<table> sources;
  feature_group<lookups_only, bags_type, float> group;
  for (index_t t = 0; t < tables; ++t) {
    sources.emplace_back(rows, width);
    group.add(sources.back().read_only(), pooling{combiner::sum, padding::prune});
  }
  struct batch_type {
    std::vector<index_set> sets;
    std::vector<bags_type> views;
    std::vector<index_t> entries;
  };
  std::vector<batch_type> batches(rounds);
  for (int r = 0; r < rounds; ++r) {
    batch_type& batch = batches[static_cast<std::size_t>(r)];
    for (index_t t = 0; t < tables; ++t) {
      batch.sets.emplace_back(static_cast<std::uint64_t>(r * 100 + t), rows, bags, hotness,
                              drawn{.invalid = 0.05});
      const index_set& set = batch.sets.back();
      batch.views.push_back(set.view());
      batch.entries.push_back(set.valid());
      for (index_t b = 0; b < bags; ++b) {
        const auto bag = set.host.begin() + b * hotness;
        if (*std::max_element(bag, bag + hotness) < 0) return "an empty bag in the batch";
      }
    }
  }
  const index_t wide = group.total_width();
  device_array<float> ours(static_cast<std::size_t>(bags * wide)), theirs(ours.size());
  cuda_stream_pool pool(1);
  cuda_stream& stream = pool.stream(0);
  op_by_op ops(sources, bags, bags * hotness);
  task_list work;
  work.add({});
  stream_plan plan;
  plan_streams(work, 1, plan).or_throw();
  const auto our_call = [&](int i) {
    lookup(stream, group, std::span<const bags_type>(of_call(batches, i).views), ours.matrix(bags, wide))
        .or_throw();
  };
  const auto their_run = [&](int i, cuda_stream& on) {
    const batch_type& batch = of_call(batches, i);
    return ops.run(on, batch.views, batch.entries, theirs.matrix(bags, wide));
  };
  const auto their_call = [&](int i) {
    pool.replay(
            plan, [&](index_t, cuda_stream& on) { return their_run(i, on); },
            static_cast<std::uint64_t>(i % rounds))
        .or_throw();
  };
  const auto fault = [&](const std::string& name, float* out, int i) -> std::string {
    pool.synchronize().or_throw();
    for (index_t t = 0; t < tables; ++t) {
      std::string wrong = sums_fault(name + ", table " + std::to_string(t),
                                     of_call(batches, i).sets[static_cast<std::size_t>(t)],
                                     out + group.offset(t), width, wide);
      if (!wrong.empty()) return wrong;
    }
    return {};
  };
  their_run(0, stream).or_throw();  // scratch grows before the capture
  pool.synchronize().or_throw();
  for (int i = 0; i < rounds; ++i) {
    poison(ours.data(), bags * wide);
    poison(theirs.data(), bags * wide);
    our_call(i);
    their_call(i);
    if (std::string wrong = fault("fused", ours.data(), i); !wrong.empty()) return wrong;
    if (std::string wrong = fault("op by op", theirs.data(), i); !wrong.empty()) return wrong;
  }
  poison(ours.data(), bags * wide);
  poison(theirs.data(), bags * wide);
  stopwatch our_watch(stream.get()), their_watch(stream.get());
  our_watch.warm_up(our_call);
  their_watch.warm_up(their_call);
  const figure device = ratio_in_turns(
      25, [&] { return their_watch.device_once(4, their_call); },
      [&] { return our_watch.device_once(4, our_call); });
  const figure with_host = ratio_in_turns(
      25, [&] { return their_watch.with_host_once(20, their_call); },
      [&] { return our_watch.with_host_once(20, our_call); });
  if (std::string wrong = fault("fused, after timing", ours.data(), our_watch.last()); !wrong.empty())
    return wrong;
  if (std::string wrong = fault("op by op, after timing", theirs.data(), their_watch.last()); !wrong.empty())
    return wrong;
  tell(state, "speedup", least_of(device, with_host));
  state.counters["device"] = device.median;
  state.counters["with_host"] = with_host.median;
  state.counters["late"] = our_watch.late() + their_watch.late();
  return {};
}

const bool enlisted = [] {
  enlist("gpu/fused_lookup/26", fused_26);
  return true;
}();

}  // namespace
