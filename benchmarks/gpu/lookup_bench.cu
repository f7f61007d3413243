// Lookups against the copy bandwidth of the card, measured in the same run. Bytes are the compulsory ones:
// each row that a batch needs once, ids, offsets and outputs.

#include <benchmark/benchmark.h>

#include <deeprec/embedding/groups/lookup_features.cuh>
#include <deeprec/embedding/lookup/lookup.cuh>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "data.cuh"

using namespace deeprec;
using namespace gpu_suite;

namespace {

std::string large(benchmark::State& state) {
  const index_t rows = pick<index_t>(10'000'000, 500), width = pick(128, 20), hotness = 20;
  const table source(rows, width);
  figure least{1e9};
  for (const index_t bags : {pick(4096, 5), pick(16'384, 9), pick(65'536, 17)}) {
    const auto sets = make_sets(rows, bags, hotness, bags < 10'000 ? 8 : 3);
    device_array<float> out(static_cast<std::size_t>(bags * width));
    cuda_stream stream;
    const auto call = [&](int i) {
      lookup(stream, source.read_only(), of_call(sets, i).view(), combiner::sum, out.matrix(bags, width))
          .or_throw();
    };
    stopwatch watch(stream.get());
    const auto fault = [&](int i) {
      stream.synchronize().or_throw();
      return sums_fault("B = " + std::to_string(bags), of_call(sets, i), out.data(), width, width);
    };
    poison(out.data(), bags * width);
    call(0);
    if (std::string wrong = fault(0); !wrong.empty()) return wrong;
    poison(out.data(), bags * width);
    watch.warm_up(call);
    const figure ms = watch.device(21, 4, call);
    if (std::string wrong = fault(watch.last()); !wrong.empty()) return wrong;
    double bytes = 0;
    for (const auto& set : sets)
      bytes += static_cast<double>((set.unique() + bags) * width * 4) + set.bytes();
    bytes /= static_cast<double>(sets.size());
    const figure share = over(bytes / copy_rate(), ms);
    state.counters["roofline_b" + std::to_string(bags)] = share.median;
    state.counters["GB/s_b" + std::to_string(bags)] = bytes / ms / 1e6;
    least = least_of(least, share);
  }
  tell(state, "roofline", least);
  state.counters["copy_GB/s"] = copy_rate() / 1e6;
  return {};
}

std::string tbe_default(benchmark::State& state) {
  using bags_type = index_set::bags_type;
  const index_t tables = pick(32, 5), rows = pick(100'000, 90), width = pick(128, 24), bags = pick(512, 7),
                hotness = 20;
  const int rounds = 4;
  std::vector<table> sources;
  feature_group<lookups_only, bags_type, float> group;
  for (index_t t = 0; t < tables; ++t) {
    sources.emplace_back(rows, width);
    group.add(sources.back().read_only(), combiner::sum);
  }
  const auto sets = make_sets(rows, bags, hotness, static_cast<int>(tables) * rounds);
  const auto set_of = [&](int i, index_t t) -> const index_set& {
    return sets[static_cast<std::size_t>((i % rounds) * tables + t)];
  };
  const index_t wide = group.total_width();
  device_array<float> out(static_cast<std::size_t>(bags * wide));
  cuda_stream stream;
  std::vector<bags_type> batch(static_cast<std::size_t>(tables));
  const auto call = [&](int i) {
    for (index_t t = 0; t < tables; ++t) batch[static_cast<std::size_t>(t)] = set_of(i, t).view();
    lookup(stream, group, std::span<const bags_type>(batch), out.matrix(bags, wide)).or_throw();
  };
  const auto fault = [&](int i) -> std::string {
    stream.synchronize().or_throw();
    for (index_t t = 0; t < tables; ++t) {
      std::string wrong =
          sums_fault("table " + std::to_string(t), set_of(i, t), out.data() + group.offset(t), width, wide);
      if (!wrong.empty()) return wrong;
    }
    return {};
  };
  poison(out.data(), bags * wide);
  call(0);
  if (std::string wrong = fault(0); !wrong.empty()) return wrong;
  poison(out.data(), bags * wide);
  stopwatch watch(stream.get());
  watch.warm_up(call);
  const figure ms = watch.device(21, 4, call);
  state.counters["with_host_ms"] = watch.with_host(21, 4, call).median;
  if (std::string wrong = fault(watch.last()); !wrong.empty()) return wrong;
  double bytes = 0;
  for (const auto& set : sets) bytes += static_cast<double>((set.unique() + bags) * width * 4) + set.bytes();
  bytes /= rounds;
  tell(state, "roofline", over(bytes / copy_rate(), ms));
  state.counters["GB/s"] = bytes / ms / 1e6;
  state.counters["ms"] = ms.median;
  state.counters["late"] = watch.late();
  return {};
}

const bool enlisted = [] {
  enlist("gpu/lookup/large", large);
  enlist("gpu/lookup/tbe_default", tbe_default);
  return true;
}();

}  // namespace
