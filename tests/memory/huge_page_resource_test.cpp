// Large blocks on huge pages; small ones elsewhere.

#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/memory/counting_resource.hpp>
#include <deeprec/memory/huge_page_resource.hpp>

#include "support/seed.hpp"

#include <sys/mman.h>

#include <doctest/doctest.h>
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory_resource>
#include <new>
#include <random>
#include <thread>
#include <vector>

using namespace deeprec;

namespace {

constexpr std::size_t megabyte = std::size_t{1} << 20;

std::size_t resident_pages(void* memory, std::size_t bytes) {
  std::vector<unsigned char> pages((bytes + 4095) / 4096);
  REQUIRE(mincore(memory, bytes, pages.data()) == 0);
  return static_cast<std::size_t>(
      std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return p & 1; }));
}

bool all_zero(const void* memory, std::size_t bytes) {
  const auto* words = static_cast<const std::uint64_t*>(memory);
  return std::all_of(words, words + bytes / 8, [](std::uint64_t w) { return w == 0; });
}

}  // namespace

TEST_CASE("huge_page_resource: large blocks are aligned to 2 MB and zero") {
  counting_resource upstream;
  huge_page_resource resource(huge_page_resource::explicit_pages::never, &upstream);
  for (const std::size_t bytes : {megabyte, 2 * megabyte - 1, 2 * megabyte, 2 * megabyte + 1, 7 * megabyte}) {
    for (const std::size_t alignment : {std::size_t{1}, std::size_t{64}, 2 * megabyte}) {
      void* memory = resource.allocate(bytes, alignment);
      CHECK(reinterpret_cast<std::uintptr_t>(memory) % huge_page_size == 0);
      CHECK(all_zero(memory, bytes));
      static_cast<char*>(memory)[0] = 1;
      static_cast<char*>(memory)[bytes - 1] = 1;
      resource.deallocate(memory, bytes, alignment);
    }
  }
  CHECK(upstream.statistics().allocations == 0);
}

TEST_CASE("huge_page_resource: a block that was used and given back comes back zero") {
  huge_page_resource resource;
  for (int round = 0; round < 3; ++round) {
    void* memory = resource.allocate(4 * megabyte, 64);
    CHECK(all_zero(memory, 4 * megabyte));
    std::fill_n(static_cast<char*>(memory), 4 * megabyte, '\x5a');
    resource.deallocate(memory, 4 * megabyte, 64);
  }
}

TEST_CASE("huge_page_resource: small blocks and odd alignments go upstream") {
  counting_resource upstream;
  huge_page_resource resource(huge_page_resource::explicit_pages::never, &upstream);
  void* small = resource.allocate(megabyte - 1, 64);
  void* nothing = resource.allocate(0, 1);
  void* coarse = resource.allocate(2 * megabyte, 4 * megabyte);
  CHECK(upstream.statistics().allocations == 3);
  CHECK(resource.report().mapped == 0);
  CHECK(reinterpret_cast<std::uintptr_t>(coarse) % (4 * megabyte) == 0);
  resource.deallocate(small, megabyte - 1, 64);
  resource.deallocate(nothing, 0, 1);
  resource.deallocate(coarse, 2 * megabyte, 4 * megabyte);
  CHECK(upstream.statistics().blocks == 0);
}

TEST_CASE("hazard H17: who takes a block back is told by its size, never by bytes before it") {
  // Blocks that begin where a page without access ends, and hold what any marker could be.
  class border_resource final : public std::pmr::memory_resource {
   public:
    int held = 0;

   private:
    static std::size_t pages(std::size_t bytes) { return (bytes + 4095) / 4096 * 4096; }
    void* do_allocate(std::size_t bytes, std::size_t) override {
      ++held;
      void* const base = mmap(nullptr, 4096 + pages(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      REQUIRE(base != MAP_FAILED);
      if (bytes > 0)
        REQUIRE(mprotect(static_cast<char*>(base) + 4096, pages(bytes), PROT_READ | PROT_WRITE) == 0);
      return static_cast<char*>(base) + 4096;
    }
    void do_deallocate(void* memory, std::size_t bytes, std::size_t) override {
      --held;
      munmap(static_cast<char*>(memory) - 4096, 4096 + pages(bytes));
    }
    bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
  } upstream;
  huge_page_resource resource(huge_page_resource::explicit_pages::never, &upstream);
  struct block {
    void* memory;
    std::size_t bytes, alignment;
  };
  std::vector<block> blocks;
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{4096}, megabyte - 1, megabyte,
                                  2 * megabyte, 2 * megabyte + 1}) {
    for (const std::size_t alignment : {std::size_t{1}, std::size_t{64}, std::size_t{4096}}) {
      blocks.push_back({resource.allocate(bytes, alignment), bytes, alignment});
      std::fill_n(static_cast<unsigned char*>(blocks.back().memory), bytes,
                  blocks.size() % 2 == 0 ? 0xff : 0x4d);
    }
  }
  CHECK(upstream.held == 4 * 3);
  std::mt19937_64 random(deeprec_test::seed());
  std::shuffle(blocks.begin(), blocks.end(), random);
  for (const block& b : blocks) resource.deallocate(b.memory, b.bytes, b.alignment);
  CHECK(upstream.held == 0);
  CHECK(resource.report().mapped == 0);
}

TEST_CASE("huge_page_resource: the report counts what is mapped and what was touched") {
  huge_page_resource resource;
  CHECK(resource.report().mapped == 0);
  constexpr std::size_t bytes = 16 * megabyte;
  void* memory = resource.allocate(bytes + 1, 64);
  huge_page_report report = resource.report();
  CHECK(report.mapped == 18 * megabyte);
  CHECK(report.explicit_huge == 0);
  const std::size_t before = report.resident;
  std::fill_n(static_cast<char*>(memory), bytes, '\1');
  report = resource.report();
  CHECK(report.resident >= before + bytes);
  CHECK(report.transparent_huge <= report.resident);
  CHECK(report.transparent_huge % huge_page_size == 0);
  MESSAGE("transparent huge pages: " << report.transparent_huge / megabyte << " of " << bytes / megabyte
                                     << " MB");
  resource.deallocate(memory, bytes + 1, 64);
  CHECK(resource.report().mapped == 0);
  CHECK(resource.report().resident == 0);
}

TEST_CASE("huge_page_resource: many blocks, given back in any order, leave nothing mapped") {
  huge_page_resource resource;
  std::mt19937_64 random(deeprec_test::seed());
  struct block {
    void* memory;
    std::size_t bytes;
  };
  std::vector<block> blocks;
  std::size_t mapped = 0;
  for (int i = 0; i < 60; ++i) {
    const std::size_t bytes = megabyte + random() % (5 * megabyte);
    blocks.push_back({resource.allocate(bytes, 64), bytes});
    static_cast<char*>(blocks.back().memory)[bytes - 1] = 1;
    mapped += (bytes + huge_page_size - 1) / huge_page_size * huge_page_size;
  }
  CHECK(resource.report().mapped == mapped);
  std::sort(blocks.begin(), blocks.end(), [](const block& a, const block& b) { return a.memory < b.memory; });
  for (std::size_t i = 1; i < blocks.size(); ++i) {
    CHECK(static_cast<char*>(blocks[i - 1].memory) + blocks[i - 1].bytes <= blocks[i].memory);
  }
  std::shuffle(blocks.begin(), blocks.end(), random);
  for (const block& b : blocks) resource.deallocate(b.memory, b.bytes, 64);
  CHECK(resource.report().mapped == 0);
}

TEST_CASE("huge_page_resource: explicit pages fall back to transparent ones") {
  huge_page_resource resource(huge_page_resource::explicit_pages::try_);
  constexpr std::size_t bytes = 8 * megabyte;
  void* memory = resource.allocate(bytes, 64);
  CHECK(reinterpret_cast<std::uintptr_t>(memory) % huge_page_size == 0);
  CHECK(all_zero(memory, bytes));
  const huge_page_report report = resource.report();
  CHECK(report.mapped == bytes);
  CHECK((report.explicit_huge == 0 || report.explicit_huge == bytes));
  CHECK(report.resident >= report.explicit_huge);
  MESSAGE("explicit huge pages: " << report.explicit_huge / megabyte << " MB");
  resource.deallocate(memory, bytes, 64);
  CHECK(resource.report().explicit_huge == 0);
}

TEST_CASE("huge_page_resource: more than the system has is bad_alloc, and is forgotten") {
  huge_page_resource resource;
  constexpr auto most = static_cast<std::size_t>(-1);
  for (const std::size_t bytes : {std::size_t{1} << 60, most / 2, most / 2 + 1, most / 2 - huge_page_size,
                                  most - huge_page_size, most - 64, most - 1, most}) {
    for (const std::size_t alignment : {std::size_t{1}, std::size_t{64}, huge_page_size}) {
      CHECK_THROWS_AS((void)resource.allocate(bytes, alignment), std::bad_alloc);
    }
  }
  CHECK(resource.report().mapped == 0);
}

TEST_CASE("huge_page_resource: threads allocate at once") {
  huge_page_resource resource;
  std::atomic<int> faults{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 30; ++round) {
        auto* memory = static_cast<int*>(resource.allocate(2 * megabyte, 64));
        *memory = t;
        if (round % 8 == 0 && resource.report().mapped < 2 * megabyte) ++faults;
        if (*memory != t) ++faults;
        resource.deallocate(memory, 2 * megabyte, 64);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(faults == 0);
  CHECK(resource.report().mapped == 0);
}

TEST_CASE("huge_page_resource: prefault makes every page resident, in parallel") {
  huge_page_resource resource;
  thread_pool pool(3);
  constexpr std::size_t bytes = 9 * megabyte + 123;
  void* memory = resource.allocate(bytes, 64);
  madvise(memory, bytes, MADV_NOHUGEPAGE);  // so that one touch is one small page
  const std::size_t before = resident_pages(memory, bytes);
  prefault(pool, memory, bytes);
  CHECK(before < (bytes + 4095) / 4096);
  CHECK(resident_pages(memory, bytes) == (bytes + 4095) / 4096);
  CHECK(all_zero(memory, bytes));
  CHECK(resource.report().resident >= bytes);
  prefault(pool, memory, 0);
  resource.deallocate(memory, bytes, 64);
}

TEST_CASE("huge_page_resource: standard containers live on it") {
  huge_page_resource resource;
  {
    std::pmr::vector<double> values(&resource);
    for (int i = 0; i < 1000000; ++i) values.push_back(i);
    CHECK(values[999999] == 999999);
    CHECK(resource.report().mapped >= 8 * megabyte);
    std::pmr::vector<double> moved(std::move(values));
    CHECK(moved.size() == 1000000);
  }
  CHECK(resource.report().mapped == 0);
  huge_page_resource other;
  CHECK(resource == resource);
  CHECK_FALSE(resource == other);
  CHECK(huge_page_resource::shared() == huge_page_resource::shared());
}
