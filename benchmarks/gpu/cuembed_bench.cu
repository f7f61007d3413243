// Lookups against cuEmbed's, over the sweep of its own benchmark: exponent of the ids' power law
// 0, 1.05, 1.15; one and ten million rows; D = 32, 128; B = 1024, 32768, 131072; L = 1, 16, 64; float and
// half (out like the table). Ids and offsets have 32 bits, as there.
//
// Both have a form that reads offsets and one for a fixed hotness; the faster one of each side counts.
// `offsets` is the geometric mean of our form with offsets over cuEmbed's faster one. Before each timing a
// write of 256 MB empties the second-level cache; sets rotate; sides take turns. The other counters are
// geometric means over alpha and rows.

#include <benchmark/benchmark.h>

#include <deeprec/embedding/lookup/lookup.cuh>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "cuembed_baseline.hpp"
#include "data.cuh"

using namespace deeprec;
using namespace gpu_suite;

namespace {

using set_type = basic_index_set<std::int32_t>;

struct sweep {
  struct share {
    double log_sum = 0;
    int cases = 0;
  };
  std::map<std::string, share> by_shape;  // geometric means over alpha and R
  double log_sum = 0;
  double offsets_log_sum = 0;
  double least = 1e9;
  int cases = 0;
  int late = 0;
  std::string worst;
  device_array<char> eraser{pick(std::size_t{256} << 20, std::size_t{64})};
};

template <class T>
std::string compare(sweep& all, const basic_table<T>& source, const std::vector<set_type>& sets,
                    const std::string& name, const std::string& shape) {
  const index_t bags = sets[0].bags, width = source.format.width(), hotness = sets[0].hotness;
  const index_t numbers = bags * width;
  device_array<T> ours(static_cast<std::size_t>(numbers)), theirs(ours.size());
  cuda_stream stream;
  const auto our_call = [&](int i, bool fixed) {
    const auto out = ours.matrix(bags, width);
    const set_type& set = of_call(sets, i);
    const status s = fixed ? lookup(stream, source.read_only(), set.fixed(), combiner::sum, out)
                           : lookup(stream, source.read_only(), set.view(), combiner::sum, out);
    s.or_throw();
  };
  const auto their_call = [&](int i, bool fixed) {
    const set_type& set = of_call(sets, i);
    const gpu_baseline::cuembed_call call{source.memory.data(),   static_cast<int>(width),
                                          set.ids.data(),         fixed ? nullptr : set.offsets.data(),
                                          static_cast<int>(bags), static_cast<int>(hotness),
                                          theirs.data(),          stream.get()};
    std::is_same_v<T, float> ? gpu_baseline::cuembed_f32(call) : gpu_baseline::cuembed_f16(call);
    cuda_status(cudaGetLastError()).or_throw();
  };
  constexpr int sides = 4;
  const std::function<void(int)> calls[sides] = {
      [&](int i) { our_call(i, false); }, [&](int i) { our_call(i, true); },
      [&](int i) { their_call(i, false); }, [&](int i) { their_call(i, true); }};
  const char* const names[sides] = {"ours", "ours for a fixed hotness", "cuEmbed's",
                                    "cuEmbed's for a fixed hotness"};
  for (int side = 0; side < sides; ++side) {
    T* const out = side < 2 ? ours.data() : theirs.data();
    for (int i = 0; i < static_cast<int>(sets.size()); ++i) {
      poison(out, numbers);
      calls[side](i);
      stream.synchronize().or_throw();
      if (std::string wrong = sums_fault(name + ", " + names[side], of_call(sets, i), out, width, width);
          !wrong.empty())
        return wrong;
    }
  }
  // About a millisecond between two events.
  const double megabytes = static_cast<double>(bags * (hotness + 1) * width) * sizeof(T) / 1e6;
  const int calls_at_once = pick(std::clamp(static_cast<int>(1500 / (megabytes + 10)), 1, 8), 1);
  stopwatch watch(stream.get());
  std::vector<double> ms[sides];
  for (int round = -1; round < pick(7, 1); ++round) {
    for (int turn = 0; turn < sides; ++turn) {
      const int side = (round + 1 + turn) % sides;
      cuda_status(cudaMemsetAsync(all.eraser.data(), 0, all.eraser.size(), stream.get())).or_throw();
      const double one = watch.device_once(calls_at_once, calls[side]);
      if (round >= 0) ms[side].push_back(one);
    }
  }
  stream.synchronize().or_throw();
  const double peer = std::min(median_of(ms[2]), median_of(ms[3]));
  const double ratio = peer / std::min(median_of(ms[0]), median_of(ms[1]));
  all.offsets_log_sum += std::log(peer / median_of(ms[0]));
  all.log_sum += std::log(ratio);
  all.by_shape[shape].log_sum += std::log(ratio);
  ++all.by_shape[shape].cases;
  if (ratio < all.least) {
    all.least = ratio;
    all.worst = name;
  }
  ++all.cases;
  all.late += watch.late();
  return {};
}

template <class T>
std::string compare(sweep& all, const std::vector<basic_table<T>>& sources, const std::vector<set_type>& sets,
                    const std::string& name) {
  for (const auto& source : sources) {
    const std::string width = std::to_string(source.format.width()), type = sizeof(T) == 2 ? "f16" : "f32";
    const std::string shape =
        type + "_d" + width + "_b" + std::to_string(sets[0].bags) + "_l" + std::to_string(sets[0].hotness);
    std::string wrong = compare(all, source, sets, name + " D=" + width + " " + type, shape);
    if (!wrong.empty()) return wrong;
  }
  return {};
}

std::string vs_cuembed(benchmark::State& state) {
  sweep all;
  for (const index_t rows : {pick(1'000'000, 70), pick(10'000'000, 200)}) {
    std::vector<basic_table<float>> floats;
    std::vector<basic_table<f16>> halves;
    for (const index_t width : {32, pick(128, 40)}) {
      floats.emplace_back(rows, width);
      halves.emplace_back(rows, width);
    }
    for (const double alpha : {0.0, 1.05, 1.15}) {
      for (const index_t bags : {pick(1024, 3), pick(32'768, 5), pick(131'072, 9)}) {
        for (const index_t hotness : {1, 16, 64}) {
          const auto sets = make_sets<std::int32_t>(rows, bags, hotness, 3, {.alpha = alpha});
          const std::string name = "alpha=" + std::to_string(alpha).substr(0, 4) +
                                   " R=" + std::to_string(rows) + " B=" + std::to_string(bags) +
                                   " L=" + std::to_string(hotness);
          std::string wrong = compare(all, floats, sets, name);
          if (wrong.empty()) wrong = compare(all, halves, sets, name);
          if (!wrong.empty()) return wrong;
        }
      }
    }
  }
  state.counters["speedup"] = all.least;
  state.counters["geomean"] = std::exp(all.log_sum / all.cases);
  state.counters["offsets"] = std::exp(all.offsets_log_sum / all.cases);
  state.counters["cases"] = all.cases;
  for (const auto& [shape, share] : all.by_shape)
    state.counters[shape] = std::exp(share.log_sum / share.cases);
  state.counters["late"] = all.late;
  state.SetLabel("worst: " + all.worst);
  return {};
}

const bool enlisted = [] {
  enlist("gpu/lookup/vs_cuembed", vs_cuembed, 1);
  return true;
}();

}  // namespace
