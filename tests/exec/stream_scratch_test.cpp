// The scratch of a stream, on a run time that runs nothing: what a verb keeps is never given to
// another.

#include <deeprec/exec/stream_scratch.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "support/fake_runtime.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

using scratch_type = detail::stream_scratch<fake_runtime>;

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
  fake() = {};
  const int stream = fake().add_stream();
  {
    scratch_type scratch;
    std::byte *first = nullptr, *second = nullptr, *third = nullptr;
    REQUIRE(scratch.get(stream, 0, first).ok());
    CHECK(first == nullptr);
    REQUIRE(scratch.get(stream, 1000, first).ok());
    REQUIRE(scratch.get(stream, 600, second).ok());
    CHECK(first == second);
    REQUIRE(scratch.get(stream, 1001, third).ok());
    CHECK(fake().blocks.size() == 2);  // the first stays: a graph may use it
    CHECK(fake().blocks.at(third) == 1500);
    fake().limit = 0;
    CHECK(scratch.get(stream, 4000, second).code() == errc::out_of_memory);
    REQUIRE(scratch.get(stream, 1500, second).ok());
    CHECK(second == third);
  }
  CHECK(fake().allocated == 0);
}

TEST_CASE("stream_scratch: what is kept overlaps nothing that others get, whether or not it grows") {
  fake() = {};
  const int stream = fake().add_stream();
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
  CHECK(fake().allocated == 0);
}

TEST_CASE("stream_scratch: bytes that no address space has are refused, whatever is kept") {
  fake() = {};
  fake().limit = 1 << 20;
  const int stream = fake().add_stream();
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
  CHECK(fake().allocated == 0);
}

TEST_CASE("scratch_layout: pieces are aligned, and sums that no address space has are the largest number") {
  detail::scratch_layout fits;
  CHECK(fits.add<float>(1) == 0);
  CHECK(fits.add<double>(33) == 256);
  CHECK(fits.add<char>(0) == 768);
  CHECK(fits.add<char>(256) == 768);
  CHECK(fits.bytes() == 1024);
  constexpr index_t most = std::numeric_limits<index_t>::max();
  for (const index_t count : {index_t{-1}, -most, most, most / 4, index_t{1} << 61}) {
    CAPTURE(count);
    detail::scratch_layout layout;
    layout.add<char>(1000);
    layout.add<double>(count);
    CHECK(layout.bytes() == SIZE_MAX);
    layout.add<double>(1);
    layout.add<char>(0);
    layout.add<double>(count);
    CHECK(layout.bytes() == SIZE_MAX);
  }
  detail::scratch_layout sums;  // each piece fits, together they don't
  for (int i = 0; i < 5; ++i) sums.add<char>(most / 2);
  CHECK(sums.bytes() == SIZE_MAX);
}

TEST_CASE("stream_scratch: a step that ran once is captured without growing, a larger one is refused") {
  fake() = {};
  const int stream = fake().add_stream();
  scratch_type scratch;
  const auto step = [&](std::size_t own, std::size_t of_others) {
    std::byte* p = nullptr;
    scratch_type::scope kept(scratch);
    if (const status s = kept.take(stream, own, p); !s) return s;
    return scratch.get(stream, of_others, p);
  };
  REQUIRE(step(1000, 5000).ok());
  const std::size_t blocks = fake().blocks.size();
  REQUIRE(fake_runtime::begin_capture(stream).ok());
  CHECK(step(1000, 5000).ok());
  CHECK(step(1000, 9000).code() == errc::unsupported);
  CHECK(fake().blocks.size() == blocks);
  int graph = 0;
  REQUIRE(fake_runtime::end_capture(stream, graph).ok());
  CHECK(step(1000, 9000).ok());
}
