// What the heap is asked for by a training loop in its steady state: nothing.
#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <vector>

#include <deeprec/core/matrix_view.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/sgd.hpp>
#include <deeprec/pipeline/micro_batch.hpp>
#include <deeprec/pipeline/stale_loop.hpp>
#include <deeprec/pipeline/stale_window.hpp>

namespace {
std::atomic<std::size_t> news{0};  // of all threads
}  // namespace

[[gnu::noinline]] void* operator new(std::size_t bytes) {
  news.fetch_add(1, std::memory_order_relaxed);
  if (void* const p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  news.fetch_add(1, std::memory_order_relaxed);
  const auto unit = static_cast<std::size_t>(alignment);
  if (void* const p = std::aligned_alloc(unit, (bytes / unit + 1) * unit)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }

namespace {

using namespace deeprec;

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

}  // namespace
