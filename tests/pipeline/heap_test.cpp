// What pipelines, training loops and micro batches allocate in their steady state: nothing.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <deeprec/core/matrix_view.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/sgd.hpp>
#include <deeprec/pipeline/pipeline.hpp>
#include <deeprec/queue/staging_pool.hpp>
#include <deeprec/schedule/micro_batch.hpp>
#include <deeprec/schedule/stale_loop.hpp>
#include <deeprec/schedule/stale_window.hpp>

#include "support/counted_new.hpp"

namespace {

using namespace deeprec;
using deeprec_test::news;

// Allocations of one run of n items, once everything has been used before.
std::size_t of_a_run(std::uint64_t n, const pipeline_options& options) {
  thread_pool pool(1);
  staging_pool<std::vector<int>> buffers(32);
  using lease = staging_pool<std::vector<int>>::lease;
  std::uint64_t k = 0, sum = 0;
  pipeline p(
      pool,
      source("read",
             [&]() -> std::optional<lease> {
               if (k++ == n) return std::nullopt;
               lease one = buffers.acquire();
               one->assign(10, static_cast<int>(k));
               return one;
             }) |
          stage("own", [](lease& one) { ++(*one)[0]; }).own_thread() |
          stage("ordered", [](lease&& one) { return std::move(one); }).parallel(2) |
          stage("odd",
                [](lease&& one) { return (*one)[1] % 2 == 1 ? std::optional(std::move(one)) : std::nullopt; })
              .parallel(2)
              .unordered() |
          sink("sum", [&](lease&& one) { sum += static_cast<std::uint64_t>((*one)[0]); }),
      options);
  std::vector<lease> all;
  for (int i = 0; i < 32; ++i) {
    all.push_back(buffers.acquire());
    all.back()->assign(10, 0);
  }
  all.clear();
  CHECK(p.run().ok());
  k = 0;
  const std::size_t before = news;
  CHECK(p.run().ok());
  return news - before;
}

TEST_CASE("pipeline: a run of three thousand items allocates as much as one of ten") {
  for (const pipeline_options& options : {pipeline_options{.capacity = 1}, pipeline_options{.capacity = 4},
                                          pipeline_options{.capacity = 2, .byte_budget = 1000},
                                          pipeline_options{.capacity = 1, .max_capacity = 4}}) {
    const std::size_t few = of_a_run(10, options);
    const std::size_t many = of_a_run(3000, options);
    CHECK(many == few);
    CHECK(few < 60);
  }
}

TEST_CASE("pipeline: stages of one thread allocate for nothing") {
  thread_pool pool(1);
  int k = 0;
  long sum = 0;
  pipeline p(pool, source("read", [&] { return k == 100 ? std::nullopt : std::optional<int>(k++); }) |
                       stage("twice", [](int i) { return 2 * i; }) | sink("sum", [&](int i) { sum += i; }));
  const std::size_t before = news;
  const bool ok = p.run().ok();
  CHECK(news - before == 0);
  CHECK(ok);
  CHECK(sum == 9900);
}

TEST_CASE("stale_loop: a step allocates nothing") {
  thread_pool pool(1);
  stale_window window(3, 2);
  stale_loop loop(window);
  std::vector<double> slots(static_cast<std::size_t>(loop.slots()));
  double row[2] = {1, 2};
  const auto news_of = [&](index_t steps) {
    const std::size_t before = news.load();
    const status done = loop.run(
        pool, [&](stale_step step) { return step.number < steps; },
        [&](stale_step step) -> status {
          double sum = 0;
          for (index_t s = 0; s < 2; ++s) {
            const auto reading = window.read(step.number, s);
            if (!reading) return reading.outcome();
            sum += row[s];
          }
          slots[static_cast<std::size_t>(step.slot)] = sum;
          return {};
        },
        [](stale_step) {},
        [&](stale_step step) -> status {
          for (index_t s = 0; s < 2; ++s) {
            const auto writing = window.apply(step.number, s);
            if (!writing) return writing.outcome();
            row[s] -= 0.1 * slots[static_cast<std::size_t>(step.slot)];
          }
          return {};
        });
    CHECK(done.ok());
    return news.load() - before;
  };
  static_cast<void>(news_of(10));  // the pool starts its threads
  const std::size_t of_ten = news_of(10);
  CHECK(of_ten <= 3 * 4);  // of each task that is posted
  CHECK(news_of(1000) == of_ten);
}

TEST_CASE("micro_batch: a batch allocates nothing after the first one") {
  thread_pool pool(1);
  micro_batch step(4);
  float gradient[3] = {1, 2, 3};
  int updates = 0;
  step.stage("a", 0, [](const micro_chunk&) {});
  step.stage("b", 1, [](const micro_chunk&) { return status(); });
  step.sum_gradient("b", [&] { return matrix_view<float>(gradient, 1, 3); });
  step.update("v", sgd{}, [&] { ++updates; });
  CHECK(step.run(pool, 9).ok());
  const std::size_t before = news.load();
  for (int batch = 0; batch < 50; ++batch) {
    if (!step.run(pool, 9)) break;
  }
  CHECK(news.load() == before);
  CHECK(updates == 51);
}

TEST_CASE("micro_batch by lanes: a batch allocates nothing after the first one") {
  thread_pool pool({.threads = 2, .oversubscribe = true});
  micro_batch<> step(micro_lanes{.most = 2, .fewest = 1, .samples = 3});
  float gradients[2][3] = {}, sum[3] = {};
  int updates = 0;
  step.stage("a", 0, [](const micro_chunk&) {});
  step.sum_gradient(
      "a", [&](const micro_chunk& chunk) { return matrix_view<float>(gradients[chunk.lane], 1, 3); },
      [&] { return matrix_view<float>(sum, 1, 3); });
  step.update("v", sgd{}, [&] { ++updates; });
  // How many parts wait for a neighbour at once depends on timing: one for each level of the tree, and one
  // for each lane, are soon there.
  std::size_t of_late_batches = 1;
  for (int round = 0; round < 100 && of_late_batches > 0; ++round) {
    const std::size_t before = news.load();
    for (int batch = 0; batch < 50; ++batch) {
      if (!step.run(pool, 50)) ++updates;
    }
    of_late_batches = news.load() - before;
  }
  CHECK(of_late_batches == 0);
  CHECK(updates % 50 == 0);
}

}  // namespace
