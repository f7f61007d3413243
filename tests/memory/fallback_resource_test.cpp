// Two resources: what the first refuses the second serves, within its budget; every block goes back to where
// it came from.
#include <deeprec/memory/fallback_resource.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/memory/counting_resource.hpp>
#include <deeprec/memory/limited_resource.hpp>
#include <deeprec/memory/refusing_resource.hpp>

#include "support/seed.hpp"

using namespace deeprec;
using deeprec_test::seed;

namespace {

/// A resource whose blocks know it: they begin with its name, and it stops at another's.
class named_resource final : public std::pmr::memory_resource {
 public:
  explicit named_resource(std::uint64_t name) : name_(name) {}
  std::atomic<int> strangers = 0;

  static std::uint64_t name_of(const void* block) {
    std::uint64_t name = 0;
    std::memcpy(&name, static_cast<const std::byte*>(block) - 64, sizeof(name));
    return name;
  }

 private:
  void* do_allocate(std::size_t bytes, std::size_t) override {
    auto* const block = static_cast<std::byte*>(std::pmr::new_delete_resource()->allocate(bytes + 64, 64));
    std::memcpy(block, &name_, sizeof(name_));
    return block + 64;
  }
  void do_deallocate(void* block, std::size_t bytes, std::size_t) override {
    if (name_of(block) != name_) {
      ++strangers;
      return;
    }
    std::pmr::new_delete_resource()->deallocate(static_cast<std::byte*>(block) - 64, bytes + 64, 64);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
  std::uint64_t name_;
};

/// A first and a second resource of so many bytes, which watch who gives what back.
struct two_resources {
  two_resources(std::size_t first_bytes, std::size_t budget)
      : first(first_bytes, &of_first), second(SIZE_MAX, &of_second), memory(&first, &second, budget) {}
  [[nodiscard]] int strangers() const { return of_first.strangers + of_second.strangers; }

  named_resource of_first{1}, of_second{2};
  limited_resource first, second;
  fallback_resource memory;
};

}  // namespace

TEST_CASE("fallback_resource: the second resource serves what the first refuses, until its budget ends") {
  two_resources all(1000, 500);
  std::vector<void*> blocks;
  for (int k = 0; k < 10; ++k) blocks.push_back(all.memory.allocate(100, 8));
  CHECK(all.memory.report().blocks == 0);
  for (int k = 0; k < 5; ++k) blocks.push_back(all.memory.allocate(100, 8));
  const fallback_report full = all.memory.report();
  CHECK(full.bytes == 500);
  CHECK(full.blocks == 5);
  CHECK(full.fallbacks == 5);
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{100}, SIZE_MAX / 2, SIZE_MAX})
    CHECK_THROWS_AS((void)all.memory.allocate(bytes, 8), std::bad_alloc);
  CHECK(all.memory.report().refusals == 4);
  CHECK(all.first.bytes() == 1000);
  CHECK(all.second.bytes() == 500);
  for (std::size_t k = 0; k < 15; ++k) CHECK(named_resource::name_of(blocks[k]) == (k < 10 ? 1 : 2));

  // What the first frees it serves again, while the second is full.
  for (std::size_t k = 0; k < 3; ++k) all.memory.deallocate(blocks[k], 100, 8);
  for (std::size_t k = 0; k < 3; ++k) {
    blocks[k] = all.memory.allocate(100, 8);
    CHECK(named_resource::name_of(blocks[k]) == 1);
  }
  CHECK_THROWS_AS((void)all.memory.allocate(1, 8), std::bad_alloc);
  // And the second one.
  all.memory.deallocate(blocks[12], 100, 8);
  CHECK(all.memory.report().bytes == 400);
  blocks[12] = all.memory.allocate(60, 8);
  CHECK(all.memory.report().bytes == 460);
  all.memory.deallocate(blocks[12], 60, 8);
  blocks.erase(blocks.begin() + 12);
  for (void* const block : blocks) all.memory.deallocate(block, 100, 8);
  CHECK(all.first.bytes() == 0);
  CHECK(all.second.bytes() == 0);
  CHECK(all.memory.report().bytes == 0);
  CHECK(all.memory.report().blocks == 0);
  CHECK(all.strangers() == 0);
}

TEST_CASE("fallback_resource: every block goes back to its resource, over random exhaustion and refill") {
  struct held {
    void* block;
    std::size_t bytes;
  };
  std::mt19937_64 random(seed());
  for (const std::size_t budget : {std::size_t{0}, std::size_t{3000}, std::size_t{100'000}}) {
    two_resources all(20'000, budget);
    std::vector<held> blocks;
    index_t of_second = 0, refused = 0;
    std::size_t aim = 0;
    for (int call = 0; call < 20'000; ++call) {
      if (call % 200 == 0) aim = random() % 300;
      if (blocks.size() < aim && random() % 4 != 0) {
        const std::size_t bytes = random() % 300;
        try {
          blocks.push_back({all.memory.allocate(bytes, 16), bytes});
          of_second += named_resource::name_of(blocks.back().block) == 2 ? 1 : 0;
        } catch (const std::bad_alloc&) {
          ++refused;
        }
      } else if (!blocks.empty()) {
        std::swap(blocks[random() % blocks.size()], blocks.back());
        all.memory.deallocate(blocks.back().block, blocks.back().bytes, 16);
        blocks.pop_back();
      }
      const fallback_report now = all.memory.report();
      REQUIRE(now.bytes <= budget);
      REQUIRE(now.bytes == all.second.bytes());
    }
    CHECK(all.memory.report().fallbacks == of_second);
    CHECK(all.memory.report().refusals == refused);
    CHECK((of_second > 100) == (budget > 0));
    CHECK((refused > 100) == (budget < 100'000));
    for (const held& one : blocks) all.memory.deallocate(one.block, one.bytes, 16);
    CHECK(all.first.bytes() + all.second.bytes() == 0);
    CHECK(all.strangers() == 0);
  }
}

TEST_CASE("fallback_resource: a refusal anywhere leaves the budget and both resources as they were") {
  limited_resource first(0);
  for (long n = 0; n < 3; ++n) {
    allowance granted, of_entries;
    refusing_resource second(granted), entries(of_entries);
    fallback_resource memory(&first, &second, 1000, &entries);
    void* const before = memory.allocate(100, 8);
    const std::size_t kept = entries.held;
    (n == 0 ? granted : of_entries).left = n == 2 ? 1 : 0;
    if (n < 2) {
      CHECK_THROWS_AS((void)memory.allocate(100, 8), std::bad_alloc);
      CHECK(memory.report().bytes == 100);
      CHECK(memory.report().blocks == 1);
      CHECK(entries.held == kept);
      CHECK(second.held == 100);
      granted.left = of_entries.left = allowance::unlimited;
    }
    void* const block = memory.allocate(900, 8);
    CHECK(memory.report().bytes == 1000);
    memory.deallocate(block, 900, 8);
    memory.deallocate(before, 100, 8);
    CHECK(entries.held == 0);
    CHECK(second.held == 0);
  }
}

TEST_CASE("fallback_resource: an exception that is no refusal passes, and the second is not asked") {
  class strange_resource final : public std::pmr::memory_resource {
    void* do_allocate(std::size_t, std::size_t) override { throw 7; }
    void do_deallocate(void*, std::size_t, std::size_t) override {}
    bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
  } strange;
  counting_resource second;
  fallback_resource memory(&strange, &second, 1000);
  CHECK_THROWS_AS((void)memory.allocate(10, 8), int);
  CHECK(second.statistics().allocations == 0);
  CHECK(memory.report().fallbacks == 0);
}

TEST_CASE("fallback_resource: threads exhaust both resources at once") {
  two_resources all(50'000, 30'000);
  std::atomic<int> faults{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(seed() + static_cast<std::uint64_t>(t));
      std::vector<void*> blocks;
      for (int call = 0; call < 5000; ++call) {
        if (random() % 100 < 60) {
          try {
            blocks.push_back(all.memory.allocate(256, 8));
          } catch (const std::bad_alloc&) {
          }
        } else if (!blocks.empty()) {
          all.memory.deallocate(blocks.back(), 256, 8);
          blocks.pop_back();
        }
        const fallback_report now = all.memory.report();
        if (now.bytes > 30'000 || all.second.bytes() > 30'000) ++faults;
      }
      for (void* const block : blocks) all.memory.deallocate(block, 256, 8);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(faults == 0);
  CHECK(all.strangers() == 0);
  CHECK(all.memory.report().fallbacks > 0);
  CHECK(all.memory.report().refusals > 0);
  CHECK(all.first.bytes() + all.second.bytes() == 0);
}

TEST_CASE("fallback_resource: tables spill into the second resource") {
  two_resources all(100'000, 100'000);
  {
    const dense_table<f32_rows> first(200, 100, &all.memory);
    CHECK(all.memory.report().blocks == 0);
    const dense_table<f32_rows> second(200, 100, &all.memory);
    CHECK(all.memory.report().bytes == 80'000);
    try {
      const dense_table<f32_rows> third(200, 100, &all.memory);
      CHECK(false);
    } catch (const error& e) {
      CHECK(e.code() == errc::out_of_memory);
    }
  }
  CHECK(all.first.bytes() + all.second.bytes() == 0);
}
