// Sweeps of lookups: over formats, D, L and what the batch says of its bags, and over the stride of int8
// rows. The counters are compulsory bytes, as in lookup_bench.cu, over the copy bandwidth:
//
//   d128_l20_jagged   D = 128, L = 20, offsets     long bags may come, so their chunks are looked for first
//   d128_l20_fixed    the same ids, no offsets     one launch
//
// least and mean are those of all. 1.3 million ids of 10 million rows at once.

#include <benchmark/benchmark.h>

#include <deeprec/embedding/lookup/lookup.cuh>
#include <deeprec/embedding/tables/quantized_rows.hpp>

#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "data.cuh"

using namespace deeprec;
using namespace gpu_suite;

namespace {

constexpr index_t row_count = pick<index_t>(10'000'000, 300);
constexpr index_t ids_at_once = pick<index_t>(1'310'720, 120);

/// What is stored of value_at: e4m3 rounds it.
template <class Format>
__host__ __device__ float stored_value(index_t row, index_t column) {
  using element = typename Format::element;
  if constexpr (std::is_same_v<Format, int8_rows>) {
    return value_at(row, column);
  } else {
    return static_cast<float>(static_cast<element>(value_at(row, column)));
  }
}

template <class Format>
__global__ void write_rows(std::byte* rows, index_t count, const __grid_constant__ Format format) {
  const index_t width = format.width(), stride = format.stride_bytes();
  for (index_t i = thread_number(); i < count * width; i += thread_count()) {
    const index_t row = i / width, column = i % width;
    std::byte* const at = rows + row * stride;
    if constexpr (std::is_same_v<Format, int8_rows>) {  // code - 30
      at[format.parts().values + column] =
          static_cast<std::byte>(static_cast<int>(value_at(row, column)) + 30);
      if (column == 0) {
        float* const others = static_cast<float*>(static_cast<void*>(at + format.parts().others));
        others[0] = 1.0F;
        others[1] = -30.0F;
      }
    } else {
      using element = typename Format::element;
      static_cast<element*>(static_cast<void*>(at))[column] = static_cast<element>(value_at(row, column));
    }
  }
}

template <class Format>
__global__ void look_at(const std::int64_t* ids, index_t bags, index_t hotness, index_t width,
                        const float* out, verdict* v) {
  for (index_t i = thread_number(); i < bags * width; i += thread_count()) {
    const index_t b = i / width, j = i % width;
    float expected = 0;
    for (index_t k = b * hotness; k < (b + 1) * hotness; ++k) expected += stored_value<Format>(ids[k], j);
    judge(v, out[i] == expected, i);
  }
}

template <class Format>
struct source {
  explicit source(Format f) : format(f), memory(static_cast<std::size_t>(row_count * f.stride_bytes())) {
    for_all(row_count * format.width(), nullptr, write_rows<Format>, memory.data(), row_count, format);
    cuda_runtime::synchronize(nullptr).or_throw();
  }
  const_table_view<Format, device_space> view() const { return {memory.data(), row_count, format}; }
  Format format;
  device_array<std::byte> memory;
};

struct batch_type {
  explicit batch_type(index_t hotness)
      : sets(make_sets(row_count, std::max<index_t>(ids_at_once / hotness, 1), hotness, 3)) {
    for (const auto& set : sets) rows += static_cast<double>(set.unique()) / static_cast<double>(sets.size());
  }
  std::vector<index_set> sets;
  double rows = 0;  // that a batch needs
};

struct shares {
  double least = 1e9, sum = 0;
  int count = 0;
};

/// Times one case, and looks at its answer before and after.
template <class Format>
std::string one(benchmark::State& state, shares& all, const source<Format>& table, const batch_type& batch,
                bool fixed, const std::string& name) {
  const index_t bags = batch.sets[0].bags, hotness = batch.sets[0].hotness, width = table.format.width();
  device_array<float> out(static_cast<std::size_t>(bags * width));
  cuda_stream stream;
  const auto call = [&](int i) {
    const index_set& set = of_call(batch.sets, i);
    if (fixed) {
      const fixed_hotness_view<std::int64_t, device_space> view(set.ids.data(), bags, hotness);
      lookup(stream, table.view(), view, combiner::sum, out.matrix(bags, width)).or_throw();
    } else {
      lookup(stream, table.view(), set.view(), combiner::sum, out.matrix(bags, width)).or_throw();
    }
  };
  const auto fault = [&](int i) {
    stream.synchronize().or_throw();
    return fault_of(name, out.data(), bags * width, [&](cudaStream_t on, verdict* v) {
      for_all(bags * width, on, look_at<Format>, of_call(batch.sets, i).ids.data(), bags, hotness, width,
              out.data(), v);
    });
  };
  poison(out.data(), bags * width);
  call(0);
  if (std::string wrong = fault(0); !wrong.empty()) return wrong;
  poison(out.data(), bags * width);
  stopwatch watch(stream.get());
  watch.warm_up(call, 20);
  const double ms = watch.device(9, 4, call);
  if (std::string wrong = fault(watch.last()); !wrong.empty()) return wrong;
  const double ranges = fixed ? 0 : static_cast<double>((bags + 1) * 8);
  const double bytes = batch.rows * static_cast<double>(table.format.row_bytes()) +
                       static_cast<double>(bags * width * 4 + bags * hotness * 8) + ranges;
  const double share = bytes / ms / copy_rate();
  state.counters[name] = share;
  all.least = std::min(all.least, share);
  all.sum += share;
  ++all.count;
  return {};
}

std::string told(benchmark::State& state, const shares& all) {
  state.counters["least"] = all.least;
  state.counters["mean"] = all.sum / all.count;
  return {};
}

template <class Format>
std::string grid(benchmark::State& state) {
  shares all;
  std::vector<batch_type> batches;
  for (const index_t hotness : {1, 5, 20, 100}) batches.emplace_back(hotness);
  for (const index_t width : {16, 32, 64, 128, 256}) {
    const source<Format> table{Format(width)};
    for (const auto& batch : batches) {
      for (const bool fixed : {false, true}) {
        const std::string name = "d" + std::to_string(width) + "_l" + std::to_string(batch.sets[0].hotness) +
                                 (fixed ? "_fixed" : "_jagged");
        if (std::string wrong = one(state, all, table, batch, fixed, name); !wrong.empty()) return wrong;
      }
    }
  }
  return told(state, all);
}

/// int8, D = 128, L = 20: rows behind each other, from multiples of 16 bytes, of 32.
std::string strides(benchmark::State& state) {
  shares all;
  const batch_type batch(20);
  for (const scale_bias place : {scale_bias::last, scale_bias::first}) {
    for (const index_t stride : {136, 144, 160}) {
      const source<int8_rows> table{int8_rows(128, {.place = place, .stride_bytes = stride})};
      const std::string name = (place == scale_bias::first ? "first_" : "last_") + std::to_string(stride);
      if (std::string wrong = one(state, all, table, batch, true, name); !wrong.empty()) return wrong;
    }
  }
  return told(state, all);
}

const bool enlisted = [] {
  enlist("gpu/tune/lookup/f32", grid<f32_rows>, 1);
  enlist("gpu/tune/lookup/f16", grid<f16_rows>, 1);
  enlist("gpu/tune/lookup/bf16", grid<bf16_rows>, 1);
  enlist("gpu/tune/lookup/e4m3", grid<e4m3_rows>, 1);
  enlist("gpu/tune/lookup/int8", grid<int8_rows>, 1);
  enlist("gpu/tune/lookup/int8_strides", strides, 1);
  return true;
}();

}  // namespace
