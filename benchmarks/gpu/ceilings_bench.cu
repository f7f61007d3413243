// What the card's memory gives at most: a copy, and rows that are read in random order, by their bytes.
// Nothing is looked up, so a lookup can't be faster than this:
//
//   thread t   word t % words of the rows that its team has, R of them on their way at once; no ids, one
//              number out
//
// A call reads each row of 4 GB once. GB/s is that of the best of R = 4, 8, 16 and of 128, 256, 512 threads a
// block; each of the nine is a counter too.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "data.cuh"

using namespace deeprec;
using namespace gpu_suite;

namespace {

constexpr unsigned rounds = 8;  // of R rows, each thread

/// A number of n bits for each other one.
__device__ unsigned shuffled(unsigned k, int bits) {
  const unsigned mask = (1U << bits) - 1U;
  for (int i = 0; i < 2; ++i) {
    k ^= k >> (bits / 2 + 1);
    k = k * 0x9e6c63d1U & mask;
  }
  return k ^ (k >> (bits / 2 + 1));
}

__host__ __device__ unsigned word_of(unsigned row, unsigned word) { return (row * 3 + word * 7) % 61; }

__global__ void fill_words(unsigned* words, index_t count, unsigned in_row) {
  for (index_t i = thread_number(); i < count; i += thread_count()) {
    words[i] = word_of(static_cast<unsigned>(i / in_row), static_cast<unsigned>(i % in_row));
  }
}

/// 2^bits rows of `words` times 16 bytes; a power of two. sums[t] is that of all that thread t has read.
template <int R>
__global__ void __launch_bounds__(512)
    read_rows(const uint4* rows, int bits, unsigned words, unsigned* sums) {
  const auto thread = static_cast<unsigned>(thread_number());
  const unsigned team = thread / words, teams = static_cast<unsigned>(thread_count()) / words;
  unsigned sum = 0;
  for (unsigned first = team; first >> bits == 0; first += teams * R) {
    uint4 read[R];
#pragma unroll
    for (int i = 0; i < R; ++i) {
      const unsigned k = first + static_cast<unsigned>(i) * teams;
      read[i] = uint4{0, 0, 0, 0};
      if (k >> bits == 0) read[i] = __ldg(rows + std::size_t{shuffled(k, bits)} * words + thread % words);
    }
#pragma unroll
    for (int i = 0; i < R; ++i) sum += read[i].x + read[i].y + read[i].z + read[i].w;
  }
  sums[thread] = sum;
}

class reader {
 public:
  explicit reader(unsigned row_bytes)
      : words_(row_bytes / 16), memory_(pick(std::size_t{1} << 30, std::size_t{64} * row_bytes / 4)) {
    while ((memory_.size() * 4 / row_bytes) >> (bits_ + 1) != 0) ++bits_;
    for_all(static_cast<index_t>(memory_.size()), nullptr, fill_words, memory_.data(),
            static_cast<index_t>(memory_.size()), row_bytes / 4);
    cuda_runtime::synchronize(nullptr).or_throw();
    for (unsigned row = 0; row < 61; ++row) {  // they come again every 61 rows
      const std::uint64_t times = ((std::uint64_t{1} << bits_) + 60 - row) / 61;
      for (unsigned word = 0; word < words_ * 4; ++word) expected_ += times * word_of(row, word);
    }
  }
  double bytes() const { return static_cast<double>(memory_.size()) * 4; }

  template <int R>
  void read(unsigned threads, cudaStream_t on) {
    const unsigned in_all = std::max((1U << bits_) / (R * rounds), 1U) * words_;
    const unsigned blocks = (in_all + threads - 1) / threads;
    if (sums_.size() != std::size_t{blocks} * threads)
      sums_ = device_array<unsigned>(std::size_t{blocks} * threads);
    cudaLaunchConfig_t shape{};
    shape.gridDim = dim3(blocks);
    shape.blockDim = dim3(threads);
    shape.stream = on;
    const uint4* const rows = reinterpret_cast<const uint4*>(memory_.data());
    cuda_status(cudaLaunchKernelEx(&shape, read_rows<R>, rows, bits_, words_, sums_.data())).or_throw();
  }
  std::string fault() {
    cuda_status(cudaDeviceSynchronize()).or_throw();
    std::vector<unsigned> sums(sums_.size());
    sums_.copy_to(sums).or_throw();
    if (spoils()) ++sums.back();
    const auto sum = std::accumulate(sums.begin(), sums.end(), std::uint64_t{0});
    if (sum == expected_) return {};
    return "wrong answer: rows sum to " + std::to_string(sum) + ", not " + std::to_string(expected_);
  }

 private:
  unsigned words_;
  device_array<unsigned> memory_;
  device_array<unsigned> sums_{1};
  int bits_ = 0;
  std::uint64_t expected_ = 0;
};

template <int R>
std::string measure_at(benchmark::State& state, reader& rows, double& best) {
  for (const unsigned threads : {128U, 256U, 512U}) {
    cuda_stream stream;
    const auto call = [&](int) { rows.read<R>(threads, stream.get()); };
    call(0);
    if (std::string wrong = rows.fault(); !wrong.empty()) return wrong;
    stopwatch watch(stream.get());
    watch.warm_up(call, 20);
    const double rate = rows.bytes() / watch.device(9, 2, call);
    if (std::string wrong = rows.fault(); !wrong.empty()) return wrong;
    state.counters["r" + std::to_string(R) + "_t" + std::to_string(threads)] = rate / 1e6;
    best = std::max(best, rate);
  }
  return {};
}

template <unsigned Bytes>
std::string gather(benchmark::State& state) {
  reader rows(Bytes);
  double best = 0;
  std::string wrong = measure_at<4>(state, rows, best);
  if (wrong.empty()) wrong = measure_at<8>(state, rows, best);
  if (wrong.empty()) wrong = measure_at<16>(state, rows, best);
  state.counters["GB/s"] = best / 1e6;
  state.counters["of_copy"] = best / copy_rate();
  return wrong;
}

__global__ void look_at_copy(const float* numbers, index_t count, verdict* v) {
  for (index_t i = thread_number(); i < count; i += thread_count())
    judge(v, numbers[i] == value_at(i / 100, i % 100), i);
}

std::string copy(benchmark::State& state) {
  const index_t numbers = pick(index_t{1} << 28, index_t{500});
  device_array<float> from(static_cast<std::size_t>(numbers)), to(from.size());
  fill(from.data(), numbers / 100, 100, 100);
  const auto fault = [&] {
    const auto look = [&](cudaStream_t on, verdict* v) {
      for_all(numbers / 100 * 100, on, look_at_copy, to.data(), numbers / 100 * 100, v);
    };
    return fault_of("copy", to.data(), numbers / 100 * 100, look);
  };
  cuda_stream stream;
  const auto call = [&](int) {
    cuda_status(
        cudaMemcpyAsync(to.data(), from.data(), from.size() * 4, cudaMemcpyDeviceToDevice, stream.get()))
        .or_throw();
  };
  poison(to.data(), numbers);
  call(0);
  if (std::string wrong = fault(); !wrong.empty()) return wrong;
  poison(to.data(), numbers);
  stopwatch watch(stream.get());
  watch.warm_up(call);
  state.counters["GB/s"] = 2.0 * static_cast<double>(from.size() * 4) / watch.device(10, 2, call) / 1e6;
  return fault();
}

const bool enlisted = [] {
  enlist("gpu/ceilings/copy", copy);
  enlist("gpu/ceilings/gather/32", gather<32>, 1);
  enlist("gpu/ceilings/gather/64", gather<64>, 1);
  enlist("gpu/ceilings/gather/128", gather<128>, 1);
  enlist("gpu/ceilings/gather/256", gather<256>, 1);
  enlist("gpu/ceilings/gather/512", gather<512>, 1);
  enlist("gpu/ceilings/gather/1024", gather<1024>, 1);
  return true;
}();

}  // namespace
