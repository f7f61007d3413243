#include <deeprec/memory/stream_pool_resource.hpp>

#include <doctest/doctest.h>

#include <sys/mman.h>

#include <cstdint>
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

/// Streams that count how often they are compared.
int compared = 0;
struct counted {
  counted(int n) : number(n) {}
  operator int() const { return number; }
  friend bool operator<(counted a, counted b) { return ++compared, a.number < b.number; }
  friend bool operator==(counted a, counted b) { return ++compared, a.number == b.number; }
  friend bool operator!=(counted a, counted b) { return !(a == b); }
  int number;
};
struct counting : fake_runtime {
  using stream = counted;
};

/// A run time whose memory has no access, as a host sees a device's: who looks at it dies.
struct closed_memory : fake_runtime {
  static status allocate(void*& memory, std::size_t bytes) {
    memory = ::mmap(nullptr, bytes + border, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return {errc::out_of_memory, "closed_memory: mmap refused"};
    sizes()[memory] = bytes + border;
    return {};
  }
  static void deallocate(void* memory) {
    ::munmap(memory, sizes().at(memory));
    sizes().erase(memory);
  }
  static constexpr std::size_t border = 4096;
  static std::map<void*, std::size_t>& sizes() {
    static std::map<void*, std::size_t> all;
    return all;
  }
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
    detail::basic_stream_pool_resource<Runtime> pool(1 << 14);
    for (int round = 0; round < rounds; ++round) {
      const int on = static_cast<int>(random() % 3);
      if (all.size() < 6 || random() % 2 == 0) {
        held made{nullptr, 1 + static_cast<std::size_t>(random() % 5000), on, round};
        REQUIRE(pool.allocate(made.bytes, on, made.memory).ok());
        REQUIRE(reinterpret_cast<std::uintptr_t>(made.memory) % 16 == 0);
        uses.push_back({static_cast<std::byte*>(made.memory), made.bytes, made.block, fake().add(on, round)});
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
  detail::basic_stream_pool_resource<fake_runtime> pool(1 << 16);
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
  detail::basic_stream_pool_resource<fake_runtime> pool(16'384);
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

TEST_CASE("stream_pool_resource: a size that no address space has is refused, and nothing changes") {
  for (const std::size_t slab : {std::size_t{0}, std::size_t{4096}, SIZE_MAX / 2, SIZE_MAX - 255, SIZE_MAX}) {
    CAPTURE(slab);
    fake() = {};
    fake().limit = 1 << 20;
    const int s = fake().add_stream();
    detail::basic_stream_pool_resource<fake_runtime> pool(slab);
    void *held = nullptr, *out = nullptr, *next = nullptr;
    REQUIRE(pool.allocate(1000, s, held).ok());
    for (const std::size_t less : {0, 1, 10, 254, 255, 256, 257, 100'000}) {
      CAPTURE(less);
      const stream_pool_report before = pool.report();
      CHECK(pool.allocate(SIZE_MAX - less, s, out).code() == errc::out_of_memory);
      CHECK(out == nullptr);
      CHECK(pool.report().in_use == before.in_use);
      CHECK(pool.report().reserved == before.reserved);
    }
    REQUIRE(pool.allocate(1000, s, next).ok());
    CHECK(next != held);
    REQUIRE(pool.deallocate(next, s).ok());
    REQUIRE(pool.deallocate(held, s).ok());
    CHECK(pool.report().in_use == 0);
  }
}

TEST_CASE("hazard H17: a block is known by its address: no byte of it, or before it, is read or written") {
  fake() = {};
  const int s = fake().add_stream();
  detail::basic_stream_pool_resource<closed_memory> pool(1 << 14);
  void *a = nullptr, *b = nullptr, *c = nullptr;
  REQUIRE(pool.allocate(1000, s, a).ok());  // the first of its slab: nothing lies before it
  REQUIRE(pool.allocate(3000, s, b).ok());
  REQUIRE(pool.allocate(1, s, c).ok());
  std::byte* const first = static_cast<std::byte*>(a);
  const stream_pool_report held = pool.report();
  // Inside a block, between blocks, at the ends of the slab, nowhere.
  for (const std::ptrdiff_t off :
       {1, 8, 16, 255, 256, 512, 999, 1000, 1023, 1025, 2048, 4097, 16383, 16384, -1, -16, -256}) {
    CAPTURE(off);
    CHECK(pool.deallocate(first + off, s).code() == errc::invalid_value);
    CHECK(pool.also_used_on(first + off, s).code() == errc::invalid_value);
  }
  int elsewhere = 0;
  for (void* const foreign :
       {static_cast<void*>(nullptr), static_cast<void*>(&elsewhere), static_cast<void*>(&pool)}) {
    CHECK(pool.deallocate(foreign, s).code() == errc::invalid_value);
  }
  detail::basic_stream_pool_resource<closed_memory> other(1 << 14);
  CHECK(other.deallocate(a, s).code() == errc::invalid_value);
  CHECK(pool.report().in_use == held.in_use);
  for (void* const block : {b, a, c}) {
    CHECK(pool.deallocate(block, s).ok());
    CHECK(pool.deallocate(block, s).code() == errc::invalid_value);
  }
  CHECK(pool.report().in_use == 0);
}

TEST_CASE("stream_pool_resource: a capture neither gets blocks nor gives them back") {
  fake() = {};
  const int s = fake().add_stream(), t = fake().add_stream();
  detail::basic_stream_pool_resource<fake_runtime> pool(4096);
  void *before = nullptr, *freed = nullptr, *out = nullptr;
  REQUIRE(pool.allocate(2048, s, before).ok());
  REQUIRE(pool.allocate(1024, t, freed).ok());
  REQUIRE(pool.deallocate(freed, t).ok());
  const auto in_use = pool.report().in_use;
  REQUIRE(fake_runtime::begin_capture(s).ok());
  for (const std::size_t bytes : {1024, 100'000}) {
    CHECK(pool.allocate(bytes, s, out).code() == errc::unsupported);
  }
  CHECK(pool.deallocate(before, s).code() == errc::unsupported);
  CHECK(pool.also_used_on(before, s).code() == errc::unsupported);
  CHECK(pool.forget(s).code() == errc::unsupported);
  CHECK(pool.report().in_use == in_use);
  fake_runtime::graph graph{};
  CHECK(fake_runtime::end_capture(s, graph).ok());  // nothing of it has ended the capture
  fake_runtime::end_graph(graph);
  REQUIRE(pool.deallocate(before, s).ok());
}

TEST_CASE("stream_pool_resource: a free block whose stream captures is left alone") {
  fake() = {};
  const int s = fake().add_stream(), t = fake().add_stream();
  detail::basic_stream_pool_resource<fake_runtime> pool(4096);
  void *of_s = nullptr, *of_t = nullptr, *out = nullptr, *more = nullptr;
  REQUIRE(pool.allocate(2048, s, of_s).ok());
  REQUIRE(pool.allocate(1024, t, of_t).ok());
  REQUIRE(pool.allocate(1024, t, more).ok());
  REQUIRE(pool.deallocate(of_s, s).ok());
  REQUIRE(pool.deallocate(of_t, t).ok());
  REQUIRE(fake_runtime::begin_capture(s).ok());
  CHECK(pool.trim().code() == errc::unsupported);
  REQUIRE(pool.allocate(512, t, out).ok());
  CHECK(out == of_t);
  CHECK(pool.allocate(2048, t, of_t).code() == errc::device_error);  // of the run time, in a capture
  CHECK(fake().captured == std::set<int>{s});
  fake_runtime::graph graph{};
  static_cast<void>(fake_runtime::end_capture(s, graph));
  REQUIRE(pool.allocate(2048, t, of_t).ok());
  CHECK(of_t == of_s);
  CHECK(pool.report().events == 1);
}

TEST_CASE("stream_pool_resource: a handle that is another stream in each thread is refused") {
  fake() = {};
  detail::basic_stream_pool_resource<fake_runtime> pool;
  void* out = nullptr;
  CHECK(pool.allocate(100, -1, out).code() == errc::unsupported);
}

TEST_CASE("stream_pool_resource: slabs and events lie on the device that the pool was made for") {
  fake() = {};
  fake().device = 1;
  const int s = fake().add_stream(), t = fake().add_stream();
  detail::basic_stream_pool_resource<fake_runtime> pool(4096);
  fake().device = 0;
  void *first = nullptr, *again = nullptr;
  REQUIRE(pool.allocate(4096, s, first).ok());
  CHECK(fake().device_of_block.at(first) == 1);
  REQUIRE(pool.deallocate(first, s).ok());
  REQUIRE(pool.allocate(4096, t, again).ok());
  CHECK(again == first);
  CHECK(pool.report().events == 1);
  CHECK(fake().device == 0);
}

TEST_CASE("stream_pool_resource: the search for a block does not walk the free ones") {
  fake() = {};
  const int s = fake().add_stream(), t = fake().add_stream();
  detail::basic_stream_pool_resource<counting> pool(std::size_t{1} << 20);
  std::vector<void*> blocks(4096);
  for (void*& block : blocks) REQUIRE(pool.allocate(256, s, block).ok());
  for (std::size_t i = 0; i < blocks.size(); i += 2) REQUIRE(pool.deallocate(blocks[i], s).ok());
  void* out = nullptr;
  compared = 0;
  REQUIRE(pool.allocate(256, t, out).ok());
  CHECK(compared < 300);
  CHECK(pool.report().reserved == std::size_t{1} << 20);
}

TEST_CASE("detail::managed_budget: never more than the card had, or has, free") {
  detail::managed_budget budget(1000);
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
