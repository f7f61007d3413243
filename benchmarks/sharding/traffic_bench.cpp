// What ranks send, counted by themselves: ranks are threads, and nothing is timed.
//
//   sharding/messages   a training step of 4 ranks with 1 feature and with 200: messages a step and other
//                       rank
//   sharding/bytes      Criteo's batches, 2048 at each of 8 ranks, rows of 16 floats at the ranks: bytes sent
//                       over 8 bytes for each distinct id and a row there and back (over_formula), and how
//                       many times fewer than the rows that TorchRec sends for the same placement (fewer):
//                       pooled rows of all tables reduced over the ranks, and their gradients gathered.
//                       bf16: the bytes with rows and gradients of 16 bits, over these
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <deeprec/comm/thread_ranks.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/embedding/batches/partition_strategy.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/optim/optimizers.hpp>
#include <deeprec/sharding/placement.hpp>
#include <deeprec/sharding/sharded_group.hpp>
#include <deeprec/sharding/sharded_options.hpp>
#include <deeprec/sharding/sharded_verbs.hpp>

#include "support/criteo_trace.hpp"
#include "support/figures.hpp"

namespace {

using namespace deeprec;
using ids_of_features = std::vector<std::vector<std::int64_t>>;

/// What all ranks send in a step, each with its batch of one id a bag.
template <class Wire = wire<>>
sharded_traffic traffic_of_step(const std::vector<index_t>& rows, index_t width,
                                const std::vector<ids_of_features>& ids_of_ranks) {
  const int n = static_cast<int>(ids_of_ranks.size());
  thread_ranks<> all(n);
  std::vector<sharded_traffic> sent(ids_of_ranks.size());
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r) {
    threads.emplace_back([&, r] {
      inline_executor here;
      const ids_of_features& ids = ids_of_ranks[static_cast<std::size_t>(r)];
      const auto bags = static_cast<index_t>(ids[0].size());
      std::vector<std::int64_t> offsets;
      for (index_t i = 0; i <= bags; ++i) offsets.push_back(i);
      std::vector<dense_table<f32_rows>> parts;
      std::vector<jagged_view<>> batches;
      sharded_group<sgd, thread_rank<>, jagged_view<>, Wire> group(all.rank(r));
      parts.reserve(rows.size());
      for (std::size_t f = 0; f < rows.size(); ++f) {
        parts.emplace_back(part_rows(r, rows[f], n), f32_rows(width));
        group.add(parts[f].view(), combiner::sum, placement::rows{rows[f]});
        batches.emplace_back(offsets.data(), bags, ids[f].data(), bags);
      }
      std::vector<float> out(static_cast<std::size_t>(bags * group.total_width()));
      const auto step = resolve(here, group, batches).or_throw();
      lookup(here, step, matrix_view<float>(out.data(), bags, group.total_width())).or_throw();
      update(here, step, matrix_view<const float>(out.data(), bags, group.total_width()),
             sgd{.learning_rate = 0.01F})
          .or_throw();
      sent[static_cast<std::size_t>(r)] = group.traffic();
    });
  }
  for (std::thread& t : threads) t.join();
  sharded_traffic sum;
  for (const sharded_traffic& s : sent) {
    sum.messages += s.messages;
    sum.bytes += s.bytes;
  }
  return sum;
}

void messages(benchmark::State& state) {
  constexpr std::uint64_t n = 4;
  for (auto _ : state) {
    deeprec_bench::figures f("sharding/messages");
    f.sample([&] {
      std::uint64_t most = 0;
      for (const std::size_t features : {1, 200}) {
        const std::vector<ids_of_features> ids(n, ids_of_features(features, {1, 5, 9, 5}));
        const sharded_traffic sent = traffic_of_step(std::vector<index_t>(features, 10), 8, ids);
        most = std::max(most, sent.messages);
      }
      f.add("messages", static_cast<double>(most) / static_cast<double>(n * (n - 1)));
    });
    f.report(state);
  }
}
BENCHMARK(messages)->Name("sharding/messages")->Iterations(1)->UseManualTime();

void bytes(benchmark::State& state) {
  constexpr index_t batch = 2048, width = 16;
  constexpr int n = 8;
  if (deeprec_bench::criteo_ranks().empty())
    return state.SkipWithError("no Criteo trace: set DEEPREC_DATA_DIR");
  const std::vector<index_t> rows(std::begin(deeprec_bench::criteo_rows),
                                  std::end(deeprec_bench::criteo_rows));
  for (auto _ : state) {
    deeprec_bench::figures f("sharding/bytes");
    std::uint64_t turn = 0;
    bool right = true;
    f.sample([&] {
      std::vector<ids_of_features> ids;
      for (int r = 0; r < n; ++r) ids.push_back(deeprec_bench::criteo_trace(batch, 9000 + ++turn));
      double distinct = 0;  // ids that a rank asks another one for
      for (int r = 0; r < n; ++r) {
        for (std::vector<std::int64_t> of : ids[static_cast<std::size_t>(r)]) {
          std::sort(of.begin(), of.end());
          of.erase(std::unique(of.begin(), of.end()), of.end());
          distinct +=
              static_cast<double>(std::count_if(of.begin(), of.end(), [&](auto id) { return id % n != r; }));
        }
      }
      const auto row_bytes = static_cast<double>(width * index_t{sizeof(float)});
      const double formula = distinct * (8 + 2 * row_bytes);
      const double torchrec =
          2.0 * n * (n - 1) * static_cast<double>(batch) * static_cast<double>(rows.size()) * row_bytes;
      const auto sent = static_cast<double>(traffic_of_step(rows, width, ids).bytes);
      right = right && sent >= formula;
      f.add("over_formula", sent / formula);
      f.add("fewer", torchrec / sent);
      f.add("bf16", static_cast<double>(traffic_of_step<wire<bf16, bf16>>(rows, width, ids).bytes) / sent);
      f.note("distinct_share",
             distinct * n / (n - 1) / static_cast<double>(n * batch) / static_cast<double>(rows.size()));
    });
    if (!right) return state.SkipWithError("wrong answer: fewer bytes than there are distinct rows");
    f.report(state);
  }
}
BENCHMARK(bytes)->Name("sharding/bytes")->Iterations(1)->UseManualTime();

}  // namespace
