// No two uses of a byte are unordered, whatever the schedule.
#include <deeprec/memory/cuda_pool_resource.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "owned_stream.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

using stream = deeprec_test::owned_stream;

struct use {
  std::byte* begin;
  std::size_t bytes;
  int block;
  std::size_t node;
};

/// Random traffic over three streams: every use of a byte by one block must be ordered with its uses by
/// every other block. Answers with the first pair that is not.
std::string traffic_fault(std::uint64_t seed, int rounds, stream_pool_report& report,
                          host_cuda::lost what = host_cuda::lost::nothing) {
  const stream streams[3];
  host_cuda::recording log;
  host_cuda::lose(what);
  const std::size_t alive = host_cuda::things_alive();
  std::mt19937_64 random(seed);
  std::vector<use> uses;
  struct held {
    void* memory;
    std::size_t bytes;
    cudaStream_t stream;
    int block;
  };
  std::vector<held> all;
  std::string fault;
  {
    cuda_pool_resource pool(1 << 14);
    for (int round = 0; round < rounds; ++round) {
      const std::size_t which_stream = random() % 3;
      const cudaStream_t on = streams[which_stream].it;
      if (all.size() < 6 || random() % 2 == 0) {
        held made{nullptr, 1 + static_cast<std::size_t>(random() % 5000), on, round};
        REQUIRE(pool.allocate(made.bytes, on, made.memory).ok());
        REQUIRE(reinterpret_cast<std::uintptr_t>(made.memory) % 16 == 0);
        uses.push_back({static_cast<std::byte*>(made.memory), made.bytes, made.block, log.mark(on, round)});
        if (random() % 4 == 0) {  // a second stream reads it, behind the first
          const cudaStream_t other = streams[(which_stream + 1) % 3].it;
          cudaEvent_t e{};
          REQUIRE(cuda_runtime::make_event(e, false).ok());
          REQUIRE(cuda_runtime::record(e, on).ok());
          REQUIRE(cuda_runtime::wait(other, e).ok());
          cuda_runtime::end_event(e);
          REQUIRE(pool.also_used_on(made.memory, other).ok());
          uses.push_back(
              {static_cast<std::byte*>(made.memory), made.bytes, made.block, log.mark(other, round)});
        }
        all.push_back(made);
      } else {
        const std::size_t which = static_cast<std::size_t>(random() % all.size());
        REQUIRE(pool.deallocate(all[which].memory, all[which].stream).ok());
        CHECK(pool.deallocate(all[which].memory, all[which].stream).code() == errc::invalid_value);
        all.erase(all.begin() + static_cast<std::ptrdiff_t>(which));
      }
    }
    report = pool.report();
    for (std::size_t i = 0; i < uses.size() && fault.empty(); ++i) {
      const auto known = log.before(uses[i].node);
      for (std::size_t j = 0; j < i; ++j) {
        const bool overlap =
            uses[i].begin < uses[j].begin + uses[j].bytes && uses[j].begin < uses[i].begin + uses[i].bytes;
        if (overlap && uses[i].block != uses[j].block && known.count(uses[j].node) == 0) {
          fault =
              "block " + std::to_string(uses[i].block) + " not behind block " + std::to_string(uses[j].block);
          break;
        }
      }
    }
    for (const held& h : all) REQUIRE(pool.deallocate(h.memory, h.stream).ok());
    CHECK(pool.report().in_use == 0);
    REQUIRE(pool.trim().ok());
    CHECK(pool.report().reserved == 0);
  }
  CHECK(host_cuda::things_alive() == alive);
  return fault;
}

}  // namespace

TEST_CASE("cuda_pool_resource: no byte is used by two blocks out of order") {
  stream_pool_report report;
  int caught = 0;
  for (std::uint64_t i = 0; i < 12; ++i) {
    const std::string fault = traffic_fault(seed() + i, 250, report);
    CHECK_MESSAGE(fault == "", fault);
    CHECK(report.events > 0);
    caught +=
        traffic_fault(seed() + i, 250, report, host_cuda::lost::waits_of_streams) != "" ? 1 : 0;  // broken
  }
  CHECK(caught == 12);
}

TEST_CASE("cuda_pool_resource: one stream alone records no event and asks for memory once") {
  const stream s;
  const host_cuda::recording log;
  cuda_pool_resource pool(1 << 16);
  void *first = nullptr, *again = nullptr;
  REQUIRE(pool.allocate(1000, s.it, first).ok());
  for (int i = 0; i < 50; ++i) {
    REQUIRE(pool.deallocate(first, s.it).ok());
    REQUIRE(pool.allocate(1000, s.it, again).ok());
    CHECK(again == first);
  }
  CHECK(pool.report().events == 0);
  CHECK(pool.report().in_use == 1024);
  CHECK(pool.report().reserved == 1 << 16);
  CHECK(log.size() == 0);  // of events, either
}

TEST_CASE("cuda_pool_resource: memory that is short is taken from free slabs, and then refused") {
  const stream s, t;
  const host_cuda::recording log;
  host_cuda::set_limit(host_cuda::allocated_bytes() + 40'000);
  cuda_pool_resource pool(16'384);
  void *a = nullptr, *b = nullptr, *c = nullptr;
  REQUIRE(pool.allocate(16'384, s.it, a).ok());
  REQUIRE(pool.allocate(16'384, t.it, b).ok());
  CHECK(pool.allocate(30'000, s.it, c).code() == errc::out_of_memory);
  REQUIRE(pool.deallocate(a, s.it).ok());
  REQUIRE(pool.deallocate(b, t.it).ok());
  REQUIRE(pool.allocate(30'000, s.it, c).ok());
  CHECK(pool.report().reserved == 30'208);
  REQUIRE(pool.deallocate(c, s.it).ok());
  REQUIRE(pool.forget(s.it).ok());
  REQUIRE(pool.allocate(100, t.it, c).ok());
  CHECK(pool.report().events == 0);  // nobody to wait for
  CHECK(pool.deallocate(&pool, t.it).code() == errc::invalid_value);
  CHECK(pool.also_used_on(&pool, t.it).code() == errc::invalid_value);
}

TEST_CASE("cuda_pool_resource: a size that no address space has is refused, and nothing changes") {
  for (const std::size_t slab : {std::size_t{0}, std::size_t{4096}, SIZE_MAX / 2, SIZE_MAX - 255, SIZE_MAX}) {
    CAPTURE(slab);
    const stream s;
    const host_cuda::recording log;
    host_cuda::set_limit(host_cuda::allocated_bytes() + (1 << 20));
    cuda_pool_resource pool(slab);
    void *held = nullptr, *out = nullptr, *next = nullptr;
    REQUIRE(pool.allocate(1000, s.it, held).ok());
    for (const std::size_t less : {0, 1, 10, 254, 255, 256, 257, 100'000}) {
      CAPTURE(less);
      const stream_pool_report before = pool.report();
      CHECK(pool.allocate(SIZE_MAX - less, s.it, out).code() == errc::out_of_memory);
      CHECK(out == nullptr);
      CHECK(pool.report().in_use == before.in_use);
      CHECK(pool.report().reserved == before.reserved);
    }
    REQUIRE(pool.allocate(1000, s.it, next).ok());
    CHECK(next != held);
    REQUIRE(pool.deallocate(next, s.it).ok());
    REQUIRE(pool.deallocate(held, s.it).ok());
    CHECK(pool.report().in_use == 0);
  }
}

TEST_CASE("hazard H17: a block is known by its address: no byte of it, or before it, is read or written") {
  const stream s;
  const host_cuda::recording log;
  host_cuda::close_memory(true);
  cuda_pool_resource pool(1 << 14);
  void *a = nullptr, *b = nullptr, *c = nullptr;
  REQUIRE(pool.allocate(1000, s.it, a).ok());  // the first of its slab: nothing lies before it
  REQUIRE(pool.allocate(3000, s.it, b).ok());
  REQUIRE(pool.allocate(1, s.it, c).ok());
  std::byte* const first = static_cast<std::byte*>(a);
  const stream_pool_report held = pool.report();
  // Inside a block, between blocks, at the ends of the slab, nowhere.
  for (const std::ptrdiff_t off :
       {1, 8, 16, 255, 256, 512, 999, 1000, 1023, 1025, 2048, 4097, 16383, 16384, -1, -16, -256}) {
    CAPTURE(off);
    CHECK(pool.deallocate(first + off, s.it).code() == errc::invalid_value);
    CHECK(pool.also_used_on(first + off, s.it).code() == errc::invalid_value);
  }
  int elsewhere = 0;
  for (void* const foreign :
       {static_cast<void*>(nullptr), static_cast<void*>(&elsewhere), static_cast<void*>(&pool)}) {
    CHECK(pool.deallocate(foreign, s.it).code() == errc::invalid_value);
  }
  cuda_pool_resource other(1 << 14);
  CHECK(other.deallocate(a, s.it).code() == errc::invalid_value);
  CHECK(pool.report().in_use == held.in_use);
  for (void* const block : {b, a, c}) {
    CHECK(pool.deallocate(block, s.it).ok());
    CHECK(pool.deallocate(block, s.it).code() == errc::invalid_value);
  }
  CHECK(pool.report().in_use == 0);
}

TEST_CASE("cuda_pool_resource: a capture neither gets blocks nor gives them back") {
  const stream s, t;
  const host_cuda::recording log;
  cuda_pool_resource pool(4096);
  void *before = nullptr, *freed = nullptr, *out = nullptr;
  REQUIRE(pool.allocate(2048, s.it, before).ok());
  REQUIRE(pool.allocate(1024, t.it, freed).ok());
  REQUIRE(pool.deallocate(freed, t.it).ok());
  const auto in_use = pool.report().in_use;
  REQUIRE(cuda_runtime::begin_capture(s.it).ok());
  for (const std::size_t bytes : {1024, 100'000}) {
    CHECK(pool.allocate(bytes, s.it, out).code() == errc::unsupported);
  }
  CHECK(pool.deallocate(before, s.it).code() == errc::unsupported);
  CHECK(pool.also_used_on(before, s.it).code() == errc::unsupported);
  CHECK(pool.forget(s.it).code() == errc::unsupported);
  CHECK(pool.report().in_use == in_use);
  cudaGraph_t graph{};
  CHECK(cuda_runtime::end_capture(s.it, graph).ok());  // nothing of it has ended the capture
  cuda_runtime::end_graph(graph);
  REQUIRE(pool.deallocate(before, s.it).ok());
}

TEST_CASE("cuda_pool_resource: a free block whose stream captures is left alone") {
  const stream s, t;
  const host_cuda::recording log;
  cuda_pool_resource pool(4096);
  void *of_s = nullptr, *of_t = nullptr, *out = nullptr, *more = nullptr;
  REQUIRE(pool.allocate(2048, s.it, of_s).ok());
  REQUIRE(pool.allocate(1024, t.it, of_t).ok());
  REQUIRE(pool.allocate(1024, t.it, more).ok());
  REQUIRE(pool.deallocate(of_s, s.it).ok());
  REQUIRE(pool.deallocate(of_t, t.it).ok());
  REQUIRE(cuda_runtime::begin_capture(s.it).ok());
  CHECK(pool.trim().code() == errc::unsupported);
  REQUIRE(pool.allocate(512, t.it, out).ok());
  CHECK(out == of_t);
  CHECK(pool.allocate(2048, t.it, of_t).code() == errc::device_error);  // of the run time, in a capture
  cudaStreamCaptureStatus of_other = cudaStreamCaptureStatusActive;
  REQUIRE(cudaStreamIsCapturing(t.it, &of_other) == cudaSuccess);
  CHECK(of_other == cudaStreamCaptureStatusNone);
  cudaGraph_t graph{};
  static_cast<void>(cuda_runtime::end_capture(s.it, graph));
  REQUIRE(pool.allocate(2048, t.it, of_t).ok());
  CHECK(of_t == of_s);
  CHECK(pool.report().events == 1);
}

TEST_CASE("cuda_pool_resource: a handle that is another stream in each thread is refused") {
  cuda_pool_resource pool;
  void* out = nullptr;
  CHECK(pool.allocate(100, cudaStreamPerThread, out).code() == errc::unsupported);
}

TEST_CASE("cuda_pool_resource: slabs and events lie on the device that the pool was made for") {
  const host_cuda::recording log;
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  const stream s, t;
  cuda_pool_resource pool(4096);
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  void *first = nullptr, *again = nullptr;
  REQUIRE(pool.allocate(4096, s.it, first).ok());
  cudaPointerAttributes block{};
  REQUIRE(cudaPointerGetAttributes(&block, first) == cudaSuccess);
  CHECK(block.device == 1);
  REQUIRE(pool.deallocate(first, s.it).ok());
  REQUIRE(pool.allocate(4096, t.it, again).ok());  // an event of another device is refused
  CHECK(again == first);
  CHECK(pool.report().events == 1);
  int device = -1;
  REQUIRE(cudaGetDevice(&device) == cudaSuccess);
  CHECK(device == 0);
}

namespace {

/// The free blocks that eight searches examine, with this many that `owners` other streams have used.
index_t searched(int free_blocks, int owners) {
  const std::vector<stream> streams(static_cast<std::size_t>(owners));
  const stream on;
  cuda_pool_resource pool(std::size_t{1} << 20);
  std::vector<void*> blocks(2 * static_cast<std::size_t>(free_blocks));
  const auto owner = [&](std::size_t i) { return streams[i / 2 % streams.size()].it; };
  for (std::size_t i = 0; i < blocks.size(); ++i) REQUIRE(pool.allocate(256, owner(i), blocks[i]).ok());
  for (std::size_t i = 0; i < blocks.size(); i += 2) REQUIRE(pool.deallocate(blocks[i], owner(i)).ok());
  const index_t before = pool.report().searched;
  for (int again = 0; again < 8; ++again) {
    void* out = nullptr;
    REQUIRE(pool.allocate(again % 2 == 0 ? 256 : 512, on.it, out).ok());  // all are too small for 512
  }
  return pool.report().searched - before;
}

}  // namespace

TEST_CASE("cuda_pool_resource: the search for a block does not walk the free ones") {
  const index_t one = searched(1 << 4, 1), three = searched(1 << 6, 3);
  CHECK(one > 0);
  CHECK(one <= 8 * 2);  // the list of the stream itself, and one more
  CHECK(three <= 8 * 4);
  CHECK(searched(1 << 10, 1) == one);
  CHECK(searched(1 << 10, 3) == three);
}

TEST_CASE("r09: a pool of device memory refuses a size near the largest number") {
  const std::size_t alive = host_cuda::blocks_alive();
  const stream on;
  {
    cuda_pool_resource pool;
    void *first = nullptr, *second = nullptr, *third = nullptr;
    CHECK(pool.allocate(SIZE_MAX - 10, on.it, first).code() == errc::out_of_memory);
    REQUIRE(pool.allocate(1000, on.it, second).ok());
    REQUIRE(pool.allocate(1000, on.it, third).ok());
    CHECK(first == nullptr);
    CHECK(second != third);
  }
  CHECK(host_cuda::blocks_alive() == alive);
}
