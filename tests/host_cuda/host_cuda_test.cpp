// The run time that stands for CUDA in tests refuses what a card would get wrong.
#include <deeprec/exec/cuda/cuda_staging.hpp>
#include <deeprec/exec/cuda/warp_team.cuh>
#include <deeprec/memory/cuda_memory.hpp>
#include <deeprec/plan/cuda_stream_pool.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <memory_resource>
#include <new>
#include <set>
#include <string>
#include <vector>

namespace {

cudaLaunchConfig_t shape_of(unsigned blocks, unsigned threads, cudaStream_t on = nullptr) {
  cudaLaunchConfig_t shape{};
  shape.gridDim = dim3(blocks);
  shape.blockDim = dim3(threads);
  shape.stream = on;
  return shape;
}

template <class... Expected, class... Given>
std::string run(unsigned threads, void (*kernel)(Expected...), Given... given) {
  host_cuda::forget_failure();
  const cudaLaunchConfig_t shape = shape_of(1, threads);
  REQUIRE(cudaLaunchKernelEx(&shape, kernel, given...) == cudaSuccess);
  const cudaError_t ended = cudaDeviceSynchronize();
  const std::string said = host_cuda::failure();
  CHECK((ended == cudaErrorLaunchFailure) == !said.empty());
  host_cuda::forget_failure();
  return said;
}

struct stream {
  cudaStream_t it = nullptr;
  stream() { REQUIRE(cudaStreamCreateWithPriority(&it, cudaStreamNonBlocking, 0) == cudaSuccess); }
  ~stream() { cudaStreamDestroy(it); }
};
struct event {
  cudaEvent_t it = nullptr;
  event() { REQUIRE(cudaEventCreateWithFlags(&it, cudaEventDisableTiming) == cudaSuccess); }
  ~event() { cudaEventDestroy(it); }
};

unsigned mask_of(int lanes) {
  const unsigned first = threadIdx.x & 31U & ~static_cast<unsigned>(lanes - 1);
  return lanes == 32 ? 0xffffffffU : ((1U << lanes) - 1U) << first;
}

__global__ void sum_of_teams(int lanes, int* out) {
  int x = static_cast<int>(threadIdx.x);
  for (int i = 0; i < static_cast<int>(threadIdx.x) / lanes;
       ++i) {  // teams of a warp go on for different times
    __syncwarp(mask_of(lanes));
  }
  for (int step = lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(mask_of(lanes), x, step, lanes);
  const int first = __shfl_sync(mask_of(lanes), static_cast<int>(threadIdx.x), 0, lanes);
  const unsigned odd = __ballot_sync(mask_of(lanes), threadIdx.x & 1U);
  out[threadIdx.x] =
      x == lanes * first + lanes * (lanes - 1) / 2 && odd == (0xaaaaaaaaU & mask_of(lanes)) ? 1 : 0;
}
__global__ void whole_warp_where_half_has_left() {
  if (threadIdx.x >= 16) return;
  __syncwarp();
}
__global__ void different_meetings() {
  if (threadIdx.x < 16) {
    __syncwarp();
  } else {
    __ballot_sync(0xffffffffU, 1);
  }
}
__global__ void not_its_own_mask() { __syncwarp(1U); }
__global__ void reads_another_team() { __shfl_sync(mask_of(8), 1, 9, 32); }
__global__ void reads_between_words(const char* p) {
  __ldg(static_cast<const uint4*>(static_cast<const void*>(p + 4)));
}
__global__ void turned_around(int* out) {
  __shared__ int kept[64];
  for (int round = 0; round < 3; ++round) {
    kept[threadIdx.x] = static_cast<int>(threadIdx.x) + round;
    __syncthreads();
    out[threadIdx.x] = kept[63 - threadIdx.x];
    __syncthreads();
  }
}
__global__ void block_where_one_has_left() {
  if (threadIdx.x == 7) return;
  __syncthreads();
}
__global__ void put(int* to, int value) { *to = value; }

}  // namespace

TEST_CASE("host_cuda: the threads of a block meet, all of them") {
  std::vector<int> out(64);
  CHECK(run(64, turned_around, out.data()) == "");
  for (int i = 0; i < 64; ++i) CHECK(out[static_cast<std::size_t>(i)] == 63 - i + 2);
  CHECK(run(64, block_where_one_has_left) != "");
}
TEST_CASE("host_cuda: teams of a warp meet by themselves") {
  std::vector<int> out(64);
  for (const int lanes : {1, 2, 8, 32}) {
    out.assign(64, -1);
    CHECK(run(64, sum_of_teams, lanes, out.data()) == "");
    CHECK(out == std::vector<int>(64, 1));
  }
}

TEST_CASE("host_cuda: lanes that don't all come are a fault") {
  CHECK(run(32, whole_warp_where_half_has_left).find("wait for lanes that ended") != std::string::npos);
  CHECK(run(32, different_meetings).find("something else") != std::string::npos);
  CHECK(run(32, not_its_own_mask).find("does not name it") != std::string::npos);
  CHECK(run(32, reads_another_team).find("does not name") != std::string::npos);
  CHECK(run(16, different_meetings).find("does not have") != std::string::npos);
  alignas(16) const char words[32] = {};
  CHECK(run(1, reads_between_words, words).find("not aligned") != std::string::npos);
}

TEST_CASE("host_cuda: each thread of a kernel that may begin early waits for the kernels before it") {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t shape = shape_of(1, 8);
  shape.attrs = &early;
  shape.numAttrs = 1;
  for (const bool all : {true, false}) {
    host_cuda::forget_failure();
    void (*kernel)(int) = [](int waiting) {
      if (static_cast<int>(threadIdx.x) < waiting) cudaGridDependencySynchronize();
    };
    REQUIRE(cudaLaunchKernelEx(&shape, kernel, all ? 8 : 7) == cudaSuccess);
    CHECK((cudaDeviceSynchronize() == cudaSuccess) == all);
    CHECK(host_cuda::failure().empty() == all);
  }
  host_cuda::forget_failure();
}

TEST_CASE("launch_early: a kernel from PTX that has no wait begins behind the one before it") {
  for (const int ptx : {80, 90}) {
    host_cuda::forget_failure();
    host_cuda::ptx_version = ptx;
    void (*old_code)(int*) = [](int* x) { *x = 1; };  // never waits
    void (*new_code)(int*) = [](int* x) { *x = 2; };
    int x = 0;
    REQUIRE(
        deeprec::DEEPREC_DEVICE::launch_early(ptx == 80 ? old_code : new_code, dim3(1), nullptr, &x).ok());
    CHECK((cudaDeviceSynchronize() == cudaSuccess) == (ptx == 80));
    CHECK(host_cuda::failure().empty() == (ptx == 80));
  }
  host_cuda::ptx_version = 90;
  host_cuda::forget_failure();
}

TEST_CASE("host_cuda: without an event two streams run in either order, with one in one") {
  for (const bool ordered : {false, true}) {
    std::set<int> seen;
    for (int again = 0; again < 60; ++again) {
      const stream a, b;
      const event mark;
      int last = 0;
      cudaLaunchConfig_t shape = shape_of(1, 1, a.it);
      REQUIRE(cudaLaunchKernelEx(&shape, put, &last, 1) == cudaSuccess);
      CHECK(last == 0);  // nobody has waited
      REQUIRE(cudaEventRecord(mark.it, a.it) == cudaSuccess);
      if (ordered) REQUIRE(cudaStreamWaitEvent(b.it, mark.it, 0) == cudaSuccess);
      shape.stream = b.it;
      REQUIRE(cudaLaunchKernelEx(&shape, put, &last, 2) == cudaSuccess);
      REQUIRE(cudaStreamSynchronize(b.it) == cudaSuccess);
      REQUIRE(cudaStreamSynchronize(a.it) == cudaSuccess);
      seen.insert(last);
    }
    CHECK(seen == (ordered ? std::set{2} : std::set{1, 2}));
  }
}

TEST_CASE("host_cuda: a copy from pageable memory is staged at once, and there later") {
  const stream other;
  void* memory = nullptr;
  REQUIRE(cudaMalloc(&memory, 4) == cudaSuccess);
  int value = 5;
  REQUIRE(cudaMemcpyAsync(memory, &value, 4, cudaMemcpyHostToDevice, other.it) == cudaSuccess);
  value = 6;
  CHECK(*static_cast<int*>(memory) != 5);
  REQUIRE(cudaStreamSynchronize(other.it) == cudaSuccess);
  CHECK(*static_cast<int*>(memory) == 5);
  CHECK(cudaMemcpyAsync(memory, &value, 8, cudaMemcpyHostToDevice, other.it) == cudaErrorInvalidValue);
  CHECK(cudaMemcpyAsync(&value, &value, 4, cudaMemcpyHostToDevice, other.it) == cudaErrorInvalidValue);
  CHECK(cudaFree(&value) == cudaErrorInvalidValue);
  CHECK(cudaFree(memory) == cudaSuccess);
}

TEST_CASE("host_cuda: a capture refuses what CUDA refuses, and runs as often as it is launched") {
  const stream a, b;
  const event fork, join;
  int x = 0, y = 0, order = 0;
  for (const bool joined : {false, true}) {
    cudaLaunchConfig_t first = shape_of(1, 1, a.it);
    REQUIRE(cudaLaunchKernelEx(&first, put, &order, 1) == cudaSuccess);
    REQUIRE(cudaStreamBeginCapture(a.it, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    REQUIRE(cudaEventRecord(fork.it, a.it) == cudaSuccess);
    REQUIRE(cudaStreamWaitEvent(b.it, fork.it, 0) == cudaSuccess);
    cudaLaunchConfig_t shape = shape_of(1, 1, b.it);
    REQUIRE(cudaLaunchKernelEx(&shape, put, &x, 3) == cudaSuccess);
    shape.stream = a.it;
    REQUIRE(cudaLaunchKernelEx(&shape, put, &y, 4) == cudaSuccess);
    if (joined) {
      REQUIRE(cudaEventRecord(join.it, b.it) == cudaSuccess);
      REQUIRE(cudaStreamWaitEvent(a.it, join.it, 0) == cudaSuccess);
    }
    cudaGraph_t graph = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(a.it, &graph);
    CHECK(ended == (joined ? cudaSuccess : cudaErrorStreamCaptureUnjoined));
    first.stream = a.it;  // what a stream was given before a capture comes before what it is given behind it
    REQUIRE(cudaLaunchKernelEx(&first, put, &order, 2) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(a.it) == cudaSuccess);
    CHECK(order == 2);
    if (!joined) continue;
    cudaGraphExec_t exec = nullptr;
    REQUIRE(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(x == 0);  // captured, not run
    for (int again = 0; again < 20; ++again) {
      shape.stream = b.it;
      REQUIRE(cudaLaunchKernelEx(&shape, put, &x, 0) == cudaSuccess);  // before the graph, on its stream
      REQUIRE(cudaGraphLaunch(exec, b.it) == cudaSuccess);
      CHECK(cudaDeviceSynchronize() == cudaSuccess);
      CHECK(x == 3);
      CHECK(y == 4);
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
  }
}

TEST_CASE("host_cuda: what a capture does not allow ends it") {
  const stream a, b;
  const event outside, fork;
  REQUIRE(cudaEventRecord(outside.it, b.it) == cudaSuccess);
  void *memory = nullptr, *known = nullptr;
  REQUIRE(cudaMalloc(&known, 4) == cudaSuccess);
  const auto refused = [&](int what) {
    switch (what) {
      case 0:
        return cudaMalloc(&memory, 4);
      case 1:
        return cudaFree(known);
      case 2:
        return cudaStreamSynchronize(a.it);
      case 3:
        return cudaDeviceSynchronize();
      default:
        return cudaStreamWaitEvent(a.it, outside.it, 0);
    }
  };
  for (int what = 0; what < 5; ++what) {
    REQUIRE(cudaStreamBeginCapture(a.it, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    REQUIRE(cudaEventRecord(fork.it, a.it) == cudaSuccess);
    REQUIRE(cudaStreamWaitEvent(b.it, fork.it, 0) == cudaSuccess);
    CHECK(refused(what) == (what == 4 ? cudaErrorStreamCaptureIsolation : cudaErrorStreamCaptureUnsupported));
    cudaStreamCaptureStatus now = cudaStreamCaptureStatusNone;
    REQUIRE(cudaStreamIsCapturing(b.it, &now) == cudaSuccess);
    CHECK(now == cudaStreamCaptureStatusInvalidated);
    CHECK(cudaEventRecord(fork.it, b.it) == cudaErrorStreamCaptureInvalidated);
    CHECK(cudaStreamWaitEvent(a.it, fork.it, 0) == cudaErrorStreamCaptureInvalidated);
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamEndCapture(a.it, &graph) == cudaErrorStreamCaptureInvalidated);
    CHECK(graph == nullptr);
    CHECK(cudaStreamSynchronize(a.it) == cudaSuccess);
    CHECK(cudaStreamSynchronize(b.it) == cudaSuccess);
  }
  CHECK(cudaFree(known) == cudaSuccess);
  cudaGetLastError();
}

TEST_CASE("host_cuda: streams and events of two devices don't mix") {
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  const stream there;
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  const stream here;
  const event mark;
  int x = 0;
  const cudaLaunchConfig_t shape = shape_of(1, 1, there.it);
  CHECK(cudaLaunchKernelEx(&shape, put, &x, 1) == cudaErrorInvalidResourceHandle);
  CHECK(cudaEventRecord(mark.it, there.it) == cudaErrorInvalidResourceHandle);
  CHECK(cudaEventRecord(mark.it, here.it) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(there.it, mark.it, 0) == cudaSuccess);
  CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice);
  cudaGetLastError();
}

TEST_CASE("host_cuda: launches that no card takes are refused") {
  int x = 0;
  for (cudaLaunchConfig_t shape : {shape_of(0, 1), shape_of(1, 0), shape_of(1, 1025)}) {
    CHECK(cudaLaunchKernelEx(&shape, put, &x, 1) == cudaErrorInvalidConfiguration);
  }
  cudaLaunchConfig_t tall = shape_of(1, 1);
  tall.gridDim.y = 65536;
  CHECK(cudaLaunchKernelEx(&tall, put, &x, 1) == cudaErrorInvalidConfiguration);
  CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
  CHECK(cudaGetLastError() == cudaSuccess);
}

namespace {

/// Makes something again and again, each time with one more call of the run time before the one that is
/// refused, until none was refused. Answers with the first call whose refusal left something behind.
template <class Make>
std::string fault_of_refusals(const Make& make, int& refusals) {
  const std::size_t before = host_cuda::things_alive();
  std::string fault;
  for (refusals = 0; refusals < 1000; ++refusals) {
    host_cuda::refuse_after(refusals);
    bool noticed = false;
    try {
      noticed = !make().ok();
    } catch (const deeprec::error&) {
      noticed = true;
    } catch (const std::bad_alloc&) {
      noticed = true;
    }
    const bool refused = host_cuda::has_refused();
    host_cuda::refuse_after(-1);
    cudaGetLastError();
    if (host_cuda::things_alive() != before)
      return "call " + std::to_string(refusals) + " leaves something behind";
    if (noticed && !refused) return "call " + std::to_string(refusals) + " fails by itself";
    if (!refused) return {};
  }
  return "calls without end";
}

}  // namespace

TEST_CASE("B10: what was acquired is given back when a later call of the run time fails") {
  using namespace deeprec;
  int refusals = 0;
  const auto count = [&](const auto& make) { return fault_of_refusals(make, refusals); };
  CHECK(count([] {
          cuda_stream made;
          return made.synchronize();
        }) == "");
  CHECK(refusals >= 5);
  CHECK(count([] {
          cuda_stream made(stream_priority::high);
          return status();
        }) == "");
  {
    const stream borrowed;
    CHECK(count([&] {
            cuda_stream made(borrowed.it);
            return status();
          }) == "");
    CHECK(count([&] {
            cuda_staging staging(borrowed.it);
            int number = 0;
            if (const status s = staging.acquire(1000, number); !s) return s;
            if (const status s = staging.upload(number, 1000); !s) return s;
            if (const status s = staging.use(number, nullptr); !s) return s;
            return staging.release(number, nullptr);
          }) == "");
    CHECK(refusals >= 8);
  }
  CHECK(count([] {
          cuda_stream_pool pool(3);
          return pool.fork();
        }) == "");
  CHECK(refusals >= 15);
  CHECK(count([] {
          cuda_stream_pool pool(2);
          task_list work;
          const index_t first = work.add({});
          work.add({first});
          stream_plan plan;
          if (const status s = plan_streams(work, 2, plan); !s) return s;
          return pool.replay(plan, [](index_t, cuda_stream&) { return status(); });
        }) == "");
  CHECK(count([] {
          cuda_event made(true);
          return status();
        }) == "");
  CHECK(refusals == 1);
  CHECK(count([] {
          const device_array<int> made(100);
          return status();
        }) == "");
  CHECK(count([] {
          pinned_resource pinned;
          const std::pmr::vector<int> a(100, &pinned), b(100, &pinned);
          return status();
        }) == "");
  CHECK(refusals == 2);
  CHECK(count([] {
          managed_resource managed;
          const std::pmr::vector<int> a(100, &managed), b(100, &managed);
          return status();
        }) == "");
  CHECK(refusals >= 5);
  CHECK(count([] {
          cuda_stream a, b;
          cuda_pool_resource pool(1 << 12);
          void *first = nullptr, *again = nullptr;
          if (const status s = pool.allocate(4096, a.get(), first); !s) return s;
          if (const status s = pool.deallocate(first, a.get()); !s) return s;
          if (const status s = pool.allocate(4096, b.get(), again); !s) return s;
          return pool.deallocate(again, b.get());
        }) == "");
}
