// What a resource was asked for: as a list, as text, and asked for again. And the resources that count and
// limit.
#include <deeprec/memory/allocation_log.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory_resource>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <deeprec/memory/counting_resource.hpp>
#include <deeprec/memory/limited_resource.hpp>
#include <deeprec/memory/refusing_resource.hpp>

#include "support/seed.hpp"

using namespace deeprec;
using deeprec_test::seed;
using kind = allocation_event::kind;

namespace {

struct request {
  void* block;
  std::size_t bytes, alignment;
};

/// Random calls; what is left live at the end.
std::vector<request> random_calls(std::pmr::memory_resource& memory, int calls, std::mt19937_64& random) {
  std::vector<request> live;
  for (int call = 0; call < calls; ++call) {
    if (live.empty() || random() % 5 < 3) {
      const std::size_t bytes = random() % 1000, alignment = std::size_t{1} << random() % 8;
      try {
        live.push_back({memory.allocate(bytes, alignment), bytes, alignment});
      } catch (const std::bad_alloc&) {
      }
    } else {
      std::swap(live[random() % live.size()], live.back());
      memory.deallocate(live.back().block, live.back().bytes, live.back().alignment);
      live.pop_back();
    }
  }
  return live;
}

}  // namespace

TEST_CASE("allocation_log: holds the calls in order, and reads back from its text") {
  allocation_log log;
  limited_resource small(1000);
  logging_resource memory(log, &small);
  void* const a = memory.allocate(100, 8);
  void* const b = memory.allocate(0, 1);
  CHECK_THROWS_AS((void)memory.allocate(2000, 64), std::bad_alloc);
  memory.deallocate(a, 100, 8);
  void* const c = memory.allocate(900, 32);
  memory.deallocate(b, 0, 1);
  CHECK(log.text() == "a 0 100 8\na 1 0 1\nr 2000 64\nf 0\na 2 900 32\nf 1\n");
  CHECK(log.blocks() == 3);
  const auto back = allocation_log::from_text(log.text());
  REQUIRE(back.ok());
  CHECK(back.value().events() == log.events());
  CHECK(back.value().events()[3] == allocation_event{kind::freed, 0, 100, 8});
  CHECK(back.value().blocks() == 3);
  CHECK(allocation_log::from_text("").or_throw().events().empty());
  CHECK(allocation_log::from_text("a 0 1 1").or_throw().blocks() == 1);  // without the last newline
  memory.deallocate(c, 900, 32);
}

TEST_CASE("allocation_log: a text that is none is refused, with the line") {
  const struct {
    const char* text;
    index_t line;
    const char* why;
  } cases[] = {
      {"\n", 1, "a line must be"},
      {"a 0 1 1\n\n", 2, "a line must be"},
      {"a 0 1\n", 1, "a line must be"},
      {"a 0 1 1 1\n", 1, "a line must be"},
      {"a  0 1 1\n", 1, "a line must be"},
      {"a 0 -1 1\n", 1, "a line must be"},
      {"a 0 99999999999999999999 1\n", 1, "a line must be"},
      {"b 0\n", 1, "a line must be"},
      {"a 0 1 1\nf\n", 2, "a line must be"},
      {"f 0x\n", 1, "a line must be"},
      {"a 0 1 3\n", 1, "power of two"},
      {"r 1 0\n", 1, "power of two"},
      {"a 1 1 1\n", 1, "next number"},
      {"a 0 1 1\na 0 1 1\n", 2, "next number"},
      {"f 0\n", 1, "must be live"},
      {"a 0 1 1\nf 0\nf 0\n", 3, "must be live"},
      {"a 0 1 1\nf 1\n", 2, "must be live"},
      {"a 0 1 1\r\n", 1, "a line must be"},
  };
  for (const auto& one : cases) {
    CAPTURE(std::string(one.text));
    const auto read = allocation_log::from_text(one.text);
    REQUIRE_FALSE(read.ok());
    CHECK(read.code() == errc::parse_error);
    CHECK(read.fault().place().line == one.line);
    CHECK(read.fault().message().find(one.why) != std::string::npos);
  }
}

TEST_CASE("replay: makes the same calls, whoever serves them, and frees the rest") {
  std::mt19937_64 random(seed());
  for (int round = 0; round < 20; ++round) {
    allocation_log log;
    counting_resource counted;
    logging_resource memory(log, &counted);
    const auto live = random_calls(memory, 500, random);
    const memory_statistics then = counted.statistics();
    // Logged again, the replay has the same calls, and the frees of what was live.
    allocation_log again;
    counting_resource other;
    logging_resource second(again, &other);
    CHECK(replay(log, second) == 0);
    REQUIRE(again.events().size() == log.events().size() + live.size());
    CHECK(std::equal(log.events().begin(), log.events().end(), again.events().begin()));
    CHECK(other.statistics().most_bytes == then.most_bytes);
    CHECK(other.statistics().allocations == then.allocations);
    CHECK(other.statistics().blocks == 0);
    CHECK(other.statistics().bytes == 0);
    // A resource that is too small serves some of it.
    limited_resource small(then.most_bytes / 2);
    counting_resource served(&small);
    const index_t refused = replay(log, served);
    CHECK(refused > 0);
    CHECK(served.statistics().refusals == refused);
    CHECK(served.statistics().allocations == then.allocations - refused);
    CHECK(small.bytes() == 0);
    for (const request& one : live) memory.deallocate(one.block, one.bytes, one.alignment);
  }
}

TEST_CASE("logging_resource: the log of refused calls is replayed without them") {
  allocation_log log;
  allowance granted{.left = 2};
  refusing_resource few(granted);
  logging_resource memory(log, &few);
  std::mt19937_64 random(seed());
  auto live = random_calls(memory, 50, random);
  CHECK(few.granted == 2);
  CHECK(log.blocks() == 2);
  counting_resource counted;
  CHECK(replay(log, counted) == 0);
  CHECK(counted.statistics().allocations == 2);
  for (const request& one : live) memory.deallocate(one.block, one.bytes, one.alignment);
  CHECK(few.held == 0);
}

TEST_CASE("logging_resource: calls of several threads are a log that can be read and replayed") {
  allocation_log log;
  logging_resource memory(log);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(seed() + static_cast<std::uint64_t>(t));
      for (const request& one : random_calls(memory, 1000, random))
        memory.deallocate(one.block, one.bytes, one.alignment);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto back = allocation_log::from_text(log.text());
  REQUIRE(back.ok());
  CHECK(back.value().events() == log.events());
  counting_resource counted;
  CHECK(replay(log, counted) == 0);
  CHECK(counted.statistics().allocations == log.blocks());
}

TEST_CASE("counting_resource: counts what is asked, granted, held and refused") {
  limited_resource small(1000);
  counting_resource memory(&small);
  void* const a = memory.allocate(600, 8);
  void* const b = memory.allocate(300, 8);
  CHECK_THROWS_AS((void)memory.allocate(5000, 8), std::bad_alloc);
  memory.deallocate(a, 600, 8);
  const memory_statistics now = memory.statistics();
  CHECK(now.bytes == 300);
  CHECK(now.most_bytes == 900);
  CHECK(now.largest == 5000);
  CHECK(now.blocks == 1);
  CHECK(now.allocations == 2);
  CHECK(now.refusals == 1);
  memory.forget_most();
  CHECK(memory.statistics().most_bytes == 300);
  memory.deallocate(b, 300, 8);
  CHECK(memory.statistics().bytes == 0);
  CHECK(memory.upstream() == &small);
}

TEST_CASE("limited_resource: threads together never hold more than the limit") {
  limited_resource memory(1000, std::pmr::new_delete_resource());
  CHECK_THROWS_AS((void)memory.allocate(SIZE_MAX, 1), std::bad_alloc);
  CHECK_THROWS_AS((void)memory.allocate(1001, 1), std::bad_alloc);
  memory.deallocate(memory.allocate(1000, 1), 1000, 1);
  CHECK(memory.bytes() == 0);
  std::atomic<int> faults{0}, held{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int call = 0; call < 5000; ++call) {
        try {
          void* const block = memory.allocate(300, 8);
          if (held += 300; held > 1000 || memory.bytes() > 1000) ++faults;
          held -= 300;
          memory.deallocate(block, 300, 8);
        } catch (const std::bad_alloc&) {
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(faults == 0);
  CHECK(memory.bytes() == 0);
}

TEST_CASE("limited_resource: what the resource behind it refuses is not held") {
  allowance granted{.left = 1};
  refusing_resource few(granted);
  limited_resource memory(1000, &few);
  void* const block = memory.allocate(400, 8);
  CHECK_THROWS_AS((void)memory.allocate(400, 8), std::bad_alloc);
  CHECK(memory.bytes() == 400);
  CHECK(granted.refused == 1);
  memory.deallocate(block, 400, 8);
  CHECK(memory.bytes() == 0);
  CHECK(few.held == 0);
}
