// Updates of a table by a batch of a million ids. Bytes are the compulsory ones: the gradient of the output
// once, each different row and its state read and written once, ids and offsets; what sorting moves is not
// among them.

#include <benchmark/benchmark.h>

#include <deeprec/embedding/training/update.cuh>
#include <deeprec/optim/optimizers.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include "data.cuh"

using namespace deeprec;
using namespace gpu_suite;

namespace {

// --- the oracle: one step from the table as it was filled, state zero ----------------------------

/// Sums of a row's gradients are whole numbers below 2^24, so any order of adding gives their bits.
__global__ void add_gradients(const std::int64_t* ids, index_t n, index_t hotness, index_t width, float* sums,
                              unsigned* touched) {
  for (index_t i = thread_number(); i < n * width; i += thread_count()) {
    const index_t k = i / width, j = i % width, row = ids[k];
    atomicAdd(&sums[row * width + j], value_at(k / hotness, j));
    if (j == 0) atomicAdd(&touched[row], 1U);
  }
}

struct oracle {
  enum what { sgd, rowwise_adagrad, adam } rule;
  double rate, epsilon, beta1, beta2;
};
oracle oracle_of(const sgd& o) { return {oracle::sgd, static_cast<double>(o.learning_rate), 0, 0, 0}; }
oracle oracle_of(const rowwise_adagrad& o) {
  return {oracle::rowwise_adagrad, static_cast<double>(o.learning_rate), static_cast<double>(o.epsilon), 0,
          0};
}
oracle oracle_of(const adam& o) {
  return {oracle::adam, static_cast<double>(o.learning_rate), static_cast<double>(o.epsilon),
          static_cast<double>(o.beta1), static_cast<double>(o.beta2)};
}

__device__ bool is_near(float got, double expected, double step) {
  const double difference = static_cast<double>(got) - expected;
  const double bound = 1e-4 * (step < 0 ? -step : step) + 2e-7 * (expected < 0 ? -expected : expected);
  return difference <= bound && -difference <= bound;  // not a NaN
}

/// Every float of every row: weights, then state; rows that the batch does not name are as they were.
__global__ void look_at_steps(oracle o, const float* sums, const unsigned* touched, index_t rows,
                              index_t width, index_t state, index_t stride, const float* got, verdict* v) {
  for (index_t i = thread_number(); i < rows * (width + state); i += thread_count()) {
    const index_t row = i / (width + state), at = i % (width + state);
    const float* const g = sums + row * width;
    const double before = at < width ? static_cast<double>(value_at(row, at)) : 0;
    double step = 0;  // what is added
    if (touched[row] != 0) {
      if (o.rule == oracle::sgd) {
        step = -o.rate * static_cast<double>(g[at]);
      } else if (o.rule == oracle::rowwise_adagrad) {
        double squares = 0;
        for (index_t j = 0; j < width; ++j) squares += static_cast<double>(g[j]) * static_cast<double>(g[j]);
        squares /= static_cast<double>(width);
        step = at < width ? -o.rate * static_cast<double>(g[at]) / (sqrt(squares) + o.epsilon) : squares;
      } else {
        const double x = static_cast<double>(g[at % width]);
        if (at < width) {
          step = -o.rate * x / ((x < 0 ? -x : x) + o.epsilon);
        } else {
          step = at < 2 * width ? (1 - o.beta1) * x : (1 - o.beta2) * x * x;
        }
      }
    }
    judge(v, is_near(got[row * stride + at], before + step, step), i);
  }
}

// --- the suite -----------------------------------------------------------------------------------

template <class Optimizer>
struct trainer {
  static constexpr index_t hotness = 16;
  Optimizer optimizer;
  index_t rows = pick(4'000'000, 90), width = pick(128, 20), bags = pick(65'536, 40);
  index_t floats = Optimizer::row_state + Optimizer::element_state * width;
  table trained{rows, width, floats};
  device_array<float> gradient{static_cast<std::size_t>(bags * width)};
  cuda_stream stream;
  stopwatch watch{stream.get()};

  explicit trainer(Optimizer o) : optimizer(o) { fill(gradient.data(), bags, width, width); }
  trainer(Optimizer o, index_t d, index_t b) : optimizer(o), width(d), bags(b) {
    fill(gradient.data(), bags, width, width);
  }

  void step(const index_set& set) {
    update(stream, trained.view(), set.view(), combiner::sum, gradient.matrix(bags, width), optimizer)
        .or_throw();
  }
  /// One step from the begin, and each float of the table.
  std::string fault(const std::string& name, const index_set& set) {
    stream.synchronize().or_throw();
    trained.reset();
    step(set);
    stream.synchronize().or_throw();
    device_array<float> sums(static_cast<std::size_t>(rows * width));
    device_array<unsigned> touched(static_cast<std::size_t>(rows));
    cuda_status(cudaMemsetAsync(sums.data(), 0, sums.size() * sizeof(float), nullptr)).or_throw();
    cuda_status(cudaMemsetAsync(touched.data(), 0, touched.size() * sizeof(unsigned), nullptr)).or_throw();
    for_all(bags * hotness * width, nullptr, add_gradients, set.ids.data(), bags * hotness, hotness, width,
            sums.data(), touched.data());
    const index_t stride = trained.stride();
    return fault_of(name, trained.memory.data(), (rows - 1) * stride + width + floats,
                    [&](cudaStream_t on, verdict* v) {
                      for_all(rows * (width + floats), on, look_at_steps, oracle_of(optimizer), sums.data(),
                              touched.data(), rows, width, floats, stride, trained.memory.data(), v);
                    });
  }
  double bytes(const index_set& set) const {
    return static_cast<double>(bags * width * 4) +
           2.0 * static_cast<double>(set.unique() * (width + floats) * 4) + set.bytes();
  }
};

template <class Optimizer>
std::string share(benchmark::State& state) {
  trainer<Optimizer> with(Optimizer{.learning_rate = 0.01F});
  const auto sets = make_sets(with.rows, with.bags, with.hotness, 3);
  const auto call = [&](int i) { with.step(of_call(sets, i)); };
  if (std::string wrong = with.fault("before timing", sets[0]); !wrong.empty()) return wrong;
  with.watch.warm_up(call);
  const figure ms = with.watch.device(21, 3, call);
  if (std::string wrong = with.fault("after timing", sets[1]); !wrong.empty()) return wrong;
  double bytes = 0;
  for (const auto& set : sets) bytes += with.bytes(set) / static_cast<double>(sets.size());
  tell(state, "roofline", over(bytes / copy_rate(), ms));
  state.counters["GB/s"] = bytes / ms / 1e6;
  state.counters["ms"] = ms.median;
  state.counters["late"] = with.watch.late();
  return {};
}

std::string skewed(benchmark::State& state) {
  trainer<sgd> with(sgd{.learning_rate = 1e-4F});
  const auto even = make_sets(with.rows, with.bags, with.hotness, 3);
  const auto hot = make_sets(with.rows, with.bags, with.hotness, 3, {.hot = 0.1});
  const auto even_call = [&](int i) { with.step(of_call(even, i)); };
  const auto hot_call = [&](int i) { with.step(of_call(hot, i)); };
  for (const auto* const sets : {&even, &hot}) {
    if (std::string wrong = with.fault("before timing", (*sets)[0]); !wrong.empty()) return wrong;
  }
  with.watch.warm_up(even_call);
  with.watch.warm_up(hot_call);
  tell(state, "slowdown",
       ratio_in_turns(
           21, [&] { return with.watch.device_once(3, hot_call); },
           [&] { return with.watch.device_once(3, even_call); }));
  state.counters["late"] = with.watch.late();
  return with.fault("after timing", hot[1]);
}

/// The same over D, the number of ids and how they are drawn: shares of the copy bandwidth.
template <class Optimizer>
std::string tune(benchmark::State& state) {
  struct {
    const char* name;
    drawn how;
  } const draws[] = {{"uniform", {}}, {"zipf", {.alpha = 1.05}}, {"hot", {.hot = 0.1}}};
  double least = 1e9;
  for (const index_t width : {16, 64, pick(128, 20)}) {
    for (const index_t bags :
         {pick<index_t>(4096, 3), pick<index_t>(65'536, 40), pick<index_t>(1 << 20, 50)}) {
      trainer<Optimizer> with(Optimizer{.learning_rate = 1e-4F}, width, bags);
      for (const auto& [name, how] : draws) {
        const auto sets = make_sets(with.rows, bags, with.hotness, bags < 100'000 ? 3 : 1, how);
        const std::string which = "d" + std::to_string(width) + "_n" + std::to_string(bags * with.hotness) +
                                  "_" + std::string(name);
        if (std::string wrong = with.fault(which, sets[0]); !wrong.empty()) return wrong;
        const auto call = [&](int i) { with.step(of_call(sets, i)); };
        with.watch.warm_up(call, 20);
        const double ms = with.watch.device(7, 3, call);
        if (std::string wrong = with.fault(which, of_call(sets, 1)); !wrong.empty()) return wrong;
        double bytes = 0;
        for (const auto& set : sets) bytes += with.bytes(set) / static_cast<double>(sets.size());
        state.counters[which] = bytes / ms / copy_rate();
        least = std::min(least, bytes / ms / copy_rate());
      }
    }
  }
  state.counters["least"] = least;
  return {};
}

const bool enlisted = [] {
  enlist("gpu/update/sgd", share<sgd>);
  enlist("gpu/update/rowwise_adagrad", share<rowwise_adagrad>);
  enlist("gpu/update/adam", share<adam>);
  enlist("gpu/update/skewed", skewed);
  enlist("gpu/tune/update/sgd", tune<sgd>, 1);
  enlist("gpu/tune/update/adam", tune<adam>, 1);
  return true;
}();

}  // namespace
