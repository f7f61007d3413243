// What the order of streams and events is, whatever the schedule: without the waits of a ring it is lost.
#include <deeprec/exec/cuda/cuda_staging.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "owned_stream.hpp"

using namespace deeprec;
using host_cuda::lost;

namespace {

constexpr lost forgetful = lost::waits_for_events;  // packs over a batch that is still read
constexpr lost impatient = lost::waits_of_streams;  // the step does not wait for its copy
constexpr lost merciful = lost::waits_for_streams;

using stream = deeprec_test::owned_stream;

/// Ten batches through two buffers: every step behind its copy, every copy behind the step that read the
/// buffer before, and no copy behind a step that it has nothing to do with.
std::string order_fault(lost what = lost::nothing) {
  const std::size_t alive = host_cuda::things_alive();
  const stream copies, compute;
  host_cuda::recording log;
  host_cuda::lose(what);
  std::map<int, std::size_t> step_of;
  std::string fault;
  {
    cuda_staging staging(copies.it);
    for (int batch = 0; batch < 10; ++batch) {
      int slot = -1;
      REQUIRE(staging.acquire(1000, slot).ok());
      CHECK(slot == batch % 2);
      const std::size_t copy = log.size();
      REQUIRE(staging.upload(slot, 1000).ok());
      REQUIRE(staging.use(slot, compute.it).ok());
      const std::size_t step = log.mark(compute.it, batch);
      log.use(step, staging.device(slot));
      REQUIRE(staging.release(slot, compute.it).ok());
      if (!log.ordered(copy, step)) fault = "a step before its copy";
      if (batch >= 2 && !log.ordered(step_of[batch - 2], copy)) fault = "a copy over a batch that is read";
      if (batch >= 1 && log.ordered(step_of[batch - 1], copy))
        fault = "a copy that waits for the step before";
      step_of[batch] = step;
    }
  }
  CHECK(host_cuda::things_alive() == alive + 2);
  return fault != "" ? fault : log.fault();
}

/// A slot that two streams use, in this order: A uses, B uses, a (b) releases; what comes next must be behind
/// all that was used. Ends with the ring, or with the next batch.
std::string consumer_fault(const std::string& order, bool next, lost what = lost::nothing) {
  const std::size_t alive = host_cuda::things_alive();
  const stream copies, streams[2];
  host_cuda::recording log;
  host_cuda::lose(what);
  std::string fault;
  {
    cuda_staging staging(copies.it, 1);
    int slot = -1;
    REQUIRE(staging.acquire(100, slot).ok());
    const std::size_t copy = log.size();
    REQUIRE(staging.upload(slot, 100).ok());
    std::vector<std::size_t> steps;
    for (const char c : order) {
      const cudaStream_t on = streams[c == 'A' || c == 'a' ? 0 : 1].it;
      if (c == 'A' || c == 'B') {
        REQUIRE(staging.use(slot, on).ok());
        steps.push_back(log.mark(on, static_cast<long long>(steps.size())));
        log.use(steps.back(), staging.device(slot));
        if (!log.ordered(copy, steps.back())) fault = "a step before its copy";
      } else {
        REQUIRE(staging.release(slot, on).ok());
      }
    }
    if (next) {
      const status s = staging.acquire(100, slot);
      if (!s.ok()) return to_string(s.code());
      const std::size_t again = log.size();
      REQUIRE(staging.upload(slot, 100).ok());
      for (const std::size_t step : steps) {
        if (!log.ordered(step, again)) fault = "a copy over a batch that is read";
      }
    }
  }
  CHECK(host_cuda::things_alive() == alive + 3);
  return fault != "" ? fault : log.fault();
}

}  // namespace

TEST_CASE("cuda_staging: copies overlap the step before, and never a batch that is read") {
  CHECK(order_fault() == "");
  CHECK(order_fault(forgetful) != "");  // broken
  CHECK(order_fault(impatient) != "");  // broken
}

TEST_CASE("cuda_staging: buffers grow, and what does not fit is refused") {
  const stream copies;
  host_cuda::recording log;
  cuda_staging staging(copies.it, 1);
  int slot = -1;
  REQUIRE(staging.acquire(100, slot).ok());
  void* const first = staging.host(slot);
  CHECK(staging.upload(slot, 126).code() == errc::shape_mismatch);
  REQUIRE(staging.acquire(120, slot).ok());
  CHECK(staging.host(slot) == first);
  host_cuda::set_limit(host_cuda::allocated_bytes() + 100);
  CHECK(staging.acquire(1'000'000, slot).code() == errc::out_of_memory);
  const std::size_t wraps = (std::numeric_limits<std::size_t>::max)() / 5 * 4 + 4;  // with a quarter more
  CHECK(staging.acquire(wraps, slot).code() == errc::out_of_memory);
  host_cuda::set_limit(SIZE_MAX);
  REQUIRE(staging.acquire(1'000'000, slot).ok());
  REQUIRE(staging.upload(slot, 1'000'000).ok());
  host_cuda::set_limit(host_cuda::allocated_bytes() + 10'000'000);
  for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX - 1000, SIZE_MAX / 5 * 4 + 1000, SIZE_MAX / 2}) {
    CAPTURE(bytes);
    CHECK(staging.acquire(bytes, slot).code() == errc::out_of_memory);
  }
}

TEST_CASE("cuda_staging: a buffer waits for every stream that uses it") {
  const std::string unreleased = to_string(errc::invalid_value);
  for (const char* const order : {"", "Aa", "AaBb", "ABab", "ABba", "AaAa", "AAaa", "AaBbAa", "ABAaba"}) {
    CAPTURE(order);
    CHECK(consumer_fault(order, true) == "");
    CHECK(consumer_fault(order, false) == "");
  }
  for (const char* const order : {"A", "AaB", "ABa", "ABb", "AAa", "AaA"}) {  // a use is not released
    CAPTURE(order);
    CHECK(consumer_fault(order, true) == unreleased);
    CHECK(consumer_fault(order, false) == "");
  }
  CHECK(consumer_fault("ABab", true, forgetful) != "");  // broken
  CHECK(consumer_fault("A", false, merciful) != "");     // broken
}

TEST_CASE("cuda_staging: memory is not freed under a copy") {
  CHECK(consumer_fault("", false) == "");
  CHECK(consumer_fault("", false, forgetful) != "");  // broken
}

TEST_CASE("cuda_staging: uses and releases that don't belong together are refused") {
  const stream copies, compute, other;
  cuda_staging staging(copies.it, 1);
  int slot = -1;
  REQUIRE(staging.acquire(100, slot).ok());
  CHECK(staging.use(slot, compute.it).code() == errc::invalid_value);  // nothing was sent
  REQUIRE(staging.upload(slot, 100).ok());
  REQUIRE(staging.use(slot, compute.it).ok());
  CHECK(staging.release(slot, other.it).code() == errc::invalid_value);
  CHECK(staging.upload(slot, 100).code() == errc::invalid_value);
  CHECK(staging.acquire(100, slot).place() == fault_place{.item = 0});
  REQUIRE(staging.release(slot, compute.it).ok());
  CHECK(staging.release(slot, compute.it).code() == errc::invalid_value);
  std::deque<stream> more(staging.most_consumers - 1);
  for (const stream& on : more) {
    REQUIRE(staging.use(slot, on.it).ok());
    REQUIRE(staging.release(slot, on.it).ok());
  }
  CHECK(staging.use(slot, other.it).code() == errc::unsupported);
  REQUIRE(staging.use(slot, compute.it).ok());
  REQUIRE(staging.release(slot, compute.it).ok());
  REQUIRE(staging.acquire(100, slot).ok());
  REQUIRE(staging.upload(slot, 100).ok());
  REQUIRE(staging.use(slot, other.it).ok());
  REQUIRE(staging.release(slot, other.it).ok());
}

TEST_CASE("cuda_staging: buffers and events lie on the device that the ring was made for") {
  const host_cuda::recording log;
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  const stream copies, compute;
  int device = -1;
  {
    cuda_staging staging(copies.it);
    REQUIRE(cudaSetDevice(0) == cudaSuccess);
    int slot = -1;
    REQUIRE(staging.acquire(100, slot).ok());
    cudaPointerAttributes block{};
    REQUIRE(cudaPointerGetAttributes(&block, staging.device(slot)) == cudaSuccess);
    CHECK(block.device == 1);
    CHECK(staging.upload(slot, 100).ok());  // events of another device are refused
    CHECK(staging.use(slot, compute.it).ok());
    CHECK(staging.release(slot, compute.it).ok());
    REQUIRE(cudaGetDevice(&device) == cudaSuccess);
    CHECK(device == 0);
  }
  REQUIRE(cudaGetDevice(&device) == cudaSuccess);
  CHECK(device == 0);
}
