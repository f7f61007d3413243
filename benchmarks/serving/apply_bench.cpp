// Lookups in a table to which deltas are applied at the same time.
//
//   serving/apply   2 M rows, D = 64, lookups of 512 keys: pace beside a thread that applies deltas of 20,000
//                   rows one after the other, over that alone (of_alone), each on its own processor; and the
//                   99.9th percentile of a lookup over that alone (tail)
//
// After each round the table is compared with the one that wrote the deltas.
#include <benchmark/benchmark.h>

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <deeprec/core/hash.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/embedding/checkpoints/checkpoint_folder.hpp>
#include <deeprec/embedding/checkpoints/checkpoint_reader.hpp>
#include <deeprec/embedding/growing/growing_table.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/resolve.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/sgd.hpp>

#include "support/add.hpp"
#include "support/figures.hpp"
#include "support/machine.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bench;
using table_type = growing_table<f32_rows>;

constexpr index_t rows = 2'000'000, width = 64, keys_of_lookup = 512, keys_of_delta = 20'000, deltas = 10;

std::uint64_t key_of(std::uint64_t word) { return mix64(word % rows + 1); }

void apply(benchmark::State& state, const std::string& name) {
  if (!memory_plan::of(std::size_t{6} << 30).unfit.empty()) return state.SkipWithError("unfit: no memory");
  const std::vector<int> cpus = usable_cpus();
  cpu_set_t before;
  ::sched_getaffinity(0, sizeof(before), &before);
  detail::pin_this_thread(cpus.front());
  inline_executor here;
  const std::string path = "/dev/shm/deeprec_bench_serving";
  std::filesystem::remove_all(path);
  table_type trained(f32_rows(width), row_init::uniform{.seed = 1, .bound = 0.1F});
  table_type served(f32_rows(width), row_init::uniform{.seed = 2, .bound = 0.1F});
  checkpoint_folder saves(path, {.kept_chains = 1});
  saves.add("items", trained).or_throw();
  checkpoint_reader files(path);
  files.add("items", served).or_throw();

  std::uint64_t draws = 0;
  std::vector<std::uint64_t> keys;
  const auto train = [&](index_t n, const auto& key) {
    keys.resize(static_cast<std::size_t>(n));
    for (index_t k = 0; k < n; ++k) keys[static_cast<std::size_t>(k)] = key(k);
    const std::vector<float> gradient(static_cast<std::size_t>(n * width), 0.01F);
    auto resolved = resolve(here, trained.rows(), fixed_hotness_view<std::uint64_t>(keys.data(), n, 1),
                            combiner::sum, keys::find_or_insert);
    update(here, resolved.or_throw(), matrix_view<const float>(gradient.data(), n, width), sgd{}).or_throw();
  };
  for (index_t from = 0; from < rows; from += 1 << 16)
    train(std::min<index_t>(1 << 16, rows - from),
          [&](index_t k) { return key_of(static_cast<std::uint64_t>(from + k)); });
  saves.take_full({}).or_throw().write().or_throw();
  if (!files.poll().or_throw()) std::abort();

  std::vector<std::uint64_t> looked(keys_of_lookup);
  std::vector<float> out(keys_of_lookup * width);
  std::vector<double> times;
  const auto look_up_until = [&](const auto& is_over) {
    times.clear();
    while (!is_over()) {
      for (std::uint64_t& key : looked) key = key_of(mix64(++draws * 0xd1342543de82ef95U) >> 20);
      const double start = clock_now();
      lookup(here, served.rows(), fixed_hotness_view<std::uint64_t>(looked.data(), keys_of_lookup, 1),
             combiner::sum, matrix_view<float>(out.data(), keys_of_lookup, width))
          .or_throw();
      times.push_back(clock_now() - start);
    }
  };
  const auto mean_and_tail = [&] {
    std::sort(times.begin(), times.end());
    double sum = 0;
    for (const double t : times) sum += t;
    return std::pair(sum / static_cast<double>(times.size()), times[times.size() - 1 - times.size() / 1000]);
  };
  bool right = true;
  for (auto _ : state) {
    figures f(name);
    if (cpus.size() < 2) f.unfit("one CPU");
    f.sample([&] {
      for (index_t d = 0; d < deltas; ++d) {
        train(keys_of_delta, [&](index_t) { return key_of(mix64(++draws * 0x9e3779b97f4a7c15U) >> 20); });
        saves.take_delta({}).or_throw().write().or_throw();
      }
      std::pair<double, double> alone;
      const auto run_alone = [&] {
        look_up_until([&] { return times.size() == 5000; });
        alone = mean_and_tail();
      };
      if (f.swapped()) run_alone();
      std::atomic<bool> done{false};
      double seconds = 0;
      std::thread applier([&] {
        detail::pin_this_thread(cpus.back());
        seconds = seconds_of([&] {
          if (!files.poll().or_throw()) std::abort();
        });
        done.store(true, std::memory_order_release);
      });
      look_up_until([&] { return done.load(std::memory_order_acquire); });
      applier.join();
      const std::pair<double, double> beside = mean_and_tail();
      f.note("lookups_beside", static_cast<double>(times.size()));
      if (!f.swapped()) run_alone();
      f.add("of_alone", alone.first / beside.first);
      f.add("tail", beside.second / alone.second);
      f.note("us_of_lookup", beside.first * 1e6);
      f.note("us_of_tail", beside.second * 1e6);
      f.note("applied_rows_per_second", deltas * keys_of_delta / seconds);
    });
    auto there = served.rows();
    const auto held = there.guard();
    trained.rows().for_each_row([&](std::uint64_t key, const std::byte* row) {
      const std::byte* found = nullptr;
      there.find(&key, 1, &found);
      right = right && found != nullptr && std::memcmp(row, found, width * sizeof(float)) == 0;
    });
    if (!right) return state.SkipWithError("wrong answer: the table has other rows");
    f.report(state);
  }
  std::filesystem::remove_all(path);
  ::sched_setaffinity(0, sizeof(before), &before);
}

const bool registered = [] {
  add("serving/apply", apply);
  return true;
}();

}  // namespace
