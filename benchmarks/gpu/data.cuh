// Tables and batches of the GPU suites, and the look at every answer.
//
// Tables hold numbers that are small and exact, a function of row and column, so a kernel of a few lines
// knows each number of an answer without the table. Ids come in several sets in rotation, and tables are
// larger than the second-level cache where a claim is about memory.
#pragma once

#include <deeprec/core/jagged_view.hpp>
#include <deeprec/embedding/tables/table_view.hpp>
#include <deeprec/exec/cuda/warp_team.cuh>
#include <deeprec/memory/cuda_memory.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "support.hpp"

namespace gpu_suite {

using deeprec::cuda_status, deeprec::device_array, deeprec::device_space;

__host__ __device__ inline float value_at(index_t row, index_t column) {
  return static_cast<float>((row * 31 + column * 7) % 61 - 30);
}

/// A kernel over n things on a stream, at most some of them at once.
template <class... Parameters>
void for_all(index_t n, cudaStream_t on, void (*kernel)(Parameters...),
             const std::type_identity_t<Parameters>&... arguments) {
  const index_t blocks = std::min<index_t>((n + 255) / 256, 8192);
  deeprec::DEEPREC_DEVICE::launch_kernel(kernel, dim3(static_cast<unsigned>(std::max<index_t>(blocks, 1))),
                                         on, arguments...)
      .or_throw();
}
__device__ inline index_t thread_number() { return index_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ inline index_t thread_count() { return index_t{gridDim.x} * blockDim.x; }

template <class T>
__global__ void fill_rows(T* rows, index_t count, index_t width, index_t stride, float plus) {
  for (index_t i = thread_number(); i < count * stride; i += thread_count()) {
    rows[i] = static_cast<T>(i % stride < width ? value_at(i / stride, i % stride) + plus : 0.0F);
  }
}
/// Fills rows and waits; nothing else may use them.
template <class T>
void fill(T* rows, index_t count, index_t width, index_t stride, float plus = 0) {
  for_all(count * stride, nullptr, fill_rows<T>, rows, count, width, stride, plus);
  cuda_runtime::synchronize(nullptr).or_throw();
}

/// Bytes a millisecond that a large copy within the card moves, read and written.
inline double copy_rate() {
  static const double rate = [] {
    const std::size_t bytes = pick(std::size_t{1} << 30, std::size_t{1} << 16);
    device_array<char> from(bytes), to(bytes);
    deeprec::cuda_stream stream;
    const auto copy = [&](int) {
      cuda_status(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, stream.get()))
          .or_throw();
    };
    stopwatch watch(stream.get());
    watch.warm_up(copy);
    return 2.0 * static_cast<double>(bytes) / watch.device(10, 2, copy);
  }();
  return rate;
}

/// Rows of T, each begin a multiple of 16 bytes.
template <class T>
struct basic_table {
  using format_type = deeprec::plain_rows<T>;
  basic_table(index_t r, index_t d, index_t state = 0)
      : rows(r),
        format(d, {.state_floats = state,
                   .stride_bytes = (d * index_t{sizeof(T)} + state * index_t{sizeof(float)} + 15) / 16 * 16}),
        memory(static_cast<std::size_t>(r * stride())) {
    reset();
  }
  void reset() { fill(memory.data(), rows, format.width(), stride()); }
  index_t stride() const { return format.stride_bytes() / index_t{sizeof(T)}; }
  deeprec::table_view<format_type, device_space> view() const {
    return {reinterpret_cast<std::byte*>(memory.data()), rows, format};
  }
  deeprec::const_table_view<format_type, device_space> read_only() const { return view(); }
  index_t rows;
  format_type format;
  device_array<T> memory;
};
using table = basic_table<float>;

/// How ids are drawn.
struct drawn {
  double hot = 0;      ///< the share of all ids that row 0 takes
  double alpha = 0;    ///< the exponent of a power law, as in cuEmbed's sweep; 0: uniform
  double invalid = 0;  ///< the share of ids that are -1; never the first of a bag
};

/// Bags of L ids each.
template <class Id = std::int64_t>
struct basic_index_set {
  using bags_type = deeprec::jagged_view<Id, Id, device_space>;
  basic_index_set(std::uint64_t seed, index_t rows, index_t b, index_t l, drawn how = {})
      : bags(b), hotness(l), host(static_cast<std::size_t>(b * l)), ids(host.size()), offsets(count(b) + 1) {
    const auto draw = [&, this](std::size_t from, std::size_t to) {
      for (std::size_t k = from; k < to; ++k) host[k] = one(seed, k, rows, how);
    };
    const std::size_t threads = tiny ? 1 : std::max(1U, std::thread::hardware_concurrency());
    std::vector<std::thread> workers;
    for (std::size_t t = 1; t < threads; ++t) {
      workers.emplace_back(draw, host.size() * t / threads, host.size() * (t + 1) / threads);
    }
    draw(0, host.size() / threads);
    for (auto& w : workers) w.join();
    std::vector<Id> ranges(count(b) + 1);
    for (std::size_t i = 0; i < ranges.size(); ++i) ranges[i] = static_cast<Id>(static_cast<index_t>(i) * l);
    ids.copy_from(host).or_throw();
    offsets.copy_from(ranges).or_throw();
  }
  bags_type view() const { return {offsets.data(), bags, ids.data(), bags * hotness}; }
  /// The same batch without offsets.
  deeprec::fixed_hotness_view<Id, device_space> fixed() const { return {ids.data(), bags, hotness}; }
  /// Rows that are needed, and ids that stand for one.
  index_t unique() const {
    std::vector<Id> sorted = host;
    std::sort(sorted.begin(), sorted.end());
    const auto first = std::lower_bound(sorted.begin(), sorted.end(), Id{0});
    return std::unique(first, sorted.end()) - first;
  }
  index_t valid() const {
    return std::count_if(host.begin(), host.end(), [](Id id) { return id >= 0; });
  }
  /// Bytes of ids and offsets.
  double bytes() const { return static_cast<double>((ids.size() + offsets.size()) * sizeof(Id)); }
  index_t bags, hotness;
  std::vector<Id> host;
  device_array<Id> ids, offsets;

 private:
  static std::size_t count(index_t n) { return static_cast<std::size_t>(n); }
  static std::uint64_t mixed(std::uint64_t x) {
    for (int i = 0; i < 2; ++i) x = (x ^ (x >> 31)) * 0x9e6c63d0876a9a35U;
    return x ^ (x >> 33);
  }
  static Id one(std::uint64_t seed, std::size_t k, index_t rows, const drawn& how) {
    const std::uint64_t word = mixed(mixed(seed * 0x9e3779b97f4a7c15U) + k);
    const double unit = static_cast<double>(word >> 11) * 0x1p-53;
    const double other = static_cast<double>(mixed(word) >> 11) * 0x1p-53;
    if (how.invalid > 0 && k % 8 != 0 && other < how.invalid) return Id{-1};
    if (how.hot > 0 && other < how.hot) return Id{0};
    if (how.alpha == 0) return static_cast<Id>(unit * static_cast<double>(rows));
    const double g = 1 - how.alpha, most = std::pow(static_cast<double>(rows) + 1, g) - 1;
    const auto rank = std::min(static_cast<index_t>(std::pow(unit * most + 1, 1 / g)), rows) - 1;
    return static_cast<Id>(rank * 2'654'435'761 % rows);  // frequent rows don't lie side by side
  }
};
using index_set = basic_index_set<>;

template <class Id = std::int64_t>
std::vector<basic_index_set<Id>> make_sets(index_t rows, index_t bags, index_t hotness, int count,
                                           drawn how = {}) {
  std::vector<basic_index_set<Id>> sets;
  for (int i = 0; i < count; ++i)
    sets.emplace_back(static_cast<std::uint64_t>(i) + 1, rows, bags, hotness, how);
  return sets;
}
/// The set of call i.
template <class Sets>
auto& of_call(Sets& sets, int i) {
  return sets[static_cast<std::size_t>(i) % sets.size()];
}

// --- answers -------------------------------------------------------------------------------------

/// How many numbers are wrong, and one of them.
struct verdict {
  unsigned long long wrong;
  unsigned long long where;
};
__device__ inline void judge(verdict* v, bool right, index_t where) {
  if (!right && atomicAdd(&v->wrong, 1ULL) == 0) v->where = static_cast<unsigned long long>(where);
}

/// Waits for the device, has every number of an answer looked at by `look(stream, verdict*)`; empty, or what
/// is wrong.
template <class T, class Look>
std::string fault_of(const std::string& what, T* out, index_t count, const Look& look) {
  cuda_status(cudaDeviceSynchronize()).or_throw();
  if (spoils())
    out[count - 1] = static_cast<T>(static_cast<float>(out[count - 1]) + 1.0F);  // memory is the host's
  device_array<verdict> found(1);
  found.copy_from(std::vector<verdict>(1)).or_throw();
  look(static_cast<cudaStream_t>(nullptr), found.data());
  std::vector<verdict> answer(1);
  found.copy_to(answer).or_throw();
  if (answer[0].wrong == 0) return {};
  return "wrong answer: " + what + ": " + std::to_string(answer[0].wrong) + " numbers, one at " +
         std::to_string(answer[0].where);
}
/// Makes every number of an answer a NaN, so that one which nobody writes is found.
template <class T>
void poison(T* out, index_t count) {
  cuda_status(cudaDeviceSynchronize()).or_throw();
  cuda_status(cudaMemsetAsync(out, 0xff, static_cast<std::size_t>(count) * sizeof(T), nullptr)).or_throw();
  cuda_runtime::synchronize(nullptr).or_throw();
}

/// Sums of rows of value_at, ids below zero left out.
template <class Id, class T>
__global__ void look_at_sums(const Id* ids, const Id* offsets, index_t bags, index_t width, const T* out,
                             index_t stride, verdict* v) {
  for (index_t i = thread_number(); i < bags * width; i += thread_count()) {
    const index_t b = i / width, j = i % width;
    float expected = 0;
    for (index_t k = offsets[b]; k < offsets[b + 1]; ++k) {
      if (ids[k] >= 0) expected += value_at(static_cast<index_t>(ids[k]), j);
    }
    judge(v, static_cast<float>(out[b * stride + j]) == expected, i);
  }
}
template <class Id, class T>
std::string sums_fault(const std::string& what, const basic_index_set<Id>& set, T* out, index_t width,
                       index_t stride) {
  return fault_of(what, out, (set.bags - 1) * stride + width, [&](cudaStream_t on, verdict* v) {
    for_all(set.bags * width, on, look_at_sums<Id, T>, set.ids.data(), set.offsets.data(), set.bags, width,
            out, stride, v);
  });
}

}  // namespace gpu_suite
