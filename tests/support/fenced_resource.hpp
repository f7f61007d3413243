// Memory whose every block lies directly behind a page without access, or directly before one: index -1, or
// one element too many, is a crash, not luck.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory_resource>

#include "support/guarded.hpp"

namespace deeprec_test {

class fenced_resource final : public std::pmr::memory_resource {
 public:
  explicit fenced_resource(fence side) : side_(side) {}
  /// True when the byte can't be read: the kernel says so, nothing crashes.
  static bool is_fenced(const void* byte) {
    int ends[2];
    if (::pipe(ends) != 0) std::abort();
    const bool fenced = ::write(ends[1], byte, 1) != 1;
    ::close(ends[0]);
    ::close(ends[1]);
    return fenced;
  }

 private:
  struct block {
    void* base;
    std::size_t size;
  };
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t inner = (bytes + alignment + page - 1) / page * page;
    const std::size_t size = inner + 2 * page;
    auto* const base =
        static_cast<std::byte*>(::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base == MAP_FAILED) std::abort();
    if (::mprotect(base + page, inner, PROT_READ | PROT_WRITE) != 0) std::abort();
    void* data = base + page;
    if (side_ == fence::behind) {
      const std::size_t slack = (inner - bytes) / alignment * alignment;
      data = base + page + slack;
    }
    blocks_[data] = {base, size};
    return data;
  }
  void do_deallocate(void* data, std::size_t, std::size_t) override {
    const block found = blocks_.at(data);
    blocks_.erase(data);
    ::munmap(found.base, found.size);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

  fence side_;
  std::map<void*, block> blocks_;
};

}  // namespace deeprec_test
