// The memory resources of a device, on a device.

#include <deeprec/exec/cuda/cuda_stream.hpp>
#include <deeprec/memory/cuda_memory.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <memory_resource>
#include <new>
#include <vector>

#include "support/second_device.hpp"

using namespace deeprec;

namespace {

__global__ void fill(int* to, int n, int value, int rounds) {
#if defined(__CUDACC__) && defined(__NVCC__)
  for (int i = 0; i < rounds; ++i) __nanosleep(1000);
#else
  static_cast<void>(rounds);
#endif
  for (int i = 0; i < n; ++i) to[i] = value;
}
__global__ void twice(int* x, int n) {
  for (int i = 0; i < n; ++i) x[i] *= 2;
}

template <class... Expected, class... Given>
status start(const cuda_stream& on, void (*kernel)(Expected...), Given... given) {
  cudaLaunchConfig_t shape{};
  shape.gridDim = dim3(1);
  shape.blockDim = dim3(1);
  shape.stream = on.get();
  return cuda_status(cudaLaunchKernelEx(&shape, kernel, given...));
}

cudaMemoryType kind_of(const void* p) {
  cudaPointerAttributes place{};
  REQUIRE(cudaPointerGetAttributes(&place, p) == cudaSuccess);
  return place.type;
}

}  // namespace

TEST_CASE("cuda_pool_resource: a block goes from stream to stream in order") {
  constexpr int n = 1024;
  cuda_stream a, b;
  cuda_pool_resource pool(n * sizeof(int));  // one block
  for (int round = 0; round < 20; ++round) {
    void* block = nullptr;
    pool.allocate(n * sizeof(int), a.get(), block).or_throw();
    start(a, fill, static_cast<int*>(block), n, 1, 100).or_throw();
    if (round % 2 == 1) {  // b reads it as well, unordered with what a does next
      start(b, fill, static_cast<int*>(block), n, 2, 100).or_throw();
      pool.also_used_on(block, b.get()).or_throw();
    }
    pool.deallocate(block, a.get()).or_throw();
    cuda_stream& next = round % 4 < 2 ? b : a;
    void* again = nullptr;
    pool.allocate(n * sizeof(int), next.get(), again).or_throw();
    CHECK(again == block);
    start(next, fill, static_cast<int*>(again), n, 3, 0).or_throw();
    a.synchronize().or_throw();
    b.synchronize().or_throw();
    std::vector<int> values(n);
    REQUIRE(cudaMemcpyAsync(values.data(), again, n * sizeof(int), cudaMemcpyDeviceToHost, next.get()) ==
            cudaSuccess);
    next.synchronize().or_throw();
    CHECK(values == std::vector<int>(n, 3));
    pool.deallocate(again, next.get()).or_throw();
  }
  CHECK(pool.report().events >= 10);
  CHECK(pool.report().in_use == 0);
  pool.trim().or_throw();
  CHECK(pool.report().reserved == 0);
}

TEST_CASE("cuda_pool_resource: a stream that ends is forgotten") {
  cuda_stream stays;
  cuda_pool_resource pool(1 << 16);
  void *block = nullptr, *again = nullptr;
  {
    cuda_stream ends;
    pool.allocate(1000, ends.get(), block).or_throw();
    start(ends, fill, static_cast<int*>(block), 250, 1, 100).or_throw();
    pool.deallocate(block, ends.get()).or_throw();
    pool.forget(ends.get()).or_throw();
  }
  pool.allocate(1000, stays.get(), again).or_throw();
  CHECK(again == block);
  CHECK(pool.report().events == 0);
  start(stays, fill, static_cast<int*>(again), 250, 2, 0).or_throw();
  stays.synchronize().or_throw();
  pool.deallocate(again, stays.get()).or_throw();
}

TEST_CASE("cuda_pool_resource: refuses a capture without ending it") {
  cuda_stream on, other;
  cuda_pool_resource pool(1 << 16);
  void *block = nullptr, *out = nullptr;
  pool.allocate(1000, on.get(), block).or_throw();
  cuda_runtime::begin_capture(on.get()).or_throw();
  CHECK(pool.allocate(1000, on.get(), out).code() == errc::unsupported);
  CHECK(pool.deallocate(block, on.get()).code() == errc::unsupported);
  CHECK(pool.also_used_on(block, on.get()).code() == errc::unsupported);
  CHECK(pool.forget(on.get()).code() == errc::unsupported);
  pool.allocate(1000, other.get(), out).or_throw();  // of what is there
  start(on, fill, static_cast<int*>(block), 250, 7, 0).or_throw();
  cuda_runtime::graph graph{};
  cuda_runtime::graph_exec exec{};
  cuda_runtime::end_capture(on.get(), graph).or_throw();
  cuda_runtime::instantiate(exec, graph).or_throw();
  cuda_runtime::launch(exec, on.get()).or_throw();
  int value = 0;
  REQUIRE(cudaMemcpyAsync(&value, block, sizeof(int), cudaMemcpyDeviceToHost, on.get()) == cudaSuccess);
  on.synchronize().or_throw();
  CHECK(value == 7);
  cuda_runtime::end_exec(exec);
  cuda_runtime::end_graph(graph);
  pool.deallocate(block, on.get()).or_throw();
  pool.deallocate(out, other.get()).or_throw();
  CHECK(pool.allocate(1000, cudaStreamPerThread, out).code() == errc::unsupported);
}

TEST_CASE("cuda_pool_resource: slabs and events are its device's, whichever is current") {
  const deeprec_test::second_device second;
  if (!second.is_there()) return;
  {
    cuda_stream a, b;
    cuda_pool_resource pool(4096);
    REQUIRE(cudaSetDevice(0) == cudaSuccess);
    void *block = nullptr, *again = nullptr;
    pool.allocate(4096, a.get(), block).or_throw();
    cudaPointerAttributes place{};
    REQUIRE(cudaPointerGetAttributes(&place, block) == cudaSuccess);
    CHECK(place.device == 1);
    pool.deallocate(block, a.get()).or_throw();
    pool.allocate(4096, b.get(), again).or_throw();
    CHECK(again == block);
    CHECK(pool.report().events == 1);
    pool.deallocate(again, b.get()).or_throw();
  }
}

TEST_CASE("pinned_resource: memory that copies run from") {
  pinned_resource pinned, other;
  CHECK(pinned == other);
  CHECK(pinned != *std::pmr::new_delete_resource());
  cuda_stream on;
  device_array<int> there(1000);
  std::pmr::vector<int> from(1000, &pinned), to(1000, &pinned);
  CHECK(kind_of(from.data()) == cudaMemoryTypeHost);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<int>(i * i);
  there.copy_from(from, on.get()).or_throw();
  start(on, twice, there.data(), 1000).or_throw();
  there.copy_to(to, on.get()).or_throw();
  on.synchronize().or_throw();
  for (int& x : from) x *= 2;
  CHECK(from == to);
}

TEST_CASE("pinned_resource, managed_resource: blocks of any size, 0 too, aligned as asked, or refused") {
  pinned_resource pinned;
  managed_resource managed;
  for (std::pmr::memory_resource* const resource : {static_cast<std::pmr::memory_resource*>(&pinned),
                                                    static_cast<std::pmr::memory_resource*>(&managed)}) {
    void* const none = resource->allocate(0);
    void* const other = resource->allocate(0, 256);
    CHECK(none != nullptr);
    CHECK(other != nullptr);
    CHECK(none != other);
    resource->deallocate(none, 0);
    resource->deallocate(other, 0, 256);
    for (std::size_t alignment = 1; alignment <= std::size_t{1} << 40; alignment *= 2) {
      CAPTURE(alignment);
      for (const std::size_t bytes : {0, 1, 1000}) {
        void* block = nullptr;
        try {
          block = resource->allocate(bytes, alignment);
        } catch (const std::bad_alloc&) {
          CHECK(alignment > 256);
          continue;
        }
        CHECK(reinterpret_cast<std::uintptr_t>(block) % alignment == 0);
        resource->deallocate(block, bytes, alignment);
      }
    }
  }
}

TEST_CASE("managed_resource: memory that both reach, and no more than the card has free") {
  managed_resource managed, other;
  CHECK(managed == other);  // they share what the card has
  cuda_stream on;
  {
    std::pmr::vector<int> x(1000, &managed);
    CHECK(kind_of(x.data()) == cudaMemoryTypeManaged);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<int>(i);
    start(on, twice, x.data(), 1000).or_throw();
    on.synchronize().or_throw();
    int wrong = 0;
    for (std::size_t i = 0; i < x.size(); ++i) wrong += x[i] == static_cast<int>(2 * i) ? 0 : 1;
    CHECK(wrong == 0);
  }
#if DEEPREC_EXCEPTIONS
  std::size_t free = 0, total = 0;
  REQUIRE(cudaMemGetInfo(&free, &total) == cudaSuccess);
  CHECK_THROWS_AS(static_cast<void>(managed.allocate(total + 1)), std::bad_alloc);
  CHECK_THROWS_AS(static_cast<void>(managed.allocate(free + 1)), std::bad_alloc);
#endif
  void* const rest = managed.allocate(1 << 20);
  managed.deallocate(rest, 1 << 20);
}
