// Memory that ends exactly where a page without access begins, or begins exactly where one ends: reading or
// writing one element outside is a crash, not luck.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace deeprec_test {

/// Where the page without access lies that memory touches. The other end is somewhere in a page.
enum class fence { before, behind };
inline constexpr fence every_fence[] = {fence::before, fence::behind};

template <class T>
class guarded {
 public:
  explicit guarded(std::size_t count, fence side = fence::behind) : count_(count) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t bytes = (count * sizeof(T) + page - 1) / page * page;
    size_ = bytes + 2 * page;
    base_ = static_cast<std::byte*>(mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED) std::abort();
    if (bytes > 0 && mprotect(base_ + page, bytes, PROT_READ | PROT_WRITE) != 0) std::abort();
    const std::size_t before = side == fence::behind ? bytes - count * sizeof(T) : 0;
    data_ = static_cast<T*>(static_cast<void*>(base_ + page + before));
  }
  template <class Container>
  static guarded copy_of(const Container& values, fence side = fence::behind) {
    guarded copy(values.size(), side);
    if (!values.empty()) std::memcpy(copy.data(), values.data(), values.size() * sizeof(T));
    return copy;
  }
  guarded(guarded&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)),
        data_(other.data_),
        size_(other.size_),
        count_(other.count_) {}
  guarded& operator=(guarded&&) = delete;
  ~guarded() {
    if (base_ != nullptr) munmap(base_, size_);
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  std::size_t size() const { return count_; }
  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }

 private:
  std::byte* base_ = nullptr;
  T* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t count_ = 0;
};

}  // namespace deeprec_test
