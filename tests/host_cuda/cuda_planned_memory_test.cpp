// Plans of the blocks of steps on one stream: served from one arena of the device, without a call to the
// memory behind.
#include <deeprec/memory/cuda_planned_memory.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include <deeprec/exec/cuda/cuda_workspace.hpp>

#include "owned_stream.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

using stream = deeprec_test::owned_stream;

/// cudaMallocAsync, counted, of so many bytes.
class counted_device {
 public:
  explicit counted_device(std::size_t bytes = std::size_t{1} << 40) : left_(bytes) {}
  int allocated = 0, freed = 0, strangers = 0;

  void* allocate_async(std::size_t bytes, std::size_t, cudaStream_t on) {
    void* block = nullptr;
    if (bytes > left_ || cudaMallocAsync(&block, bytes, on) != cudaSuccess) return nullptr;
    left_ -= bytes;
    ++allocated;
    blocks_[block] = {bytes, on};
    return block;
  }
  void deallocate_async(void* block, std::size_t bytes, std::size_t, cudaStream_t on) {
    const auto found = blocks_.find(block);
    if (found == blocks_.end() || found->second != std::pair(bytes, on)) {
      ++strangers;
      return;
    }
    blocks_.erase(found);
    left_ += bytes;
    ++freed;
    static_cast<void>(cudaFreeAsync(block, on));
  }
  [[nodiscard]] bool empty() const { return blocks_.empty(); }

 private:
  std::size_t left_;
  std::map<void*, std::pair<std::size_t, cudaStream_t>> blocks_;
};

/// A step of random lifetimes: the bytes of each block hold its number while it lives, in stream order.
struct random_step {
  struct event {
    std::size_t block;
    bool begins;
  };
  std::vector<std::size_t> bytes;
  std::vector<event> events;

  explicit random_step(std::mt19937_64& random) {
    std::vector<std::size_t> live;
    while (bytes.size() < 40 || !live.empty()) {
      if (bytes.size() < 40 && (live.size() < 2 || random() % 2 == 0)) {
        live.push_back(bytes.size());
        events.push_back({bytes.size(), true});
        bytes.push_back(1 + random() % 5000);
      } else {
        std::swap(live[random() % live.size()], live.back());
        events.push_back({live.back(), false});
        live.pop_back();
      }
    }
  }
  /// Whether every block kept its bytes to its end.
  bool run(cuda_planned_memory& memory, cudaStream_t on, std::vector<void*>* places = nullptr) const {
    std::vector<void*> blocks(bytes.size());
    std::vector<unsigned char> found(8192);
    bool right = true;
    for (const event& e : events) {
      const auto mark = static_cast<unsigned char>(e.block);
      if (e.begins) {
        blocks[e.block] = memory.allocate_async(bytes[e.block], 256, on);
        REQUIRE(blocks[e.block] != nullptr);
        CHECK(reinterpret_cast<std::uintptr_t>(blocks[e.block]) % 256 == 0);
        REQUIRE(cudaMemsetAsync(blocks[e.block], mark, bytes[e.block], on) == cudaSuccess);
      } else {
        REQUIRE(cudaMemcpyAsync(found.data(), blocks[e.block], bytes[e.block], cudaMemcpyDeviceToHost, on) ==
                cudaSuccess);
        REQUIRE(cudaStreamSynchronize(on) == cudaSuccess);
        for (std::size_t i = 0; i < bytes[e.block]; ++i) right = right && found[i] == mark;
        memory.deallocate_async(blocks[e.block], bytes[e.block], 256, on);
      }
    }
    if (places != nullptr) *places = std::move(blocks);
    return right;
  }
};

}  // namespace

TEST_CASE("cuda_planned_memory: steps that repeat call no allocator, and blocks keep their bytes") {
  const stream s;
  counted_device device;
  std::mt19937_64 random(seed());
  const random_step work(random);
  {
    cuda_planned_memory memory(s.it, stream_memory_ref{device});
    for (int k = 0; k < 4; ++k) {
      const cuda_planned_memory::step now = memory.begin(64);
      CHECK(work.run(memory, s.it));
    }
    const int calls = device.allocated;
    std::vector<void*> first, places;
    for (int k = 0; k < 5; ++k) {
      const cuda_planned_memory::step now = memory.begin(64);
      CHECK(work.run(memory, s.it, k == 0 ? &first : &places));
    }
    CHECK(places == first);
    CHECK(device.allocated == calls);
    CHECK(memory.report().served_steps >= 5);
    CHECK(memory.report().missed_steps == 0);
    CHECK(memory.report().planned_bytes < memory.report().requested_bytes);
    // Another step leaves the plan, and is right all the same.
    const random_step other(random);
    const cuda_planned_memory::step now = memory.begin(64);
    CHECK(other.run(memory, s.it));
    CHECK(device.allocated > calls);
  }
  CHECK(device.empty());
  CHECK(device.strangers == 0);
}

TEST_CASE("cuda_planned_memory: what is on another stream or aligned to more goes to the memory behind") {
  const stream s, t;
  counted_device device;
  {
    cuda_planned_memory memory(s.it, stream_memory_ref{device});
    for (int k = 0; k < 6; ++k) {
      const cuda_planned_memory::step now = memory.begin();
      void* const planned = memory.allocate_async(1000, 16, s.it);
      const int calls = device.allocated;
      void* const other = memory.allocate_async(1000, 16, t.it);
      void* const aligned = memory.allocate_async(1000, 4096, s.it);
      CHECK(device.allocated == calls + 2);
      memory.deallocate_async(aligned, 1000, 4096, s.it);
      memory.deallocate_async(other, 1000, 16, t.it);
      memory.deallocate_async(planned, 1000, 16, s.it);
    }
    CHECK(memory.report().served_steps == 3);
  }
  CHECK(device.empty());
  CHECK(device.strangers == 0);
}

TEST_CASE("cuda_planned_memory: a refusal is null, a refused arena none, and nothing is lost") {
  const stream s;
  counted_device device(6000);
  {
    cuda_planned_memory memory(s.it, stream_memory_ref{device});
    for (int k = 0; k < 6; ++k) {
      const cuda_planned_memory::step now = memory.begin();
      void* const one = memory.allocate_async(3000, 256, s.it);
      void* const two = memory.allocate_async(2000, 256, s.it);
      REQUIRE(one != nullptr);
      REQUIRE(two != nullptr);
      CHECK(memory.allocate_async(3000, 256, s.it) == nullptr);  // also: 8192 bytes of an arena
      memory.deallocate_async(two, 2000, 256, s.it);
      memory.deallocate_async(one, 3000, 256, s.it);
    }
    CHECK(memory.report().served == 0);
  }
  CHECK(device.empty());
  CHECK(device.strangers == 0);
}

TEST_CASE("cuda_planned_memory: is what a workspace allocates its scratch from") {
  const stream s;
  counted_device device;
  {
    cuda_planned_memory memory(s.it, stream_memory_ref{device});
    for (int k = 0; k < 6; ++k) {
      const cuda_planned_memory::step now = memory.begin();
      detail::stream_scratch scratch(stream_memory_ref{memory});
      std::byte* block = nullptr;
      REQUIRE(scratch.get(s.it, 10'000, block).ok());
      REQUIRE(cudaMemsetAsync(block, 1, 10'000, s.it) == cudaSuccess);
    }
    CHECK(memory.report().served_steps == 3);
    REQUIRE(cudaStreamSynchronize(s.it) == cudaSuccess);
  }
  CHECK(device.empty());
}
