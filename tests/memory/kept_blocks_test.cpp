// Blocks that are kept where they are freed.
#include <deeprec/memory/counting_resource.hpp>
#include <deeprec/support/kept_blocks.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <new>
#include <random>
#include <vector>

#include "support/seed.hpp"

using namespace deeprec;

namespace {

struct block {
  void* at;
  std::size_t bytes;
};
// Every byte is the block's own, and it is aligned.
void fill(const block& b, int value) { std::memset(b.at, value, b.bytes); }
bool is_filled(const block& b, int value) {
  const auto* const bytes = static_cast<const unsigned char*>(b.at);
  for (std::size_t k = 0; k < b.bytes; ++k) {
    if (bytes[k] != static_cast<unsigned char>(value)) return false;
  }
  return reinterpret_cast<std::uintptr_t>(b.at) % 64 == 0;
}

}  // namespace

TEST_CASE("kept_blocks: blocks of every size are apart, and no larger than a quarter more than asked for") {
  counting_resource behind;
  {
    detail::kept_blocks kept(&behind);
    std::vector<block> all;
    for (std::size_t bytes = 1; bytes < 5000; bytes += bytes < 300 ? 1 : 97) {
      const std::size_t before = behind.statistics().bytes;
      all.push_back({kept.allocate(bytes, bytes % 2 == 0 ? 64 : 8), bytes});
      const std::size_t taken = behind.statistics().bytes - before;
      CHECK(taken >= bytes);
      CHECK((taken <= bytes + bytes / 4 || taken == 64));
      fill(all.back(), static_cast<int>(all.size()));
    }
    for (std::size_t k = 0; k < all.size(); ++k) CHECK(is_filled(all[k], static_cast<int>(k + 1)));
    for (const block& b : all) kept.deallocate(b.at, b.bytes, b.bytes % 2 == 0 ? 64 : 8);
    CHECK(behind.statistics().blocks == static_cast<index_t>(all.size()));
  }
  CHECK(behind.statistics().blocks == 0);
  CHECK(behind.statistics().bytes == 0);
}
TEST_CASE("kept_blocks: what was freed is taken again, in whatever order") {
  counting_resource behind;
  detail::kept_blocks kept(&behind);
  std::mt19937_64 random(deeprec_test::seed());
  std::vector<std::size_t> sizes;
  for (std::size_t k = 0; k < 60; ++k) sizes.push_back(1 + k * k * 40);
  for (int round = 0; round < 5; ++round) {
    std::vector<block> live;
    std::shuffle(sizes.begin(), sizes.end(), random);
    for (const std::size_t bytes : sizes) {
      live.push_back({kept.allocate(bytes, 8), bytes});
      fill(live.back(), static_cast<int>(bytes % 251));
    }
    std::shuffle(live.begin(), live.end(), random);
    for (const block& b : live) {
      CHECK(is_filled(b, static_cast<int>(b.bytes % 251)));
      kept.deallocate(b.at, b.bytes, 8);
    }
    CHECK(behind.statistics().allocations == 60);
  }
}
TEST_CASE("kept_blocks: pages, and sizes that are none, are the affair of the resource behind it") {
  counting_resource behind;
  detail::kept_blocks kept(&behind);
  void* const page = kept.allocate(100, 4096);
  CHECK(reinterpret_cast<std::uintptr_t>(page) % 4096 == 0);
  kept.deallocate(page, 100, 4096);
  CHECK(behind.statistics().blocks == 0);
  detail::kept_blocks none(std::pmr::null_memory_resource());
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{1} << 61, (std::size_t{1} << 62) + 1})
    CHECK_THROWS_AS(static_cast<void>(none.allocate(bytes, 8)), std::bad_alloc);
  CHECK(kept.is_equal(kept));
  CHECK(!kept.is_equal(none));
}
