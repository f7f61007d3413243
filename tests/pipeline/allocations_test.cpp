// A pipeline that runs allocates for its tasks and edges, and nothing for an item.
#include <doctest/doctest.h>

#include "support/sanitizers.hpp"

#if !DEEPREC_TEST_SANITIZED  // they have an operator new of their own

#  include <atomic>
#  include <cstdint>
#  include <cstdlib>
#  include <new>
#  include <optional>
#  include <vector>

#  include <deeprec/exec/thread_pool.hpp>
#  include <deeprec/pipeline/pipeline.hpp>
#  include <deeprec/staging/staging_pool.hpp>

namespace {
std::atomic<std::uint64_t> allocations{0};
}

[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* const made = std::malloc(bytes == 0 ? 1 : bytes)) return made;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  ++allocations;
  const auto a = static_cast<std::size_t>(alignment);
  if (void* const made = std::aligned_alloc(a, (bytes + a - 1) / a * a)) return made;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* dead) noexcept { std::free(dead); }
[[gnu::noinline]] void operator delete(void* dead, std::size_t) noexcept { std::free(dead); }
[[gnu::noinline]] void operator delete(void* dead, std::align_val_t) noexcept { std::free(dead); }
[[gnu::noinline]] void operator delete(void* dead, std::size_t, std::align_val_t) noexcept {
  std::free(dead);
}

namespace {

using namespace deeprec;

// Allocations of one run of n items, once everything has been used before.
std::uint64_t of_a_run(std::uint64_t n, const pipeline_options& options) {
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
  const std::uint64_t before = allocations;
  CHECK(p.run().ok());
  return allocations - before;
}

TEST_CASE("pipeline: a run of three thousand items allocates as much as one of ten") {
  for (const pipeline_options& options : {pipeline_options{.capacity = 1}, pipeline_options{.capacity = 4},
                                          pipeline_options{.capacity = 2, .byte_budget = 1000},
                                          pipeline_options{.capacity = 1, .max_capacity = 4}}) {
    const std::uint64_t few = of_a_run(10, options);
    const std::uint64_t many = of_a_run(3000, options);
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
  const std::uint64_t before = allocations;
  const bool ok = p.run().ok();
  CHECK(allocations - before == 0);
  CHECK(ok);
  CHECK(sum == 9900);
}

}  // namespace

#endif
