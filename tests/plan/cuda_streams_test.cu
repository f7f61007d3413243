// Streams, plans and staging, on a device: what the order of events must give.

#include <deeprec/exec/cuda/cuda_staging.hpp>
#include <deeprec/memory/cuda_memory.hpp>
#include <deeprec/plan/cuda_stream_pool.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support/second_device.hpp"

using namespace deeprec;

namespace {

/// Takes a while, on a card.
__device__ void dawdle(int rounds) {
#if defined(__CUDACC__) && defined(__NVCC__)
  for (int i = 0; i < rounds; ++i) __nanosleep(1000);
#else
  static_cast<void>(rounds);
#endif
}
__global__ void put(int* to, int value, int rounds) {
  dawdle(rounds);
  *to = value;
}
__global__ void add(int* to, int value) { *to += value; }
__global__ void copy(int* to, const int* from, int n, int rounds) {
  dawdle(rounds);
  for (int i = 0; i < n; ++i) to[i] = from[i];
}
__global__ void find(device_fault* record, int code, index_t bag) {
  if (!record->comes_after(0, bag, 0)) return;
  record->code = code;
  record->bag = bag;
}

template <class... Expected, class... Given>
status start(const cuda_stream& on, void (*kernel)(Expected...), Given... given) {
  cudaLaunchConfig_t shape{};
  shape.gridDim = dim3(1);
  shape.blockDim = dim3(1);
  shape.stream = on.get();
  return cuda_status(cudaLaunchKernelEx(&shape, kernel, given...));
}

device_array<int> zeros(std::size_t n) {
  device_array<int> made(n);
  made.copy_from(std::vector<int>(n)).or_throw();
  return made;
}
std::vector<int> back(const device_array<int>& array) {
  std::vector<int> values(array.size());
  array.copy_to(values).or_throw();
  return values;
}

/// n ops that nothing orders, one on each stream.
stream_plan side_by_side(int n) {
  task_list work;
  for (int s = 0; s < n; ++s) {
    const auto here = work.on_stream(s);
    work.add({});
  }
  stream_plan plan;
  plan_streams(work, n, plan).or_throw();
  return plan;
}

}  // namespace

TEST_CASE("cuda_stream_pool: a fault in any op is reported once, whichever stream the graph runs on") {
  cuda_stream_pool pool(3);
  const stream_plan plan = side_by_side(3);
  for (int round = 0; round < 4; ++round) {
    for (index_t bad = 0; bad < 3; ++bad) {
      const auto launch = [&](index_t op, cuda_stream& on) -> status {
        if (op != bad) return {};
        return start(on, find, on.fault_record(), static_cast<int>(errc::id_out_of_range), index_t{10} + bad);
      };
      for (int on = 0; on < 3; ++on) {
        pool.replay(plan, launch, static_cast<std::uint64_t>(bad), on).or_throw();
        const status s = pool.synchronize();
        CHECK(s.code() == errc::id_out_of_range);
        CHECK(s.place().bag == 10 + bad);
        CHECK(pool.synchronize().ok());
      }
    }
  }
  CHECK(pool.graphs() == 3);
}

TEST_CASE("cuda_stream_pool: plans on changing streams come one behind the other") {
  cuda_stream_pool pool(3);
  const stream_plan plan = side_by_side(3);
  const auto cells = zeros(3);
  int value = 0;
  const auto launch = [&](index_t op, cuda_stream& on) {
    return start(on, put, cells.data() + op, value, 20 * static_cast<int>(3 - op));
  };
  for (int v = 1; v <= 4; ++v) {  // a graph for each value
    value = v;
    pool.replay(plan, launch, static_cast<std::uint64_t>(v)).or_throw();
  }
  pool.synchronize().or_throw();
  for (int round = 0; round < 12; ++round) {
    value = 0;
    if (round % 3 == 0) pool.run(plan, launch).or_throw();
    for (int i = 0; i < 4; ++i) {
      value = 1 + (round + i) % 4;
      pool.replay(plan, launch, static_cast<std::uint64_t>(value), i % 3).or_throw();
    }
    if (round % 3 == 2) {
      value = 9;
      pool.run(plan, launch).or_throw();
    }
    pool.synchronize().or_throw();
    CHECK(back(cells) == std::vector<int>(3, value));
  }
  CHECK(pool.graphs() == 4);
}

TEST_CASE("cuda_stream_pool: a capture that fails leaves no graph, and the pool goes on") {
  cuda_stream_pool pool(3);
  const stream_plan plan = side_by_side(3);
  const auto cells = zeros(3);
  const auto adds = [&](index_t op, cuda_stream& on) { return start(on, add, cells.data() + op, 1); };
  for (index_t bad = 0; bad < 3; ++bad) {
    const auto fails = [&](index_t op, cuda_stream& on) -> status {
      if (op != bad) return adds(op, on);
      void* memory = nullptr;
      CHECK(cuda_runtime::allocate(memory, 16).code() == errc::device_error);
      return {errc::cancelled, "mine"};
    };
    CHECK(pool.replay(plan, fails).code() == errc::cancelled);
    CHECK(pool.graphs() == 0);
  }
  const auto grows = [&](index_t, cuda_stream& on) {
    std::byte* memory = nullptr;
    return on.scratch(1000, memory);
  };
  CHECK(pool.replay(plan, grows).code() == errc::unsupported);
  CHECK(pool.graphs() == 0);
  pool.run(plan, adds).or_throw();
  pool.replay(plan, adds, 0, 1).or_throw();
  pool.synchronize().or_throw();
  CHECK(back(cells) == std::vector<int>(3, 2));  // nothing of the captures has run
  CHECK(pool.graphs() == 1);
  pool.forget_graphs().or_throw();
  CHECK(pool.graphs() == 0);
}

TEST_CASE("cuda_stream_pool: times of streams") {
  cuda_stream_pool pool(3);
  const stream_plan plan = side_by_side(2);
  const auto cells = zeros(2);
  std::vector<float> times;
  CHECK(pool.times(times).code() == errc::invalid_value);
  for (int again = 0; again < 2; ++again) {
    pool.run_timed(plan,
                   [&](index_t op, cuda_stream& on) { return start(on, put, cells.data() + op, 1, 10); })
        .or_throw();
    pool.times(times).or_throw();
    REQUIRE(times.size() == 3);
    for (const int s : {0, 1}) {
      CHECK(times[static_cast<std::size_t>(s)] > 0);
      CHECK(times[static_cast<std::size_t>(s)] < 10'000);
    }
    CHECK(times[2] == 0);
  }
}

TEST_CASE("cuda_stream_pool: priorities, of streams and in graphs") {
  int lowest = 0, highest = 0;
  REQUIRE(cudaDeviceGetStreamPriorityRange(&lowest, &highest) == cudaSuccess);
  cuda_stream_pool pool(1);
  REQUIRE(pool.add_stream(stream_priority::high) == 1);
  int normal = 0, high = 0;
  REQUIRE(cudaStreamGetPriority(pool.stream(0).get(), &normal) == cudaSuccess);
  REQUIRE(cudaStreamGetPriority(pool.stream(1).get(), &high) == cudaSuccess);
  CHECK(normal == lowest);
  CHECK(high == highest);

  const auto cells = zeros(1);
  cuda_runtime::graph graph{};
  cuda_runtime::graph_exec exec{};
  cuda_runtime::begin_capture(pool.stream(1).get()).or_throw();
  start(pool.stream(1), put, cells.data(), 5, 0).or_throw();
  cuda_runtime::end_capture(pool.stream(1).get(), graph).or_throw();
  cuda_runtime::instantiate(exec, graph).or_throw();
#ifdef __NVCC__  // a driver doesn't tell the flag; it tells what the flag makes the graph use
  std::size_t count = 1;
  cudaGraphNode_t node = nullptr;
  REQUIRE(cudaGraphGetNodes(graph, &node, &count) == cudaSuccess);
  REQUIRE(count == 1);
  cudaKernelNodeAttrValue of{};
  REQUIRE(cudaGraphKernelNodeGetAttribute(node, cudaLaunchAttributePriority, &of) == cudaSuccess);
  CHECK(of.priority == highest);
#else
  unsigned long long flags = 0;
  REQUIRE(cudaGraphExecGetFlags(exec, &flags) == cudaSuccess);
  CHECK((flags & cudaGraphInstantiateFlagUseNodePriority) != 0);
#endif
  cuda_runtime::launch(exec, pool.stream(0).get()).or_throw();
  pool.synchronize().or_throw();
  CHECK(back(cells)[0] == 5);
  cuda_runtime::end_graph(graph);
  cuda_runtime::end_exec(exec);
}

TEST_CASE("cuda_stream_pool, cuda_staging: stay on their device when another one is current") {
  const deeprec_test::second_device second;
  if (!second.is_there()) return;
  {
    cuda_stream_pool pool(2);
    cuda_staging staging(pool.stream(1).get());
    const auto cells = zeros(2);
    REQUIRE(cudaSetDevice(0) == cudaSuccess);
    const stream_plan plan = side_by_side(2);
    const auto adds = [&](index_t op, cuda_stream& on) { return start(on, add, cells.data() + op, 1); };
    pool.run(plan, adds).or_throw();
    pool.run_timed(plan, adds).or_throw();
    pool.replay(plan, adds, 0, 1).or_throw();
    std::vector<float> times;
    pool.times(times).or_throw();
    pool.synchronize().or_throw();
    int slot = 0;
    staging.acquire(4, slot).or_throw();
    *static_cast<int*>(staging.host(slot)) = 7;
    staging.upload(slot, 4).or_throw();
    staging.use(slot, pool.stream(0).get()).or_throw();
    staging.release(slot, pool.stream(0).get()).or_throw();
    cudaPointerAttributes place{};
    REQUIRE(cudaPointerGetAttributes(&place, staging.device(slot)) == cudaSuccess);
    CHECK(place.device == 1);
    int now = -1;
    REQUIRE(cudaGetDevice(&now) == cudaSuccess);
    CHECK(now == 0);
    REQUIRE(cudaSetDevice(1) == cudaSuccess);
    CHECK(back(cells) == std::vector<int>(2, 3));
  }
}

TEST_CASE("cuda_staging: a buffer that two streams read is not packed over") {
  constexpr int n = 64, rounds = 24;
  for (const int slots : {1, 2}) {
    cuda_stream_pool pool(3);
    const auto of_a = zeros(n * rounds), of_b = zeros(n * rounds);
    {
      cuda_staging staging(pool.stream(2).get(), slots);
      int slot = 0;
      for (int round = 0; round < rounds; ++round) {
        staging.acquire(n * sizeof(int), slot).or_throw();
        for (int i = 0; i < n; ++i) static_cast<int*>(staging.host(slot))[i] = 1000 * round + i;
        staging.upload(slot, n * sizeof(int)).or_throw();
        const auto* const sent = static_cast<const int*>(staging.device(slot));
        for (const int s : {0, 1}) {
          staging.use(slot, pool.stream(s).get()).or_throw();
          start(pool.stream(s), copy, (s == 0 ? of_a : of_b).data() + n * round, sent, n, s == 0 ? 200 : 1)
              .or_throw();
          if (round % 3 != 2) staging.release(slot, pool.stream(s).get()).or_throw();
        }
        if (round % 3 != 2) continue;
        if (slots == 1) CHECK(staging.acquire(n * sizeof(int), slot).code() == errc::invalid_value);
        staging.release(slot, pool.stream(1).get()).or_throw();
        staging.release(slot, pool.stream(0).get()).or_throw();
      }
    }
    pool.synchronize().or_throw();
    const auto a = back(of_a), b = back(of_b);
    CHECK(a == b);
    int wrong = 0;
    for (int i = 0; i < n * rounds; ++i)
      wrong += a[static_cast<std::size_t>(i)] == 1000 * (i / n) + i % n ? 0 : 1;
    CHECK(wrong == 0);
  }
}
