// Dense parameters that all ranks have: 60 tensors of 1 to 64 KB, 0.95 MB in all, SGD.
//
//   sharding/dense/n2        two ranks under MPI, a processor each. speedup: over dense_step, whose buckets
//                            are as large as the link wants, the time of an MPI_Allreduce for each tensor
//                            (each) or of all of them in one buffer (joined), and a step of all parameters
//   sharding/dense/net       four hosts with links of 200 Mbit, 2 MB in four tensors. over_engine: the time
//                            of dense_step over that of an MPI_Allreduce of all and a step of all parameters
//   sharding/dense/bytes     4 ranks that are threads, counted: bytes that a rank sends over those of a ring,
//                            2 (n - 1) / n of the parameters (over_ring), and how many times fewer messages
//                            than a ring for each tensor sends (fewer_messages)
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <deeprec/comm/thread_ranks.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/optimizers.hpp>
#include <deeprec/sharding/dense_step.hpp>

#include "sharding/rank_processes.hpp"
#include "support/figures.hpp"

namespace {

using namespace deeprec;

std::vector<std::size_t> sizes() {
  std::vector<std::size_t> bytes;
  for (int t = 0; t < 60; ++t)
    bytes.push_back(static_cast<std::size_t>(256 * std::pow(64.0, (t * 7 % 60) / 59.0)) * sizeof(float));
  return bytes;
}

void dense_n2(benchmark::State& state) {
  if (usable_cpus().size() < 2) return state.SkipWithError("unfit: one CPU");
  std::string words;
  for (const std::size_t bytes : sizes()) words += " " + std::to_string(bytes);
  for (auto _ : state) {
    deeprec_bench::figures f("sharding/dense/n2");
    deeprec_bench::rank_processes ranks(2, "dense 16" + words);
    std::vector<double> seconds;
    f.sample([&] {
      if (!ranks.round(seconds)) return;
      f.add("speedup", seconds[0] / seconds[2], "each");
      f.add("speedup", seconds[1] / seconds[2], "joined");
      f.note("by_engine", seconds[1] / seconds[3]);
      f.note("us", seconds[2] * 1e6);
      f.note("buckets", seconds[4]);
    });
    if (!ranks.problem().empty()) return state.SkipWithError(ranks.problem().c_str());
    f.report(state);
  }
}
BENCHMARK(dense_n2)->Name("sharding/dense/n2")->Iterations(1)->UseManualTime();

void dense_net(benchmark::State& state) {
  for (auto _ : state) {
    deeprec_bench::figures f("sharding/dense/net");
    deeprec_bench::rank_processes ranks(4, "dense 1 524288 524288 524288 524288", "200mbit");
    std::vector<double> seconds;
    f.sample([&] {
      if (!ranks.round(seconds)) return;
      f.add("over_engine", seconds[2] / seconds[1]);
      f.note("ms", seconds[2] * 1e3);
      f.note("engine_ms", seconds[1] * 1e3);
    });
    if (!ranks.problem().empty()) return state.SkipWithError(ranks.problem().c_str());
    f.report(state);
  }
}
BENCHMARK(dense_net)->Name("sharding/dense/net")->Iterations(1)->UseManualTime();

/// A communicator that counts what its rank sends.
class counted_rank {
 public:
  using space = host_space;
  struct sent {
    std::uint64_t messages = 0, bytes = 0;
  };

  counted_rank(thread_rank<> inner, sent& count) : inner_(std::move(inner)), count_(&count) {}
  [[nodiscard]] int rank() const noexcept { return inner_.rank(); }
  [[nodiscard]] int size() const noexcept { return inner_.size(); }
  [[nodiscard]] int most_in_flight() const noexcept { return inner_.most_in_flight(); }
  [[nodiscard]] status begin(exchange& x) {
    const status s = inner_.begin(x);
    for (int r = 0; s.ok() && r < size(); ++r) {
      if (r == rank()) continue;
      ++count_->messages;
      count_->bytes += x.to[static_cast<std::size_t>(r)].size();
    }
    return s;
  }
  [[nodiscard]] queue_result poll(exchange& x) { return inner_.poll(x); }
  [[nodiscard]] queue_result wait(exchange& x, const wait_limit& limit) { return inner_.wait(x, limit); }
  [[nodiscard]] rank_list awaited(const exchange& x) const { return inner_.awaited(x); }
  void abandon(const status& why) { inner_.abandon(why); }
  [[nodiscard]] result<counted_rank> duplicate() {
    return counted_rank(inner_.duplicate().or_throw(), *count_);
  }
  [[nodiscard]] result<counted_rank> split(int color, int key, const wait_limit& limit) {
    return counted_rank(inner_.split(color, key, limit).or_throw(), *count_);
  }

 private:
  thread_rank<> inner_;
  sent* count_;
};

/// What rank 0 sends in a step.
counted_rank::sent sent_in_a_step(const std::vector<std::size_t>& bytes, int n) {
  thread_ranks<> all(n);
  std::vector<counted_rank::sent> counts(static_cast<std::size_t>(n));
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r) {
    threads.emplace_back([&, r] {
      counted_rank::sent& count = counts[static_cast<std::size_t>(r)];
      std::vector<std::vector<float>> values;
      std::vector<dense_tensor> list;
      for (const std::size_t b : bytes) {
        const auto width = static_cast<index_t>(b / sizeof(float));
        values.emplace_back(static_cast<std::size_t>(width));
        float* const p = values.back().data();
        values.emplace_back(static_cast<std::size_t>(width));
        list.push_back(
            {matrix_view<float>(p, 1, width), matrix_view<const float>(values.back().data(), 1, width)});
      }
      auto dense = dense_step<sgd, counted_rank>::make(counted_rank(all.rank(r), count), list,
                                                       {.bucket_bytes = 256 << 10})
                       .or_throw();
      count = {};
      dense.step(inline_executor{}, sgd{.learning_rate = 0.01F}).or_throw();
    });
  }
  for (std::thread& t : threads) t.join();
  return counts[0];
}

void dense_bytes(benchmark::State& state) {
  constexpr int n = 4;
  for (auto _ : state) {
    deeprec_bench::figures f("sharding/dense/bytes");
    const std::vector<std::size_t> bytes = sizes();
    double total = 0;
    for (const std::size_t b : bytes) total += static_cast<double>(b);
    f.sample([&] {
      const counted_rank::sent sent = sent_in_a_step(bytes, n);
      f.add("over_ring", static_cast<double>(sent.bytes) / (2.0 * (n - 1) / n * total));
      f.add("fewer_messages",
            2.0 * (n - 1) * static_cast<double>(bytes.size()) / static_cast<double>(sent.messages));
      f.note("messages", static_cast<double>(sent.messages));
    });
    f.report(state);
  }
}
BENCHMARK(dense_bytes)->Name("sharding/dense/bytes")->Iterations(1)->UseManualTime();

}  // namespace
