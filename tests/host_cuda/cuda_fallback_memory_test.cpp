// Memory of the device, then of the host: within the budget, in the order of streams, and given back to where
// it came from.
#include <deeprec/memory/cuda_fallback_memory.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "owned_stream.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

using stream = deeprec_test::owned_stream;

/// A device with so many bytes.
class small_device {
 public:
  explicit small_device(std::size_t bytes) : left_(bytes) {}
  int strangers = 0;

  void* allocate_async(std::size_t bytes, std::size_t, cudaStream_t on) {
    if (bytes > left_) return nullptr;
    void* block = nullptr;
    if (cudaMallocAsync(&block, bytes, on) != cudaSuccess) return nullptr;
    left_ -= bytes;
    blocks_[block] = bytes;
    return block;
  }
  void deallocate_async(void* block, std::size_t bytes, std::size_t, cudaStream_t on) {
    if (blocks_.erase(block) == 0) {
      ++strangers;
      return;
    }
    left_ += bytes;
    static_cast<void>(cudaFreeAsync(block, on));
  }
  [[nodiscard]] std::size_t left() const { return left_; }

 private:
  std::size_t left_;
  std::map<void*, std::size_t> blocks_;
};

cudaMemoryType kind_of(const void* block) {
  cudaPointerAttributes facts{};
  REQUIRE(cudaPointerGetAttributes(&facts, block) == cudaSuccess);
  return facts.type;
}

}  // namespace

TEST_CASE(
    "cuda_fallback_memory: the host serves what the device refuses, until the budget ends, and refills") {
  const stream s, t;
  small_device device(10'000);
  const std::size_t alive = host_cuda::things_alive();
  {
    cuda_fallback_memory memory(stream_memory_ref{device}, 5000, 4096);
    const stream_memory_ref ref(memory);
    std::vector<void*> blocks(15, nullptr);
    for (std::size_t k = 0; k < 15; ++k) {
      REQUIRE(ref.allocate(blocks[k], 1000, 256, k % 2 == 0 ? s.it : t.it).ok());
      CHECK(kind_of(blocks[k]) == (k < 10 ? cudaMemoryTypeDevice : cudaMemoryTypeHost));
    }
    CHECK(memory.report().bytes == 5000);
    CHECK(memory.report().blocks == 5);
    void* none = nullptr;
    CHECK(ref.allocate(none, 1, 256, s.it).ok() == false);
    CHECK(ref.allocate(none, 20'000, 256, s.it).code() == errc::out_of_memory);
    CHECK(memory.report().refusals >= 1);
    // What the device frees it serves again.
    ref.deallocate(blocks[3], 1000, 256, t.it);
    CHECK(device.left() == 1000);
    REQUIRE(ref.allocate(blocks[3], 1000, 256, s.it).ok());
    CHECK(kind_of(blocks[3]) == cudaMemoryTypeDevice);
    ref.deallocate(blocks[12], 1000, 256, s.it);
    CHECK(memory.report().bytes == 4000);
    REQUIRE(ref.allocate(blocks[12], 900, 256, t.it).ok());
    CHECK(kind_of(blocks[12]) == cudaMemoryTypeHost);
    CHECK(memory.report().bytes == 4900);
    for (std::size_t k = 0; k < 15; ++k) ref.deallocate(blocks[k], k == 12 ? 900 : 1000, 256, s.it);
    CHECK(memory.report().blocks == 0);
    CHECK(memory.report().bytes == 0);
    CHECK(device.left() == 10'000);
    CHECK(device.strangers == 0);
    REQUIRE(memory.trim().ok());
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  }
  CHECK(host_cuda::things_alive() == alive);
}

TEST_CASE("cuda_fallback_memory: random traffic goes back to where it came from, and keeps the budget") {
  struct held {
    void* block;
    std::size_t bytes;
    cudaStream_t on;
  };
  const stream streams[3];
  std::mt19937_64 random(seed());
  small_device device(20'000);
  {
    cuda_fallback_memory memory(stream_memory_ref{device}, 8000, 4096);
    std::vector<held> all;
    index_t of_host = 0;
    for (int call = 0; call < 5000; ++call) {
      const cudaStream_t on = streams[random() % 3].it;
      if (all.size() < 3 || (random() % 100 < 55 && all.size() < 60)) {
        const std::size_t bytes = 1 + random() % 2000;
        void* const block = memory.allocate_async(bytes, 256, on);
        if (block == nullptr) continue;
        of_host += kind_of(block) == cudaMemoryTypeHost ? 1 : 0;
        all.push_back({block, bytes, on});
      } else {
        std::swap(all[random() % all.size()], all.back());
        memory.deallocate_async(all.back().block, all.back().bytes, 256, all.back().on);
        all.pop_back();
      }
      REQUIRE(memory.report().bytes <= 8000);
    }
    CHECK(of_host > 100);
    CHECK(memory.report().refusals > 0);
    for (const held& one : all) memory.deallocate_async(one.block, one.bytes, 256, one.on);
    CHECK(memory.report().bytes == 0);
    CHECK(device.left() == 20'000);
    CHECK(device.strangers == 0);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  }
}

TEST_CASE("cuda_fallback_memory: any call of the runtime that is refused leaves what was there") {
  const stream s;
  for (int n = 0;; ++n) {
    small_device device(1000);
    bool refused = false;
    {
      cuda_fallback_memory memory(stream_memory_ref{device}, 10'000, 4096);
      void* const first = memory.allocate_async(3000, 256, s.it);
      REQUIRE(first != nullptr);
      host_cuda::refuse_after(n);
      void* second = memory.allocate_async(3000, 256, s.it);
      refused = host_cuda::has_refused();
      host_cuda::refuse_after(-1);
      CHECK((second != nullptr || refused));
      CHECK(memory.report().bytes == (second == nullptr ? 3000 : 6000));
      if (second == nullptr) second = memory.allocate_async(3000, 256, s.it);
      REQUIRE(second != nullptr);
      memory.deallocate_async(second, 3000, 256, s.it);
      memory.deallocate_async(first, 3000, 256, s.it);
      CHECK(memory.report().bytes == 0);
      REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    }
    if (!refused) {
      CHECK(n > 0);
      break;
    }
  }
}

TEST_CASE("cuda_fallback_memory: a block of the host that is given back in a capture stays in use") {
  const stream s, other;
  small_device device(0);
  cuda_fallback_memory memory(stream_memory_ref{device}, 10'000, 4096);
  void* const block = memory.allocate_async(3000, 256, s.it);
  REQUIRE(block != nullptr);
  REQUIRE(cuda_runtime::begin_capture(s.it).ok());
  memory.deallocate_async(block, 3000, 256, s.it);
  CHECK(memory.report().bytes == 3000);
  CHECK(memory.allocate_async(3000, 256, s.it) == nullptr);
  cudaGraph_t recorded{};
  REQUIRE(cuda_runtime::end_capture(s.it, recorded).ok());
  cuda_runtime::end_graph(recorded);
  memory.deallocate_async(block, 3000, 256, s.it);
  CHECK(memory.report().bytes == 0);
}
