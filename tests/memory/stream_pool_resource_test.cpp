#include <deeprec/memory/stream_pool_resource.hpp>

#include <doctest/doctest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include <deeprec/memory/managed_budget.hpp>

#include "support/fake_runtime.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

/// A run time whose waits are lost: what a pool without them would do.
struct without_waits : fake_runtime {
  static status wait(stream, event) { return {}; }
};

struct use {
  std::byte* begin;
  std::size_t bytes;
  int block;
  std::size_t node;
};

/// Random traffic over three streams: every use of a byte by one block must be ordered with its uses by
/// every other block. Answers with the first pair that is not.
template <class Runtime>
std::string traffic_fault(std::uint64_t seed, int rounds, stream_pool_report& report) {
  fake() = {};
  std::mt19937_64 random(seed);
  std::vector<use> uses;
  struct held {
    void* memory;
    std::size_t bytes;
    int stream, block;
  };
  std::vector<held> all;
  for (int s = 0; s < 3; ++s) fake().add_stream();
  std::string fault;
  {
    basic_stream_pool_resource<Runtime> pool(1 << 14);
    for (int round = 0; round < rounds; ++round) {
      const int on = static_cast<int>(random() % 3);
      if (all.size() < 6 || random() % 2 == 0) {
        held made{nullptr, 1 + static_cast<std::size_t>(random() % 5000), on, round};
        REQUIRE(pool.allocate(made.bytes, on, made.memory).ok());
        REQUIRE(reinterpret_cast<std::uintptr_t>(made.memory) % 16 == 0);
        uses.push_back(
            {static_cast<std::byte*>(made.memory), made.bytes, made.block, fake().add(on, round)});
        if (random() % 4 == 0) {  // a second stream reads it, behind the first
          const int other = (on + 1) % 3;
          fake_runtime::event e{};
          static_cast<void>(fake_runtime::make_event(e, false));
          static_cast<void>(fake_runtime::record(e, on));
          static_cast<void>(fake_runtime::wait(other, e));
          fake_runtime::end_event(e);
          REQUIRE(pool.also_used_on(made.memory, other).ok());
          uses.push_back(
              {static_cast<std::byte*>(made.memory), made.bytes, made.block, fake().add(other, round)});
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
      const auto known = fake().before(uses[i].node);
      for (std::size_t j = 0; j < i; ++j) {
        const bool overlap =
            uses[i].begin < uses[j].begin + uses[j].bytes && uses[j].begin < uses[i].begin + uses[i].bytes;
        if (overlap && uses[i].block != uses[j].block && known.count(uses[j].node) == 0) {
          fault = "block " + std::to_string(uses[i].block) + " not behind block " +
                  std::to_string(uses[j].block);
          break;
        }
      }
    }
    for (const held& h : all) REQUIRE(pool.deallocate(h.memory, h.stream).ok());
    CHECK(pool.report().in_use == 0);
    REQUIRE(pool.trim().ok());
    CHECK(pool.report().reserved == 0);
  }
  CHECK(fake().allocated == 0);
  CHECK(fake().live_events == 0);
  return fault;
}

}  // namespace

TEST_CASE("stream_pool_resource: no byte is used by two blocks out of order") {
  stream_pool_report report;
  int caught = 0;
  for (std::uint64_t i = 0; i < 12; ++i) {
    const std::string fault = traffic_fault<fake_runtime>(seed() + i, 250, report);
    CHECK_MESSAGE(fault == "", fault);
    CHECK(report.events > 0);
    caught += traffic_fault<without_waits>(seed() + i, 250, report) != "" ? 1 : 0;  // broken
  }
  CHECK(caught == 12);
}

TEST_CASE("stream_pool_resource: one stream alone records no event and asks for memory once") {
  fake() = {};
  const int s = fake().add_stream();
  basic_stream_pool_resource<fake_runtime> pool(1 << 16);
  void *first = nullptr, *again = nullptr;
  REQUIRE(pool.allocate(1000, s, first).ok());
  for (int i = 0; i < 50; ++i) {
    REQUIRE(pool.deallocate(first, s).ok());
    REQUIRE(pool.allocate(1000, s, again).ok());
    CHECK(again == first);
  }
  CHECK(pool.report().events == 0);
  CHECK(pool.report().in_use == 1024);
  CHECK(pool.report().reserved == 1 << 16);
  CHECK(fake().records == 0);
}

TEST_CASE("stream_pool_resource: memory that is short is taken from free slabs, and then refused") {
  fake() = {};
  const int s = fake().add_stream(), t = fake().add_stream();
  fake().limit = 40'000;
  basic_stream_pool_resource<fake_runtime> pool(16'384);
  void *a = nullptr, *b = nullptr, *c = nullptr;
  REQUIRE(pool.allocate(16'384, s, a).ok());
  REQUIRE(pool.allocate(16'384, t, b).ok());
  CHECK(pool.allocate(30'000, s, c).code() == errc::out_of_memory);
  REQUIRE(pool.deallocate(a, s).ok());
  REQUIRE(pool.deallocate(b, t).ok());
  REQUIRE(pool.allocate(30'000, s, c).ok());
  CHECK(pool.report().reserved == 30'208);
  REQUIRE(pool.deallocate(c, s).ok());
  REQUIRE(pool.forget(s).ok());
  REQUIRE(pool.allocate(100, t, c).ok());
  CHECK(pool.report().events == 0);  // nobody to wait for
  CHECK(pool.deallocate(&pool, t).code() == errc::invalid_value);
  CHECK(pool.also_used_on(&pool, t).code() == errc::invalid_value);
}

TEST_CASE("managed_budget: never more than the card had, or has, free") {
  managed_budget budget(1000);
  CHECK(budget.take(600, 1000));
  CHECK_FALSE(budget.take(500, 1000));
  CHECK_FALSE(budget.take(400, 399));
  CHECK(budget.take(400, 400));
  CHECK_FALSE(budget.take(1, 1000));
  budget.give_back(600);
  CHECK_FALSE(budget.take(static_cast<std::size_t>(-1), static_cast<std::size_t>(-1)));
  CHECK(budget.take(600, 600));
  CHECK(budget.held() == 1000);
}
