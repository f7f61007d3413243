// Blocks of a node, of a file and of a device.
#include <deeprec/memory/mapped_resource.hpp>

#include <doctest/doctest.h>

#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <memory_resource>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <deeprec/core/jagged_view.hpp>
#include <deeprec/embedding/growing/growing_table.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/resolve.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/memory/counting_resource.hpp>
#include <deeprec/memory/fallback_resource.hpp>
#include <deeprec/memory/limited_resource.hpp>
#include <deeprec/memory/slab_resource.hpp>

#include "support/seed.hpp"
#include "support/temporary_folder.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

constexpr std::size_t megabyte = std::size_t{1} << 20;
constexpr mapping_options at_once{.when = mapping_options::faults::at_once};

/// What this machine has; each by its name.
std::map<std::string, std::unique_ptr<mapped_resource>> resources(const temporary_folder& folder,
                                                                  mapping_options options = {}) {
  std::map<std::string, std::unique_ptr<mapped_resource>> all;
  all["folder"] = mapped_resource::in_folder(folder.path(), options).or_throw();
  if (auto node = mapped_resource::on_node(0, options)) {
    all["node"] = std::move(node).value();
  } else {
    MESSAGE("no memory of a node: " << node.message());
  }
  return all;
}

/// Bytes of the file behind a resource, if it is the only file without a name that is open in a folder.
std::uint64_t reserved_in(const temporary_folder& folder) {
  std::uint64_t blocks = 0;
  for (const auto& one : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code none;
    const auto target = std::filesystem::read_symlink(one.path(), none);
    struct stat facts{};
    if (!none && target.string().rfind(folder.path(), 0) == 0 && ::stat(one.path().c_str(), &facts) == 0)
      blocks += static_cast<std::uint64_t>(facts.st_blocks);
  }
  return blocks * 512;
}

}  // namespace

TEST_CASE("mapped_resource: large blocks lie at multiples of 2 MB, apart, and go back") {
  std::mt19937_64 random(seed());
  const temporary_folder folder;
  for (auto& [name, memory] : resources(folder)) {
    CAPTURE(name);
    struct block {
      unsigned char* at;
      std::size_t bytes;
      unsigned char mark;
    };
    std::vector<block> live;
    for (int call = 0; call < 200; ++call) {
      if (live.empty() || (live.size() < 8 && random() % 2 == 0)) {
        const std::size_t bytes = megabyte + random() % (5 * megabyte);
        auto* const at = static_cast<unsigned char*>(memory->allocate(bytes, 2 * megabyte));
        CHECK(reinterpret_cast<std::uintptr_t>(at) % (2 * megabyte) == 0);
        const auto mark = static_cast<unsigned char>(call);
        for (std::size_t k = 0; k < bytes; k += 4096) at[k] = mark;
        at[bytes - 1] = mark;
        live.push_back({at, bytes, mark});
      } else {
        std::swap(live[random() % live.size()], live.back());
        const block& gone = live.back();
        bool is_whole = gone.at[gone.bytes - 1] == gone.mark;
        for (std::size_t k = 0; k < gone.bytes; k += 4096) is_whole = is_whole && gone.at[k] == gone.mark;
        CHECK(is_whole);
        memory->deallocate(gone.at, gone.bytes, 2 * megabyte);
        live.pop_back();
      }
      std::size_t mapped = 0;
      for (const block& one : live) mapped += (one.bytes + 2 * megabyte - 1) / (2 * megabyte) * 2 * megabyte;
      if (call % 20 == 0) CHECK(memory->report().mapped == mapped);
    }
    for (const block& one : live) memory->deallocate(one.at, one.bytes, 2 * megabyte);
    CHECK(memory->report().mapped == 0);
    CHECK_FALSE(memory->last_refusal());
    CHECK(reserved_in(folder) <= 4096);  // the blocks' space, too
  }
}

TEST_CASE("mapped_resource: small blocks and odd alignments go upstream") {
  const temporary_folder folder;
  counting_resource small(std::pmr::new_delete_resource());
  const auto memory = mapped_resource::in_folder(folder.path(), {}, &small).or_throw();
  void* const a = memory->allocate(megabyte - 1, 64);
  void* const b = memory->allocate(4 * megabyte, 4 * megabyte);
  CHECK(small.statistics().blocks == 2);
  CHECK(memory->report().mapped == 0);
  memory->deallocate(a, megabyte - 1, 64);
  memory->deallocate(b, 4 * megabyte, 4 * megabyte);
  CHECK(small.statistics().blocks == 0);
}

TEST_CASE("mapped_resource: pages are there at once where that is asked for") {
  const temporary_folder folder;
  for (auto& [name, memory] : resources(folder, at_once)) {
    CAPTURE(name);
    void* const block = memory->allocate(8 * megabyte, 64);
    const mapped_report now = memory->report();
    CHECK(now.mapped == 8 * megabyte);
    CHECK(now.resident == 8 * megabyte);
    CHECK(now.huge <= now.resident);
    CHECK(now.direct == 0);
    MESSAGE(name << ": " << now.huge / megabyte << " of 8 MB on huge pages");
    memory->deallocate(block, 8 * megabyte, 64);
  }
}

TEST_CASE("mapped_resource: pages of a node are on that node") {
  const auto memory = mapped_resource::on_node(0, at_once);
  if (!memory.ok()) return;
  void* const block = memory.value()->allocate(4 * megabyte, 64);
  for (std::size_t k = 0; k < 4 * megabyte; k += megabyte) {
    int node = -1;
    constexpr unsigned long of_address = 1 | 2;  // MPOL_F_NODE, MPOL_F_ADDR
    REQUIRE(::syscall(SYS_get_mempolicy, &node, nullptr, 0UL, static_cast<std::byte*>(block) + k,
                      of_address) == 0);
    CHECK(node == 0);
  }
  memory.value()->deallocate(block, 4 * megabyte, 64);
}

TEST_CASE("mapped_resource: what is not there is a fault with its name") {
  const temporary_folder folder;
  write_bytes(folder.path() + "/file", "x");
  const auto is = [](const mapped_resource::made& made, errc code, const std::string& why) {
    CAPTURE(made.message());
    CHECK(made.code() == code);
    CHECK(made.message().find(why) != std::string::npos);
  };
  for (const int node : {-1, 1'000, 1'000'000, INT32_MIN, INT32_MAX})
    is(mapped_resource::on_node(node), errc::invalid_value,
       "node must be one of this machine (it is " + std::to_string(node));
  is(mapped_resource::in_folder(folder.path() + "/none"), errc::io_error, "No such file");
  is(mapped_resource::in_folder(folder.path() + "/file"), errc::io_error, folder.path() + "/file");
  is(mapped_resource::in_folder("/proc"), errc::io_error, "/proc: ");
  is(mapped_resource::on_device(folder.path() + "/none"), errc::io_error, "No such file");
  is(mapped_resource::on_device(folder.path() + "/file"), errc::unsupported, "must be a DAX device");
  is(mapped_resource::on_device("/dev/zero"), errc::unsupported, "/dev/zero: ");
  is(mapped_resource::on_device("/dev/null"), errc::unsupported, "must be a DAX device");
}

TEST_CASE(
    "mapped_resource: more than there is is bad_alloc, with the reason, and the next block is granted") {
  const temporary_folder folder;
  for (auto& [name, memory] : resources(folder)) {
    CAPTURE(name);
    for (const std::size_t bytes :
         {std::size_t{1} << 50, SIZE_MAX / 2, SIZE_MAX / 2 + 1, SIZE_MAX - 1, SIZE_MAX}) {
      CHECK_THROWS_AS((void)memory->allocate(bytes, 64), std::bad_alloc);
      REQUIRE(memory->last_refusal());
      CHECK(memory->last_refusal()->message().find("mapped_resource") != std::string::npos);
    }
    void* const block = memory->allocate(3 * megabyte, 64);
    std::memset(block, 1, 3 * megabyte);
    CHECK(memory->report().mapped == 4 * megabyte);
    memory->deallocate(block, 3 * megabyte, 64);
    CHECK(memory->report().mapped == 0);
  }
  CHECK(reserved_in(folder) <= 4096);
}

TEST_CASE("mapped_resource: a full file system refuses blocks, and no store ends the process") {
  const temporary_folder folder;
  if (::mount("none", folder.path().c_str(), "tmpfs", 0, "size=16m") != 0) {
    MESSAGE("this process may not mount a tmpfs: not tested");
    return;
  }
  {
    const auto slow = mapped_resource::in_folder(folder.path()).or_throw();
    limited_resource fast(4 * megabyte);
    fallback_resource memory(&fast, slow.get(), std::size_t{1} << 30);
    std::vector<void*> blocks;
    for (int round = 0; round < 2; ++round) {
      try {
        for (;;) {
          blocks.push_back(memory.allocate(2 * megabyte, 64));
          std::memset(blocks.back(), 1, 2 * megabyte);
        }
      } catch (const std::bad_alloc&) {
      }
      CHECK(blocks.size() == 2 + 8);
      CHECK(slow->last_refusal()->message().find("No space left on device") != std::string::npos);
      for (void* const block : blocks) memory.deallocate(block, 2 * megabyte, 64);
      blocks.clear();
      CHECK(memory.report().bytes == 0);
    }
  }
  CHECK(::umount(folder.path().c_str()) == 0);
}

TEST_CASE("mapped_resource: tables lie on it, granules of growing tables and slabs, too") {
  const temporary_folder folder;
  inline_executor here;
  for (auto& [name, memory] : resources(folder)) {
    CAPTURE(name);
    {
      dense_table<f32_rows> mapped(20'000, 16, memory.get());
      dense_table<f32_rows> expected(20'000, 16);
      CHECK(memory->report().mapped >= mapped.bytes());
      mapped.initialize(here, row_init::uniform{.seed = 3});
      expected.initialize(here, row_init::uniform{.seed = 3});
      CHECK(std::equal(mapped.view().data(), mapped.view().data() + mapped.bytes(), expected.view().data()));

      growing_table<f32_rows> growing(f32_rows(16), row_init::zeros{}, {.memory = memory.get()});
      const std::vector<std::uint64_t> ids{1, 2, 3};
      CHECK(resolve(here, growing.rows(), fixed_hotness_view<std::uint64_t>(ids.data(), 3, 1), combiner::sum,
                    keys::find_or_insert)
                .ok());
      CHECK(growing.size() == 3);
      slab_resource slab(40, {.memory = memory.get()});
      slab.deallocate(slab.allocate(40, 8), 40, 8);
    }
    CHECK(memory->report().mapped == 0);
  }
}

TEST_CASE("mapped_resource: threads allocate at once") {
  const temporary_folder folder;
  for (auto& [name, memory] : resources(folder)) {
    std::vector<std::thread> threads;
    std::atomic<int> faults{0};
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int round = 0; round < 30; ++round) {
          auto* const block = static_cast<int*>(memory->allocate(2 * megabyte, 64));
          *block = t;
          std::this_thread::yield();
          if (*block != t) ++faults;
          memory->deallocate(block, 2 * megabyte, 64);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(faults == 0);
    CHECK(memory->report().mapped == 0);
  }
}
