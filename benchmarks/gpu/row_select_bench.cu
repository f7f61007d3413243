// row_select against the copy bandwidth of the card, measured in the same run.

#include <benchmark/benchmark.h>

#include <deeprec/ops/row_select.cuh>

#include <random>
#include <string>
#include <vector>

#include "data.cuh"

using namespace deeprec;
using namespace gpu_suite;

namespace {

constexpr float apart = 100;  // what the rows of the other table are more

__global__ void look_at_rows(const std::uint8_t* cond, index_t rows, index_t width, const float* out,
                             verdict* v) {
  for (index_t i = thread_number(); i < rows * width; i += thread_count()) {
    judge(v, out[i] == value_at(i / width, i % width) + (cond[i / width] != 0 ? 0.0F : apart), i);
  }
}

std::string select(benchmark::State& state) {
  const index_t rows = pick(2'000'000, 77), width = pick(128, 20), numbers = rows * width;
  device_array<float> a(static_cast<std::size_t>(numbers)), b(a.size()), out(a.size());
  fill(a.data(), rows, width, width);
  fill(b.data(), rows, width, width, apart);
  std::vector<device_array<std::uint8_t>> conditions;
  std::mt19937_64 random(1);
  for (int i = 0; i < 2; ++i) {
    std::vector<std::uint8_t> cond(static_cast<std::size_t>(rows));
    for (auto& c : cond) c = static_cast<std::uint8_t>(random() % 2);
    conditions.emplace_back(cond.size());
    conditions.back().copy_from(cond).or_throw();
  }
  cuda_stream stream;
  const auto call = [&](int i) {
    const auto& cond = of_call(conditions, i);
    row_select(stream, cond.view(), a.matrix(rows, width), b.matrix(rows, width), out.matrix(rows, width))
        .or_throw();
  };
  const auto fault = [&](int i) {
    stream.synchronize().or_throw();
    return fault_of("rows", out.data(), numbers, [&](cudaStream_t on, verdict* v) {
      for_all(numbers, on, look_at_rows, of_call(conditions, i).data(), rows, width, out.data(), v);
    });
  };
  for (const int i : {0, 1}) {
    poison(out.data(), numbers);
    call(i);
    if (std::string wrong = fault(i); !wrong.empty()) return wrong;
  }
  poison(out.data(), numbers);
  stopwatch watch(stream.get());
  watch.warm_up(call);
  const figure ms = watch.device(21, 2, call);
  if (std::string wrong = fault(watch.last()); !wrong.empty()) return wrong;
  const double bytes = 2.0 * static_cast<double>(numbers * 4) + static_cast<double>(rows);
  tell(state, "roofline", over(bytes / copy_rate(), ms));
  state.counters["GB/s"] = bytes / ms / 1e6;
  state.counters["late"] = watch.late();
  return {};
}

const bool enlisted = [] {
  enlist("gpu/row_select", select);
  return true;
}();

}  // namespace
