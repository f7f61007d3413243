// Workspaces of device calls: scratch that is never given to two at once, memory of the caller's, streams of
// any type, and faults that are polled.

#include <deeprec/exec/cuda/cuda_stream.hpp>
#include <deeprec/exec/cuda/cuda_workspace.hpp>
#include <deeprec/memory/cuda_memory.hpp>
#include <deeprec/memory/cuda_stream_memory.hpp>
#include <deeprec/support/verb.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <map>
#include <new>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

using namespace deeprec;

namespace {

using scratch_type = detail::stream_scratch;

/// A stream of a framework: owns a handle, and has the accessor that its test needs.
class own_stream {
 public:
  own_stream() { REQUIRE(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, 0) == cudaSuccess); }
  own_stream(const own_stream&) = delete;
  own_stream& operator=(const own_stream&) = delete;
  ~own_stream() { cudaStreamDestroy(stream_); }
  [[nodiscard]] cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};
struct like_torch {
  cudaStream_t handle;
  [[nodiscard]] cudaStream_t stream() const { return handle; }
};
struct like_rmm {
  cudaStream_t handle;
  [[nodiscard]] cudaStream_t value() const { return handle; }
};
struct converts {
  cudaStream_t handle;
  explicit(false) operator cudaStream_t() const { return handle; }
};
static_assert(CudaStreamLike<cudaStream_t> && CudaStreamLike<own_stream> && CudaStreamLike<like_torch> &&
              CudaStreamLike<like_rmm> && CudaStreamLike<converts> && !CudaStreamLike<int>);
static_assert(std::is_copy_constructible_v<cuda_executor> && !std::is_copy_constructible_v<cuda_stream> &&
              !std::is_copy_constructible_v<cuda_workspace>);
static_assert(std::is_same_v<detail::backend_of<context<const cuda_executor>>, cuda_backend>);

/// Device memory in the shape of cuda::mr: limited, and counted.
struct counting_memory {
  struct given {
    std::size_t bytes;
    cudaStream_t on;
  };
  std::map<void*, given> blocks;
  std::size_t limit = std::numeric_limits<std::size_t>::max();
  bool throws = false;
  int on_other_stream = 0;

  void* allocate_async(std::size_t bytes, std::size_t alignment, cudaStream_t on) {
    CHECK(alignment == 256);
    if (throws) throw std::runtime_error("mine");
    void* made = nullptr;
    if (bytes > limit || !cuda_runtime::allocate(made, bytes).ok()) throw std::bad_alloc();
    blocks[made] = {bytes, on};
    return made;
  }
  void deallocate_async(void* p, std::size_t bytes, std::size_t, cudaStream_t on) {
    REQUIRE(blocks.count(p) == 1);
    CHECK(blocks.at(p).bytes == bytes);
    on_other_stream += blocks.at(p).on == on ? 0 : 1;
    blocks.erase(p);
    cuda_runtime::deallocate(p);
  }
};
static_assert(StreamMemory<counting_memory> && !StreamMemory<own_stream>);

__global__ void find(device_fault* record, int code, index_t bag) {
  if (!record->comes_after(0, bag, 0)) return;
  record->code = code;
  record->bag = bag;
}
status find_at(const cuda_executor& on, index_t bag) {
  cudaLaunchConfig_t shape{};
  shape.gridDim = dim3(1);
  shape.blockDim = dim3(1);
  shape.stream = on.get();
  return cuda_status(
      cudaLaunchKernelEx(&shape, find, on.fault_record(), static_cast<int>(errc::id_out_of_range), bag));
}

/// Bytes of another verb, asked for while `kept` is in use: do they overlap?
bool overlap(const std::vector<std::pair<std::byte*, std::size_t>>& kept, const std::byte* other,
             std::size_t bytes) {
  const auto at = [](const std::byte* p) { return reinterpret_cast<std::uintptr_t>(p); };
  for (const auto& [p, n] : kept) {
    if (at(p) < at(other) + bytes && at(other) < at(p) + n) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("stream_scratch: verbs share the front of one block, which grows") {
  const own_stream stream;
  counting_memory memory;
  {
    scratch_type scratch(memory);
    std::byte *first = nullptr, *second = nullptr, *third = nullptr;
    REQUIRE(scratch.get(stream.get(), 0, first).ok());
    CHECK(first == nullptr);
    REQUIRE(scratch.get(stream.get(), 1000, first).ok());
    REQUIRE(scratch.get(stream.get(), 600, second).ok());
    CHECK(first == second);
    REQUIRE(scratch.get(stream.get(), 1001, third).ok());
    CHECK(memory.blocks.size() == 2);  // the first stays: a graph may use it
    CHECK(memory.blocks.at(third).bytes == 1500);
    memory.limit = 0;
    CHECK(scratch.get(stream.get(), 4000, second).code() == errc::out_of_memory);
    REQUIRE(scratch.get(stream.get(), 1500, second).ok());
    CHECK(second == third);
  }
  CHECK(memory.blocks.empty());
}

TEST_CASE("stream_scratch: what is kept overlaps nothing that others get, whether or not it grows") {
  const own_stream stream;
  counting_memory memory;
  {
    scratch_type scratch(memory);
    for (int step = 0; step < 3; ++step) {  // the first ones grow
      std::vector<std::pair<std::byte*, std::size_t>> kept;
      std::byte* p = nullptr;
      scratch_type::scope outer(scratch);
      REQUIRE(outer.take(stream.get(), 300, p).ok());
      kept.emplace_back(p, 300);
      for (const std::size_t bytes : {100, 5000, 700, 20000}) {
        REQUIRE(scratch.get(stream.get(), bytes, p).ok());
        CHECK_FALSE(overlap(kept, p, bytes));
      }
      std::byte* of_inner = nullptr;
      {
        scratch_type::scope inner(scratch);
        REQUIRE(inner.take(stream.get(), 40000, of_inner).ok());
        CHECK_FALSE(overlap(kept, of_inner, 40000));
        REQUIRE(scratch.get(stream.get(), 10000, p).ok());
        CHECK_FALSE(overlap(kept, p, 10000));
        CHECK_FALSE(overlap({{of_inner, 40000}}, p, 10000));
      }
      REQUIRE(scratch.get(stream.get(), 10000, p).ok());
      CHECK_FALSE(overlap(kept, p, 10000));
      if (step > 0) CHECK(p == of_inner);  // that scope has ended, and nothing had to grow
    }
    std::byte *front = nullptr, *behind = nullptr;
    REQUIRE(scratch.get(stream.get(), 10, front).ok());
    scratch_type::scope kept(scratch);
    REQUIRE(kept.take(stream.get(), 10, behind).ok());
    CHECK(front == behind);  // all scopes have ended
    REQUIRE(scratch.get(stream.get(), 10, behind).ok());
    CHECK(behind - front == scratch_type::alignment);
  }
  CHECK(memory.blocks.empty());
}

TEST_CASE("stream_scratch: bytes that no address space has are refused, whatever is kept") {
  const own_stream stream;
  counting_memory memory;
  memory.limit = 1 << 20;
  {
    scratch_type scratch(memory);
    for (const std::size_t keep : {0, 1, 256, 1000}) {
      scratch_type::scope kept(scratch);
      std::byte *p = nullptr, *q = nullptr;
      REQUIRE(kept.take(stream.get(), keep, p).ok());
      for (const std::size_t bytes :
           {SIZE_MAX, SIZE_MAX - 255, SIZE_MAX - 256, SIZE_MAX - 1000, SIZE_MAX / 2}) {
        CAPTURE(bytes);
        CHECK(scratch.get(stream.get(), bytes, q).code() == errc::out_of_memory);
        CHECK(kept.take(stream.get(), bytes, q).code() == errc::out_of_memory);
        CHECK(q == nullptr);
      }
    }
  }
  CHECK(memory.blocks.empty());
}

TEST_CASE("stream_scratch: a step that ran once is captured without growing, a larger one is refused") {
  const own_stream stream;
  counting_memory memory;
  scratch_type scratch(memory);
  const auto step = [&](std::size_t own, std::size_t of_others) {
    std::byte* p = nullptr;
    scratch_type::scope kept(scratch);
    if (const status s = kept.take(stream.get(), own, p); !s) return s;
    return scratch.get(stream.get(), of_others, p);
  };
  REQUIRE(step(1000, 5000).ok());
  const std::size_t blocks = memory.blocks.size();
  REQUIRE(cuda_runtime::begin_capture(stream.get()).ok());
  CHECK(step(1000, 5000).ok());
  CHECK(step(1000, 9000).code() == errc::unsupported);
  CHECK(memory.blocks.size() == blocks);
  cuda_runtime::graph graph{};
  REQUIRE(cuda_runtime::end_capture(stream.get(), graph).ok());
  cuda_runtime::end_graph(graph);
  CHECK(step(1000, 9000).ok());
}

TEST_CASE("cuda_workspace: scratch is of the caller's memory, and is given back on the stream") {
  const own_stream stream;
  counting_memory memory;
  {
    cuda_workspace work{stream_memory_ref(memory)};
    const cuda_executor on(stream, work);
    std::byte *first = nullptr, *second = nullptr;
    REQUIRE(on.scratch(1000, first).ok());
    CHECK(memory.blocks.count(first) == 1);
    REQUIRE(cuda_executor(stream, work).scratch(1000, second).ok());  // another call
    CHECK(first == second);
    CHECK(memory.blocks.size() == 1);
    memory.limit = 0;
    CHECK(on.scratch(5000, second).code() == errc::out_of_memory);
    memory.throws = true;
    CHECK(on.scratch(5000, second).code() == errc::device_error);
    {
      cuda_executor::scratch_scope kept(on);
      REQUIRE(kept.take(400, first).ok());
      REQUIRE(on.scratch(400, second).ok());
      CHECK(second - first == 512);
    }
    REQUIRE(on.synchronize().ok());
  }
  CHECK(memory.blocks.empty());
  CHECK(memory.on_other_stream == 0);
}

TEST_CASE("cuda_workspace: cudaMallocAsync without a memory, and with a stream of its own") {
  {
    cuda_stream stream;
    std::byte* p = nullptr;
    REQUIRE(stream.scratch(100, p).ok());
    REQUIRE(cuda_status(cudaMemsetAsync(p, 0, 100, stream.get())).ok());
    REQUIRE(stream.synchronize().ok());
  }
  counting_memory memory;
  {
    cuda_stream stream(stream_priority::normal, memory);
    std::byte* p = nullptr;
    REQUIRE(stream.scratch(100, p).ok());
    CHECK(memory.blocks.size() == 1);
  }
  CHECK(memory.blocks.empty());
}

TEST_CASE("cuda_executor: takes every kind of stream") {
  const own_stream stream;
  cuda_workspace work;
  const cudaStream_t handle = stream.get();
  CHECK(cuda_executor(handle, work).get() == handle);
  CHECK(cuda_executor(stream, work).get() == handle);
  CHECK(cuda_executor(like_torch{handle}, work).get() == handle);
  CHECK(cuda_executor(like_rmm{handle}, work).get() == handle);
  CHECK(cuda_executor(converts{handle}, work).get() == handle);
  CHECK(cuda_stream(like_torch{handle}).get() == handle);
}

TEST_CASE("cuda_executor: a fault is polled without waiting, until it is cleared") {
  const own_stream stream;
  cuda_workspace work;
  const cuda_executor on(stream, work);
  CHECK(on.poll().ok());
  for (const index_t bag : {7, 3}) {
    REQUIRE(find_at(on, bag).ok());
    status s;
    for (int calls = 0; calls < 3; ++calls) {  // a copy under way may be older than the fault
      s = on.poll();
      if (!s.ok() && s.place().bag == bag) break;
      CHECK((s.ok() ? bag == 7 : s.place().bag == 7));
      REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    }
    CHECK(s.code() == errc::id_out_of_range);
    CHECK(on.poll().place().bag == bag);
  }
  CHECK(on.synchronize().place().bag == 3);
  CHECK(on.poll().ok());
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(on.poll().ok());
  CHECK(on.synchronize().ok());
}

TEST_CASE("cuda_executor: polling waits for nothing and adds nothing to a capture") {
  const own_stream stream;
  cuda_workspace work;
  const cuda_executor on(stream, work);
  REQUIRE(find_at(on, 7).ok());
  REQUIRE(on.synchronize().place().bag == 7);
  cuda_runtime::graph graph{};
  cuda_runtime::graph_exec exec{};
  REQUIRE(cuda_runtime::begin_capture(on.get()).ok());
  REQUIRE(find_at(on, 5).ok());
  CHECK(on.poll().ok());
  REQUIRE(cuda_runtime::end_capture(on.get(), graph).ok());
  REQUIRE(cuda_runtime::instantiate(exec, graph).ok());
  REQUIRE(cuda_runtime::launch(exec, on.get()).ok());
  CHECK(on.poll().ok());  // enqueues the copy
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(on.poll().place().bag == 5);
  CHECK(on.synchronize().place().bag == 5);
  cuda_runtime::end_graph(graph);
  cuda_runtime::end_exec(exec);
}
