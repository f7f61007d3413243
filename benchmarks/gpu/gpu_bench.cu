// What the device backends reach of the copy bandwidth of the card, measured in the same run.
//
// Tables hold numbers that are small and exact, a function of row and column: the host knows every answer
// without the table. Ids come in several sets in rotation, and tables are larger than the second-level
// cache where a claim is about memory. Without a device every benchmark skips itself. None of this has run
// yet: see docs/cuda.md.

#include <benchmark/benchmark.h>

#include <deeprec/embedding/device_stages.cuh>
#include <deeprec/embedding/lookup.cuh>
#include <deeprec/embedding/table_group.cuh>
#include <deeprec/embedding/update.cuh>
#include <deeprec/exec/cuda_stream_pool.hpp>
#include <deeprec/memory/cuda_memory.hpp>
#include <deeprec/ops/row_select.cuh>
#include <deeprec/optim/optimizers.hpp>

#if defined(DEEPREC_BENCH_CUEMBED)
#  include <cuembed/include/embedding_lookup.cuh>
#endif

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "support.hpp"

using namespace deeprec;
using namespace gpu_suite;

namespace {

constexpr int index_sets = 4;
using bags_type = jagged_view<std::int64_t, std::int64_t, device_space>;

__host__ __device__ float value_at(index_t row, index_t column) {
  return static_cast<float>((row * 31 + column * 7) % 61 - 30);
}

__global__ void fill_rows(float* table, index_t rows, index_t width, index_t stride) {
  const index_t n = rows * stride;
  for (index_t i = index_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n;
       i += index_t{gridDim.x} * blockDim.x) {
    table[i] = i % stride < width ? value_at(i / stride, i % stride) : 0.0F;
  }
}

/// Bytes a millisecond that a large copy within the card moves, read and written.
double copy_rate() {
  static const double rate = [] {
    const std::size_t bytes = std::size_t{1} << 30;
    device_array<char> from(bytes), to(bytes);
    cuda_stream stream;
    const double ms = milliseconds(stream.get(), 10, [&](int) {
      cuda_status(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, stream.get()))
          .or_throw();
    });
    return 2.0 * static_cast<double>(bytes) / ms;
  }();
  return rate;
}

struct table {
  table(index_t r, index_t d, index_t state = 0)
      : rows(r),
        format(d, {.state_floats = state}),
        memory(static_cast<std::size_t>(r * format.stride_bytes() / 4)) {
    reset();
  }
  void reset() {
    fill_rows<<<4096, 256>>>(memory.data(), rows, format.width(), format.stride_bytes() / 4);
    cuda_status(cudaDeviceSynchronize()).or_throw();
  }
  table_view<f32_rows, device_space> view() const {
    return {reinterpret_cast<std::byte*>(memory.data()), rows, format};
  }
  const_table_view<f32_rows, device_space> read_only() const { return view(); }
  index_t rows;
  f32_rows format;
  device_array<float> memory;
};

/// Bags of L ids each; `hot`: the share of all ids that row 0 takes.
struct index_set {
  index_set(std::uint64_t seed, index_t rows, index_t b, index_t l, double hot = 0)
      : bags(b),
        hotness(l),
        host(static_cast<std::size_t>(b * l)),
        ids(host.size()),
        offsets(static_cast<std::size_t>(b) + 1) {
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<double> unit(0, 1);
    for (auto& id : host) {
      id = hot > 0 && unit(random) < hot
               ? 0
               : static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(rows));
    }
    std::vector<std::int64_t> borders(static_cast<std::size_t>(b) + 1);
    for (std::size_t i = 0; i < borders.size(); ++i) borders[i] = static_cast<std::int64_t>(i) * l;
    ids.copy_from(host).or_throw();
    offsets.copy_from(borders).or_throw();
    cuda_status(cudaDeviceSynchronize()).or_throw();
  }
  bags_type view() const { return {offsets.data(), bags, ids.data(), bags * hotness}; }
  index_t unique() const {
    std::vector<std::int64_t> sorted = host;
    std::sort(sorted.begin(), sorted.end());
    return std::unique(sorted.begin(), sorted.end()) - sorted.begin();
  }
  index_t bags, hotness;
  std::vector<std::int64_t> host;
  device_array<std::int64_t> ids, offsets;
};

std::vector<index_set> make_sets(index_t rows, index_t bags, index_t hotness, double hot = 0,
                                 int count = index_sets) {
  std::vector<index_set> sets;
  for (int i = 0; i < count; ++i)
    sets.emplace_back(static_cast<std::uint64_t>(i) + 1, rows, bags, hotness, hot);
  return sets;
}

std::string sums_fault(const index_set& set, const float* out, index_t width, index_t stride) {
  std::vector<float> answer(static_cast<std::size_t>((set.bags - 1) * stride + width));
  cuda_status(cudaMemcpy(answer.data(), out, answer.size() * sizeof(float), cudaMemcpyDeviceToHost))
      .or_throw();
  for (index_t b = 0; b < set.bags; b += std::max<index_t>(1, set.bags / 64)) {
    for (index_t j = 0; j < width; j += 13) {
      float expected = 0;
      for (index_t k = b * set.hotness; k < (b + 1) * set.hotness; ++k) {
        expected += value_at(set.host[static_cast<std::size_t>(k)], j);
      }
      if (answer[static_cast<std::size_t>(b * stride + j)] != expected) {
        return "wrong answer: bag " + std::to_string(b) + ", column " + std::to_string(j);
      }
    }
  }
  return {};
}

// --- lookups
// -----------------------------------------------------------------------------------------------------

std::string lookup_large(benchmark::State& state) {
  const index_t rows = 10'000'000, width = 128, bags = 16'384, hotness = 20;
  const table source(rows, width);
  const auto sets = make_sets(rows, bags, hotness);
  device_array<float> out(static_cast<std::size_t>(bags * width));
  cuda_stream stream;
  const auto call = [&](int i) {
    lookup(stream, source.read_only(), sets[static_cast<std::size_t>(i % index_sets)].view(), sum,
           out.matrix(bags, width))
        .or_throw();
  };
  call(0);
  stream.synchronize().or_throw();
  if (std::string fault = sums_fault(sets[0], out.data(), width, width); !fault.empty()) return fault;
  const double ms = milliseconds(stream.get(), 20, call);
  const double bytes =
      static_cast<double>(bags) * static_cast<double>(hotness * (width * 4 + 8) + width * 4 + 8);
  state.counters["roofline"] = bytes / ms / copy_rate();
  state.counters["GB/s"] = bytes / ms / 1e6;
  return {};
}

std::string lookup_tbe(benchmark::State& state) {
  const index_t tables = 32, rows = 100'000, width = 128, bags = 512, hotness = 20;
  std::vector<table> sources;
  table_group<float, bags_type> group;
  for (index_t t = 0; t < tables; ++t) {
    sources.emplace_back(rows, width);
    group.add(sources.back().read_only(), sum);
  }
  const auto sets = make_sets(rows, bags, hotness, 0, static_cast<int>(tables) * index_sets);
  device_array<float> out(static_cast<std::size_t>(bags * group.total_width()));
  cuda_stream stream;
  std::vector<bags_type> batch(static_cast<std::size_t>(tables));
  const auto call = [&](int i) {
    for (index_t t = 0; t < tables; ++t) {
      batch[static_cast<std::size_t>(t)] =
          sets[static_cast<std::size_t>((i % index_sets) * tables + t)].view();
    }
    lookup(stream, group, std::span<const bags_type>(batch), out.matrix(bags, group.total_width()))
        .or_throw();
  };
  call(0);
  stream.synchronize().or_throw();
  for (index_t t = 0; t < tables; ++t) {
    const auto& set = sets[static_cast<std::size_t>(t)];
    std::string fault = sums_fault(set, out.data() + group.offset(t), width, group.total_width());
    if (!fault.empty()) return fault;
  }
  const double ms = milliseconds(stream.get(), 30, call);
  double bytes = 0;
  for (index_t t = 0; t < tables; ++t) {
    bytes += static_cast<double>(sets[static_cast<std::size_t>(t)].unique() * width * 4 +
                                 bags * hotness * 8 + bags * width * 4);
  }
  state.counters["roofline"] = bytes / ms / copy_rate();
  state.counters["GB/s"] = bytes / ms / 1e6;
  return {};
}

#if defined(DEEPREC_BENCH_CUEMBED)
std::string lookup_cuembed(benchmark::State& state) {
  double log_sum = 0;
  double least = 1e9;
  int cases = 0;
  for (const index_t width : {32, 128}) {
    const index_t rows = 1'000'000;
    const table source(rows, width);
    for (const index_t bags : {1024, 32768, 131072}) {
      for (const index_t hotness : {1, 16, 64}) {
        const auto sets = make_sets(rows, bags, hotness, 0, 2);
        device_array<float> out(static_cast<std::size_t>(bags * width)), theirs(out.size());
        cuda_stream stream;
        const auto ours_call = [&](int i) {
          lookup(stream, source.read_only(), sets[static_cast<std::size_t>(i % 2)].view(), sum,
                 out.matrix(bags, width))
              .or_throw();
        };
        const auto theirs_call = [&](int i) {
          const auto& set = sets[static_cast<std::size_t>(i % 2)];
          cuembed::EmbeddingForward<float, float, std::int64_t, std::int64_t>(
              source.memory.data(), static_cast<int>(width), set.ids.data(), set.offsets.data(), nullptr,
              static_cast<int>(bags), 0, cuembed::CombineMode::kSum, theirs.data(), stream.get());
        };
        ours_call(0);
        stream.synchronize().or_throw();
        if (std::string fault = sums_fault(sets[0], out.data(), width, width); !fault.empty()) return fault;
        const double ratio =
            milliseconds(stream.get(), 15, theirs_call) / milliseconds(stream.get(), 15, ours_call);
        log_sum += std::log(ratio);
        least = std::min(least, ratio);
        ++cases;
      }
    }
  }
  state.counters["speedup"] = least;
  state.counters["geomean"] = std::exp(log_sum / cases);
  return {};
}
#endif

// --- updates
// -----------------------------------------------------------------------------------------------------

template <class Optimizer>
double update_milliseconds(const Optimizer& optimizer, double hot, double& bytes, std::string& fault) {
  const index_t rows = 4'000'000, width = 128, bags = 32'768, hotness = 10;
  const index_t floats = Optimizer::row_state + Optimizer::element_state * width;
  table trained(rows, width, floats);
  const auto sets = make_sets(rows, bags, hotness, hot, 2);
  device_array<float> gradient(static_cast<std::size_t>(bags * width));
  fill_rows<<<4096, 256>>>(gradient.data(), bags, width, width);
  cuda_stream stream;
  const auto call = [&](int i) {
    update(stream, sets[static_cast<std::size_t>(i % 2)].view(), gradient.matrix(bags, width), sum,
           optimizer, trained.view())
        .or_throw();
  };
  if constexpr (std::is_same_v<Optimizer, sgd>) {  // a row of the batch, stepped once
    call(0);
    stream.synchronize().or_throw();
    const std::int64_t row = sets[0].host[5];
    std::vector<float> got(static_cast<std::size_t>(width));
    cuda_status(cudaMemcpy(got.data(), trained.memory.data() + row * trained.format.stride_bytes() / 4,
                           got.size() * 4, cudaMemcpyDeviceToHost))
        .or_throw();
    for (index_t j = 0; j < width; ++j) {
      double g = 0;
      for (std::size_t k = 0; k < sets[0].host.size(); ++k) {
        if (sets[0].host[k] == row)
          g += static_cast<double>(value_at(static_cast<index_t>(k) / hotness, j));
      }
      const double expected =
          static_cast<double>(value_at(row, j)) - static_cast<double>(optimizer.learning_rate) * g;
      if (std::fabs(static_cast<double>(got[static_cast<std::size_t>(j)]) - expected) >
          1e-3 * (1 + std::fabs(expected))) {
        fault = "wrong answer: row " + std::to_string(row);
      }
    }
    trained.reset();
  }
  const index_t unique = sets[0].unique();
  const int sort_passes = (detail::key_bits(rows) + 7) / 8;
  bytes = static_cast<double>(bags * width * 4) + 2.0 * static_cast<double>(unique * (width + floats) * 4) +
          static_cast<double>(sort_passes) * 2 * 8 * static_cast<double>(bags * hotness);
  return milliseconds(stream.get(), 15, call);
}

template <class Optimizer>
std::string update_share(benchmark::State& state) {
  double bytes = 0;
  std::string fault;
  const double ms = update_milliseconds(Optimizer{.learning_rate = 0.01F}, 0, bytes, fault);
  state.counters["roofline"] = bytes / ms / copy_rate();
  return fault;
}
std::string update_skewed(benchmark::State& state) {
  double bytes = 0;
  std::string fault;
  const double even = update_milliseconds(sgd{.learning_rate = 1e-4F}, 0, bytes, fault);
  const double skewed = update_milliseconds(sgd{.learning_rate = 1e-4F}, 0.1, bytes, fault);
  state.counters["slowdown"] = skewed / even;
  return fault;
}

// --- stages, streams, row_select
// ---------------------------------------------------------------------------------

std::string fused_26(benchmark::State& state) {
  const index_t tables = 26, rows = 100'000, width = 16, bags = 512, hotness = 10;
  std::vector<table> sources;
  table_group<float, bags_type> group;
  for (index_t t = 0; t < tables; ++t) {
    sources.emplace_back(rows, width);
    group.add(sources.back().read_only(), pooling{sum, prune});
  }
  const auto sets = make_sets(rows, bags, hotness, 0, static_cast<int>(tables));
  std::vector<bags_type> batch;
  for (const auto& set : sets) batch.push_back(set.view());
  device_array<float> out(static_cast<std::size_t>(bags * group.total_width())), by_ops(out.size());
  const std::size_t n = static_cast<std::size_t>(bags * hotness);
  device_array<index_t> offsets(static_cast<std::size_t>(bags) + 1), filled_offsets(offsets.size()),
      row_numbers(n + static_cast<std::size_t>(bags));
  device_array<std::int64_t> ids(n), filled_ids(row_numbers.size());
  device_array<std::uint8_t> empty(static_cast<std::size_t>(bags));
  device_array<float> gathered(row_numbers.size() * static_cast<std::size_t>(width));
  std::vector<index_t> numbers(row_numbers.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<index_t>(i);
  row_numbers.copy_from(numbers).or_throw();
  cuda_stream_pool pool(1);
  cuda_stream& stream = pool.stream(0);
  const auto fused = [&](cuda_stream& on) {
    return lookup(on, group, std::span<const bags_type>(batch), out.matrix(bags, group.total_width()));
  };
  // As DeepRec's ops do it: prune, fill, gather all rows, combine.
  const auto op_by_op = [&](cuda_stream& on) -> status {
    const device_bags<> pruned{offsets.data(), ids.data(), nullptr, bags, bags * hotness};
    const device_bags<> filled{filled_offsets.data(), filled_ids.data(), nullptr, bags,
                               static_cast<index_t>(filled_ids.size())};
    const auto wide = by_ops.matrix(bags, group.total_width());
    for (index_t t = 0; t < tables; ++t) {
      const auto source = sources[static_cast<std::size_t>(t)].read_only();
      if (status s = prune_invalid(on, batch[static_cast<std::size_t>(t)], by_id, pruned); !s) return s;
      if (status s = fill_empty_bags(on, pruned.view(), 0, filled, std::span(empty.data(), empty.size()));
          !s)
        return s;
      const auto rows_of = gathered.matrix(filled.room, width);
      if (status s = lookup(on, source, filled.view(), concat, rows_of); !s) return s;
      const bags_type numbered(filled.offsets, bags, row_numbers.data(), filled.room);
      if (status s = lookup(on, as_table(rows_of), numbered, sum, wide.columns(group.offset(t), width)); !s)
        return s;
    }
    return {};
  };
  stream_work work;
  work.add({});
  stream_plan plan;
  plan_streams(work, 1, plan).or_throw();
  op_by_op(stream).or_throw();
  fused(stream).or_throw();
  pool.synchronize().or_throw();
  for (const float* const answer : {out.data(), by_ops.data()}) {
    if (std::string fault = sums_fault(sets[0], answer, width, group.total_width()); !fault.empty())
      return fault;
  }
  const double one = milliseconds(stream.get(), 50, [&](int) { fused(stream).or_throw(); });
  const double many = milliseconds(stream.get(), 50, [&](int) {
    pool.replay(plan, [&](index_t, cuda_stream& on) { return op_by_op(on); }).or_throw();
  });
  state.counters["speedup"] = many / one;
  return {};
}

/// Towers of small lookups that no one of fills the card, then a join.
std::string streams(benchmark::State& state, bool graph) {
  const index_t towers = 8, steps = 6, rows = 50'000, width = 32, bags = 256, hotness = 32;
  const table source(rows, width);
  const auto sets = make_sets(rows, bags, hotness, 0, static_cast<int>(towers));
  device_array<float> out(static_cast<std::size_t>(towers * bags * width));
  stream_work work;
  for (index_t t = 0; t < towers; ++t) {
    index_t last = work.add({});
    for (index_t k = 1; k < steps; ++k) last = work.add({last});
  }
  const auto launch = [&](index_t op, cuda_stream& on) {
    const index_t t = op / steps;
    return lookup(on, source.read_only(), sets[static_cast<std::size_t>(t)].view(), sum,
                  matrix_view<float, device_space>(out.data() + t * bags * width, bags, width));
  };
  double ms[2] = {};
  for (const int n : {1, 4}) {
    cuda_stream_pool pool(n);
    stream_plan plan;
    plan_streams(work, n, plan).or_throw();
    pool.run(plan, launch).or_throw();
    pool.synchronize().or_throw();
    for (index_t t = 0; t < towers; ++t) {
      std::string fault =
          sums_fault(sets[static_cast<std::size_t>(t)], out.data() + t * bags * width, width, width);
      if (!fault.empty()) return fault;
    }
    ms[n == 1 ? 0 : 1] = milliseconds(pool.stream(0).get(), 40, [&](int) {
      (graph ? pool.replay(plan, launch) : pool.run(plan, launch)).or_throw();
    });
  }
  state.counters["speedup"] = ms[0] / ms[1];
  return {};
}
std::string streams_eager(benchmark::State& state) { return streams(state, false); }
std::string streams_graph(benchmark::State& state) { return streams(state, true); }

std::string select(benchmark::State& state) {
  const index_t rows = 2'000'000, width = 128;
  const table a(rows, width), b(rows, width);
  device_array<float> out(static_cast<std::size_t>(rows * width));
  std::vector<std::uint8_t> cond(static_cast<std::size_t>(rows));
  std::mt19937_64 random(1);
  for (auto& c : cond) c = random() % 2;
  device_array<std::uint8_t> flags(cond.size());
  flags.copy_from(cond).or_throw();
  cuda_stream stream;
  const auto call = [&](int) {
    row_select(stream, std::span<const std::uint8_t>(flags.data(), flags.size()),
               a.memory.matrix(rows, width), b.memory.matrix(rows, width), out.matrix(rows, width))
        .or_throw();
  };
  call(0);
  stream.synchronize().or_throw();
  std::vector<float> row(static_cast<std::size_t>(width));
  cuda_status(cudaMemcpy(row.data(), out.data() + 12'345 * width, row.size() * 4, cudaMemcpyDeviceToHost))
      .or_throw();
  for (index_t j = 0; j < width; ++j) {
    if (row[static_cast<std::size_t>(j)] != value_at(12'345, j)) return "wrong answer: row 12345";
  }
  const double bytes = 2.0 * static_cast<double>(rows * width * 4) + static_cast<double>(rows);
  state.counters["roofline"] = bytes / milliseconds(stream.get(), 20, call) / copy_rate();
  return {};
}

const bool enlisted = [] {
  enlist("gpu/lookup/large", lookup_large);
  enlist("gpu/lookup/tbe_default", lookup_tbe);
#if defined(DEEPREC_BENCH_CUEMBED)
  enlist("gpu/lookup/vs_cuembed", lookup_cuembed);
#endif
  enlist("gpu/update/sgd", update_share<sgd>);
  enlist("gpu/update/rowwise_adagrad", update_share<rowwise_adagrad>);
  enlist("gpu/update/adam", update_share<adam>);
  enlist("gpu/update/skewed", update_skewed);
  enlist("gpu/fused_lookup/26", fused_26);
  enlist("gpu/streams/eager", streams_eager);
  enlist("gpu/streams/graph", streams_graph);
  enlist("gpu/row_select", select);
  return true;
}();

}  // namespace
