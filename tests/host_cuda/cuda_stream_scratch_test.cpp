// The scratch of a stream: what a verb keeps is never given to another.
#include <deeprec/exec/cuda_stream.hpp>
#include <deeprec/exec/cuda_stream_scratch.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <utility>
#include <vector>

using namespace deeprec;

namespace {

using scratch_type = detail::stream_scratch;
constexpr cudaStream_t stream = nullptr;

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
  const host_cuda::recording log;
  const std::size_t alive = host_cuda::blocks_alive();
  {
    scratch_type scratch;
    std::byte *first = nullptr, *second = nullptr, *third = nullptr;
    REQUIRE(scratch.get(stream, 0, first).ok());
    CHECK(first == nullptr);
    REQUIRE(scratch.get(stream, 1000, first).ok());
    REQUIRE(scratch.get(stream, 600, second).ok());
    CHECK(first == second);
    REQUIRE(scratch.get(stream, 1001, third).ok());
    CHECK(host_cuda::blocks_alive() == alive + 2);  // the first stays: a graph may use it
    CHECK(host_cuda::bytes_of(third) == 1500);
    host_cuda::set_limit(0);
    CHECK(scratch.get(stream, 4000, second).code() == errc::out_of_memory);
    REQUIRE(scratch.get(stream, 1500, second).ok());
    CHECK(second == third);
  }
  CHECK(host_cuda::blocks_alive() == alive);
}

TEST_CASE("stream_scratch: what is kept overlaps nothing that others get, whether or not it grows") {
  const host_cuda::recording log;
  const std::size_t alive = host_cuda::blocks_alive();
  {
    scratch_type scratch;
    for (int step = 0; step < 3; ++step) {  // the first ones grow
      std::vector<std::pair<std::byte*, std::size_t>> kept;
      std::byte* p = nullptr;
      scratch_type::scope outer(scratch);
      REQUIRE(outer.take(stream, 300, p).ok());
      kept.emplace_back(p, 300);
      for (const std::size_t bytes : {100, 5000, 700, 20000}) {
        REQUIRE(scratch.get(stream, bytes, p).ok());
        CHECK_FALSE(overlap(kept, p, bytes));
      }
      std::byte* of_inner = nullptr;
      {
        scratch_type::scope inner(scratch);
        REQUIRE(inner.take(stream, 40000, of_inner).ok());
        CHECK_FALSE(overlap(kept, of_inner, 40000));
        REQUIRE(scratch.get(stream, 10000, p).ok());
        CHECK_FALSE(overlap(kept, p, 10000));
        CHECK_FALSE(overlap({{of_inner, 40000}}, p, 10000));
      }
      REQUIRE(scratch.get(stream, 10000, p).ok());
      CHECK_FALSE(overlap(kept, p, 10000));
      if (step > 0) CHECK(p == of_inner);  // that scope has ended, and nothing had to grow
    }
    std::byte *front = nullptr, *behind = nullptr;
    REQUIRE(scratch.get(stream, 10, front).ok());
    scratch_type::scope kept(scratch);
    REQUIRE(kept.take(stream, 10, behind).ok());
    CHECK(front == behind);  // all scopes have ended
    REQUIRE(scratch.get(stream, 10, behind).ok());
    CHECK(behind - front == scratch_type::alignment);
  }
  CHECK(host_cuda::blocks_alive() == alive);
}

TEST_CASE("stream_scratch: bytes that no address space has are refused, whatever is kept") {
  const host_cuda::recording log;
  host_cuda::set_limit(host_cuda::allocated_bytes() + (1 << 20));
  const std::size_t alive = host_cuda::blocks_alive();
  {
    scratch_type scratch;
    for (const std::size_t keep : {0, 1, 256, 1000}) {
      scratch_type::scope kept(scratch);
      std::byte *p = nullptr, *q = nullptr;
      REQUIRE(kept.take(stream, keep, p).ok());
      for (const std::size_t bytes :
           {SIZE_MAX, SIZE_MAX - 255, SIZE_MAX - 256, SIZE_MAX - 1000, SIZE_MAX / 2}) {
        CAPTURE(bytes);
        CHECK(scratch.get(stream, bytes, q).code() == errc::out_of_memory);
        CHECK(kept.take(stream, bytes, q).code() == errc::out_of_memory);
        CHECK(q == nullptr);
      }
    }
  }
  CHECK(host_cuda::blocks_alive() == alive);
}

TEST_CASE("stream_scratch: a step that ran once is captured without growing, a larger one is refused") {
  const cuda_stream own_stream;
  const cudaStream_t stream = own_stream.get();
  scratch_type scratch;
  const auto step = [&](std::size_t own, std::size_t of_others) {
    std::byte* p = nullptr;
    scratch_type::scope kept(scratch);
    if (const status s = kept.take(stream, own, p); !s) return s;
    return scratch.get(stream, of_others, p);
  };
  REQUIRE(step(1000, 5000).ok());
  const std::size_t blocks = host_cuda::blocks_alive();
  REQUIRE(cuda_runtime::begin_capture(stream).ok());
  CHECK(step(1000, 5000).ok());
  CHECK(step(1000, 9000).code() == errc::unsupported);
  CHECK(host_cuda::blocks_alive() == blocks);
  cudaGraph_t graph = nullptr;
  REQUIRE(cuda_runtime::end_capture(stream, graph).ok());
  cuda_runtime::end_graph(graph);
  CHECK(step(1000, 9000).ok());
}
