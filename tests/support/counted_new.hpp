// Replaces operator new by one that counts, and that can refuse. For one unit of a program of its own; not
// under a sanitizer, which has an operator new itself.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace deeprec_test {
inline std::atomic<std::size_t> news{0};    // of all threads
inline std::atomic<long> granted_news{-1};  // before one is refused; negative: none is
inline void count_new() {
  news.fetch_add(1, std::memory_order_relaxed);
  if (granted_news.load(std::memory_order_relaxed) >= 0 && granted_news.fetch_sub(1) == 0) {
    throw std::bad_alloc();
  }
}
}  // namespace deeprec_test

// Not inlined: where the compiler sees both, it takes free() for a mistake.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  deeprec_test::count_new();
  if (void* const p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  deeprec_test::count_new();
  const auto unit = static_cast<std::size_t>(alignment);
  if (void* const p = std::aligned_alloc(unit, (bytes / unit + 1) * unit)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
