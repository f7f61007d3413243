// Blocks of one size: apart from each other and at their addresses, in order of any history and any threads;
// what is freed is used again; bad frees are reported.
#include <deeprec/memory/slab_resource.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <map>
#include <memory_resource>
#include <mutex>
#include <new>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <deeprec/memory/counting_resource.hpp>
#include <deeprec/memory/refusing_resource.hpp>

#include "support/seed.hpp"

#if defined(__SANITIZE_ADDRESS__)
#  include <sanitizer/asan_interface.h>
#endif

using namespace deeprec;
using deeprec_test::seed;

namespace {

constexpr index_t megabyte = index_t{1} << 20;

/// Fills a block with what only it holds, and reads that again.
class marked_block {
 public:
  marked_block(void* at, std::size_t bytes, std::uint64_t mark)
      : at_(static_cast<unsigned char*>(at)), bytes_(bytes), mark_(mark) {
    for (std::size_t k = 0; k < bytes; ++k) at_[k] = byte(k);
  }
  [[nodiscard]] bool is_whole() const {
    for (std::size_t k = 0; k < bytes_; ++k)
      if (at_[k] != byte(k)) return false;
    return true;
  }
  [[nodiscard]] void* at() const { return at_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  [[nodiscard]] unsigned char byte(std::size_t k) const {
    return static_cast<unsigned char>((mark_ * 0x9e3779b97f4a7c15U + k) >> (k % 8 * 8));
  }
  unsigned char* at_;
  std::size_t bytes_;
  std::uint64_t mark_;
};

/// Random allocations and frees of 1 to `bytes` bytes; the first block that is not aligned, overlaps another
/// one or lost its bytes.
std::string traffic_fault(std::pmr::memory_resource& memory, std::size_t bytes, std::size_t alignment,
                          int calls, std::mt19937_64& random) {
  std::vector<marked_block> live;
  std::map<std::uintptr_t, std::size_t> ranges;
  std::string fault;
  std::size_t aim = 0;
  for (int call = 0; call < calls && fault.empty(); ++call) {
    if (call % 500 == 0) aim = random() % 1500;  // so that it grows and shrinks
    if (live.empty() || (live.size() < aim && random() % 4 != 0)) {
      const std::size_t size = random() % 4 == 0 ? 1 + random() % bytes : bytes;
      void* const block = memory.allocate(size, alignment);
      const auto at = reinterpret_cast<std::uintptr_t>(block);
      if (at % alignment != 0) fault = "not aligned";
      const auto next = ranges.lower_bound(at);
      if ((next != ranges.end() && next->first < at + size) ||
          (next != ranges.begin() && std::prev(next)->first + std::prev(next)->second > at))
        fault = "overlaps another block";
      if (!fault.empty()) break;
      ranges[at] = size;
      live.emplace_back(block, size, random());
    } else {
      std::swap(live[random() % live.size()], live.back());
      if (!live.back().is_whole()) fault = "lost its bytes";
      ranges.erase(reinterpret_cast<std::uintptr_t>(live.back().at()));
      memory.deallocate(live.back().at(), live.back().bytes(), alignment);
      live.pop_back();
    }
  }
  for (const marked_block& one : live) memory.deallocate(one.at(), one.bytes(), alignment);
  return fault;
}

std::vector<void*> taken(std::pmr::memory_resource& memory, std::size_t count, std::size_t bytes) {
  std::vector<void*> blocks(count);
  for (void*& block : blocks) block = memory.allocate(bytes, 4);
  return blocks;
}

}  // namespace

TEST_CASE("slab_resource: blocks are aligned, apart, and keep their bytes") {
  std::mt19937_64 random(seed());
  for (const index_t bytes : {1, 3, 4, 5, 8, 12, 40, 64, 80, 100, 256, 1000}) {
    for (const index_t granule : {index_t{4096}, index_t{1} << 16, 2 * megabyte}) {
      for (const auto checks : {slab_options::checks::none, slab_options::checks::frees}) {
        slab_resource slab(bytes, {.granule_bytes = granule, .checked = checks});
        CAPTURE(bytes);
        CAPTURE(granule);
        CHECK(slab.block_bytes() >= bytes);
        CHECK(slab.block_bytes() < bytes + 4);
        CHECK(slab.block_bytes() % slab.block_alignment() == 0);
        for (std::size_t alignment = 1; alignment <= static_cast<std::size_t>(slab.block_alignment());
             alignment *= 4) {
          CHECK(traffic_fault(slab, static_cast<std::size_t>(bytes), alignment, 4000, random) == "");
        }
        CHECK(slab.report().foreign_frees + slab.report().double_frees == 0);
        CHECK(slab.report().blocks_in_use == 0);
      }
    }
  }
}

TEST_CASE("slab_resource: the traffic of these tests catches blocks that overlap") {
  // Gives every hundredth block once more, when it is in use.
  class broken_resource final : public std::pmr::memory_resource {
   public:
    explicit broken_resource(std::pmr::memory_resource& of) : of_(of) {}

   private:
    void* do_allocate(std::size_t bytes, std::size_t alignment) override {
      if (++calls_ % 100 == 0 && last_ != nullptr) return last_;
      return last_ = of_.allocate(bytes, alignment);
    }
    void do_deallocate(void* block, std::size_t, std::size_t) override {
      if (block == last_) last_ = nullptr;
    }
    bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
    std::pmr::memory_resource& of_;
    int calls_ = 0;
    void* last_ = nullptr;
  };
  std::mt19937_64 random(seed());
  slab_resource slab(40);
  broken_resource broken(slab);
  CHECK(traffic_fault(broken, 40, 8, 4000, random) == "overlaps another block");
}

TEST_CASE("slab_resource: nothing lies beside a block, and what is freed is used again") {
  std::mt19937_64 random(seed());
  for (const std::size_t bytes : {4, 40, 80, 256}) {
    CAPTURE(bytes);
    counting_resource counted(huge_page_resource::shared());
    slab_resource slab(static_cast<index_t>(bytes), {.memory = &counted});
    CHECK(counted.statistics().bytes == 0);
    std::vector<void*> blocks = taken(slab, 1, bytes);
    const slab_report one = slab.report();
    CHECK(static_cast<double>(one.blocks) * static_cast<double>(bytes) > 0.998 * (2 << 20));
    CHECK(one.mapped == counted.statistics().bytes);
    // So many granules as the blocks need, whatever the history.
    const auto count = static_cast<std::size_t>(one.blocks) * (bytes == 4 ? 1 : 3);
    const std::vector<void*> rest = taken(slab, count - 1, bytes);
    blocks.insert(blocks.end(), rest.begin(), rest.end());
    const slab_report full = slab.report();
    CHECK(full.blocks == static_cast<index_t>(count));
    for (int round = 0; round < 3; ++round) {
      std::shuffle(blocks.begin(), blocks.end(), random);
      const std::size_t freed = round == 0 ? count : random() % count;
      for (std::size_t k = 0; k < freed; ++k) slab.deallocate(blocks[k], bytes, 4);
      for (std::size_t k = 0; k < freed; ++k) blocks[k] = slab.allocate(bytes, 4);
      CHECK(slab.report().blocks == full.blocks);
    }
    std::sort(blocks.begin(), blocks.end());
    CHECK(std::adjacent_find(blocks.begin(), blocks.end()) == blocks.end());
    slab.deallocate(slab.allocate(bytes, 4), bytes, 4);
    CHECK(slab.report().blocks > full.blocks);
    for (void* const block : blocks) slab.deallocate(block, bytes, 4);
  }
}

TEST_CASE("slab_resource: once all blocks are free they are taken in the order of their addresses") {
  std::mt19937_64 random(seed());
  slab_resource slab(40);
  std::vector<void*> blocks = taken(slab, 100'000, 40);
  std::shuffle(blocks.begin(), blocks.end(), random);
  std::thread([&] {
    for (void* const block : blocks) slab.deallocate(block, 40, 8);
  }).join();  // and keeps none
  blocks = taken(slab, 100'000, 40);
  std::size_t ascending = 0;
  for (std::size_t k = 1; k < blocks.size(); ++k) {
    ascending += static_cast<std::byte*>(blocks[k]) == static_cast<std::byte*>(blocks[k - 1]) + 40 ? 1 : 0;
  }
  CHECK(ascending > 97'000);  // but for those that the first thread kept, and ends of runs
}

TEST_CASE("slab_resource: what no block fits goes to the resource behind it") {
  counting_resource counted(std::pmr::new_delete_resource());
  slab_resource slab(40, {.memory = &counted});
  CHECK(slab.block_alignment() == 8);
  void* const large = slab.allocate(41, 8);
  void* const coarse = slab.allocate(40, 16);
  CHECK(counted.statistics().blocks == 2);
  CHECK(reinterpret_cast<std::uintptr_t>(coarse) % 16 == 0);
  CHECK(slab.report().blocks == 0);
  void* const none = slab.allocate(0, 1);
  CHECK(slab.report().blocks > 0);
  slab.deallocate(none, 0, 1);
  const index_t kept = counted.statistics().blocks;
  slab.deallocate(large, 41, 8);
  slab.deallocate(coarse, 40, 16);
  CHECK(counted.statistics().blocks == kept - 2);
  CHECK(slab_resource(256).block_alignment() == 64);
  CHECK(slab_resource(1).block_bytes() == 4);
}

TEST_CASE("slab_resource: containers of the standard library live on it") {
  slab_resource slab(64, {.checked = slab_options::checks::frees});
  {
    std::pmr::map<int, double> sorted(&slab);
    std::pmr::list<int> listed(&slab);
    for (int k = 0; k < 20'000; ++k) {
      sorted[k * 7919 % 20'000] = k;
      listed.push_front(k);
    }
    CHECK(slab.report().blocks_in_use == 40'000);
    for (int k = 0; k < 20'000; k += 2) sorted.erase(k);
    CHECK(slab.report().blocks_in_use == 30'000);
    CHECK(sorted.at(7919 * 3 % 20'000) == 3);
    CHECK(listed.back() == 0);
  }
  CHECK(slab.report().blocks_in_use == 0);
  CHECK(slab.report().first_fault.ok());
}

TEST_CASE("slab_resource: with checks, frees of what is no block in use are reported, and change nothing") {
  slab_resource slab(40, {.checked = slab_options::checks::frees});
  slab_resource other(40);
  std::vector<void*> blocks = taken(slab, 300, 40);
  auto* const first = static_cast<std::byte*>(blocks[0]);
  std::array<std::byte, 64> on_stack{};
  void* const of_other = other.allocate(40, 8);
  const auto granule =
      reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(first) & ~std::uintptr_t{(2 << 20) - 1});

  index_t foreign = 0;
  const auto is_foreign = [&](void* address, std::size_t bytes, std::size_t alignment) {
    slab.deallocate(address, bytes, alignment);
    CHECK(slab.report().foreign_frees == ++foreign);
  };
  is_foreign(on_stack.data(), 40, 8);
  CHECK(slab.report().first_fault.code() == errc::invalid_value);
  CHECK(slab.report().first_fault.place().value ==
        static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(on_stack.data())));
  CHECK(slab.report().first_fault.message().find("slab_resource: what is freed must be one of its blocks") !=
        std::string::npos);
  is_foreign(of_other, 40, 8);
  is_foreign(first + 1, 40, 8);
  is_foreign(first + 8, 32, 8);
  is_foreign(granule, 40, 8);
  is_foreign(granule + 64, 40, 8);
  is_foreign(granule + (2 << 20) - 8, 40, 8);
  is_foreign(first, 41, 8);   // more bytes than a block has
  is_foreign(first, 40, 16);  // would have gone to the resource behind it
  is_foreign(reinterpret_cast<void*>(std::uintptr_t{8}), 40, 8);

  slab.deallocate(blocks[7], 40, 8);
  slab.deallocate(blocks[7], 40, 8);
  CHECK(slab.report().double_frees == 1);
  // A block that was never taken is free, too.
  const auto last = std::max_element(blocks.begin(), blocks.end());
  slab.deallocate(static_cast<std::byte*>(*last) + 40 * 1000, 40, 8);
  CHECK(slab.report().double_frees == 2);
  CHECK(slab.report().foreign_frees == foreign);
  CHECK(slab.report().blocks_in_use == 299);

  // No block is given twice after all this.
  std::vector<void*> more = taken(slab, 1000, 40);
  blocks.erase(blocks.begin() + 7);
  more.insert(more.end(), blocks.begin(), blocks.end());
  std::sort(more.begin(), more.end());
  CHECK(std::adjacent_find(more.begin(), more.end()) == more.end());
  for (void* const block : more) slab.deallocate(block, 40, 8);
  CHECK(slab.report().blocks_in_use == 0);
  for (void* const block : more) slab.deallocate(block, 40, 8);
  CHECK(slab.report().double_frees == 2 + static_cast<index_t>(more.size()));
  other.deallocate(of_other, 40, 8);
}

TEST_CASE("slab_resource: a size that no granule holds is refused by its constructor") {
  const auto made = [](index_t bytes, index_t granule) {
    try {
      const slab_resource slab(bytes, {.granule_bytes = granule});
      return std::string();
    } catch (const error& e) {
      CHECK(e.code() == errc::invalid_value);
      return std::string(e.what());
    }
  };
  CHECK(made(3968, 4096) == "");
  for (const index_t bytes : {index_t{0}, index_t{-1}, index_t{3969}, 4 * megabyte, INT64_MAX, INT64_MIN})
    CHECK(made(bytes, 4096).find("block_bytes must be") != std::string::npos);
  for (const index_t granule : {index_t{0}, index_t{-4096}, index_t{2048}, index_t{5000}, 128 * megabyte})
    CHECK(made(4, granule).find("granule_bytes must be") != std::string::npos);
}

TEST_CASE("slab_resource: an allocation that is refused memory can be made again") {
  for (const auto checks : {slab_options::checks::none, slab_options::checks::frees}) {
    bool refused = true;
    for (long n = 0; refused; ++n) {
      CAPTURE(n);
      allowance granted;
      refusing_resource memory(granted);
      {
        slab_resource slab(100, {.granule_bytes = 4096, .checked = checks, .memory = &memory});
        std::vector<void*> blocks = taken(slab, 30, 100);
        granted.left = n;
        refused = false;
        std::thread([&] {  // which needs a part of its own
          for (int k = 0; k < 200; ++k) {
            try {
              blocks.push_back(slab.allocate(100, 4));
            } catch (const std::bad_alloc&) {
              refused = true;
              granted.left = allowance::unlimited;
              blocks.push_back(slab.allocate(100, 4));
            }
          }
          refused = refused || granted.refused > 0;  // what threads keep can be refused without a fault
          for (std::size_t k = 0; k < 100; ++k) slab.deallocate(blocks[k], 100, 4);
        })
            .join();
        granted.left = allowance::unlimited;
        for (std::size_t k = 0; k < 100; ++k) blocks[k] = slab.allocate(100, 4);
        std::vector<void*> sorted = blocks;
        std::sort(sorted.begin(), sorted.end());
        CHECK(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end());
        for (void* const block : blocks) slab.deallocate(block, 100, 4);
        CHECK(slab.report().first_fault.ok());
      }
      CHECK(memory.held == 0);
      REQUIRE(n < 100);
    }
  }
}

TEST_CASE("slab_resource: threads give blocks to each other") {
  constexpr int threads = 4;
  slab_resource slab(48, {.granule_bytes = index_t{1} << 16});
  std::mutex mutex;
  std::vector<marked_block> shared;
  std::atomic<int> faults{0};
  std::vector<std::thread> all;
  for (int t = 0; t < threads; ++t) {
    all.emplace_back([&, t] {
      std::mt19937_64 random(seed() + static_cast<std::uint64_t>(t));
      std::vector<marked_block> mine;
      for (int call = 0; call < 20'000; ++call) {
        switch (random() % 4) {
          case 0:
          case 1:
            mine.emplace_back(slab.allocate(48, 8), 48, random());
            break;
          case 2:
            if (mine.empty()) break;
            faults += mine.back().is_whole() ? 0 : 1;
            slab.deallocate(mine.back().at(), 48, 8);
            mine.pop_back();
            break;
          case 3: {
            const std::lock_guard lock(mutex);
            if (!mine.empty()) {
              shared.push_back(mine.back());
              mine.pop_back();
            }
            if (shared.size() > 100) {
              std::swap(shared[random() % shared.size()], shared.back());
              mine.push_back(shared.back());
              shared.pop_back();
            }
          }
        }
      }
      for (const marked_block& one : mine) {
        faults += one.is_whole() ? 0 : 1;
        slab.deallocate(one.at(), 48, 8);
      }
    });
  }
  for (std::thread& thread : all) thread.join();
  for (const marked_block& one : shared) {
    CHECK(one.is_whole());
    slab.deallocate(one.at(), 48, 8);
  }
  CHECK(faults == 0);
}

TEST_CASE("slab_resource: a thread that ends leaves its free blocks to all") {
  slab_resource slab(40, {.granule_bytes = index_t{1} << 16});
  std::vector<void*> blocks;
  std::thread([&] { blocks = taken(slab, 20'000, 40); }).join();
  const index_t most = slab.report().blocks;
  // Freed by a thread that never took one, and taken again by others, one after the other.
  std::thread([&] {
    for (void* const block : blocks) slab.deallocate(block, 40, 8);
  }).join();
  for (int round = 0; round < 4; ++round) {
    std::thread([&] { blocks = taken(slab, 20'000, 40); }).join();
    CHECK(slab.report().blocks == most);
    for (void* const block : blocks) slab.deallocate(block, 40, 8);
    // This thread keeps some of them now.
    blocks = taken(slab, 20'000, 40);
    CHECK(slab.report().blocks == most);
    std::thread([&] {
      for (void* const block : blocks) slab.deallocate(block, 40, 8);
    }).join();
  }
}

TEST_CASE("slab_resource: resources end before threads, and others take their places") {
  std::atomic<int> turn{0};
  const auto wait_for = [&](int value) {
    while (turn.load() != value) std::this_thread::yield();
  };
  std::vector<std::optional<slab_resource>> slabs(20);
  for (auto& slab : slabs) slab.emplace(40, slab_options{.granule_bytes = 4096});
  std::thread user([&] {
    for (int round = 0; round < 3; ++round) {
      for (auto& slab : slabs) {
        void* const block = slab->allocate(40, 8);
        std::memset(block, 1, 40);
        slab->deallocate(block, 40, 8);
      }
      turn = 2 * round + 1;
      wait_for(2 * round + 2);
    }
  });
  for (int round = 0; round < 3; ++round) {
    wait_for(2 * round + 1);
    for (std::size_t k = 0; k < slabs.size(); k += 1 + static_cast<std::size_t>(round)) {
      slabs[k].reset();
      slabs[k].emplace(40, slab_options{.granule_bytes = 4096});
      const auto blocks = taken(*slabs[k], 50, 40);
      for (void* const block : blocks) slabs[k]->deallocate(block, 40, 8);
    }
    turn = 2 * round + 2;
  }
  user.join();
}

TEST_CASE("slab_resource: a thread uses it while it ends") {
  slab_resource slab(40, {.granule_bytes = 4096, .checked = slab_options::checks::frees});
  struct late {
    slab_resource* of = nullptr;
    std::vector<void*> kept;
    ~late() {
      for (void* const block : kept) of->deallocate(block, 40, 8);
      const auto more = taken(*of, 200, 40);
      for (void* const block : more) of->deallocate(block, 40, 8);
    }
  };
  for (int round = 0; round < 3; ++round) {
    std::thread([&] {
      static thread_local late last;  // made before the thread has a part of the resource: it ends after it
      last.of = &slab;
      last.kept = taken(slab, 300, 40);
    }).join();
    CHECK(slab.report().blocks_in_use == 0);
  }
  const index_t most = slab.report().blocks;
  const auto blocks = taken(slab, 300, 40);
  CHECK(slab.report().blocks == most);
  for (void* const block : blocks) slab.deallocate(block, 40, 8);
}

#if defined(__SANITIZE_ADDRESS__)
TEST_CASE("slab_resource: the address sanitizer finds reads of a freed block") {
  slab_resource slab(40);
  const auto blocks = taken(slab, 1000, 40);
  for (void* const block : blocks) {
    CHECK_FALSE(__asan_address_is_poisoned(static_cast<std::byte*>(block) + 39));
    slab.deallocate(block, 40, 8);
  }
  for (void* const block : blocks) CHECK(__asan_address_is_poisoned(block));
}
#endif
