// 4 GB of numbers on huge pages and 4 GB on ordinary ones, made on first use.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <deeprec/core/random.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/memory/huge_page_resource.hpp>

namespace deeprec_bench {

using deeprec::index_t;

inline constexpr std::size_t table_bytes = std::size_t{4} << 30;

/// 4 GB in which every 16-bit half is a bf16 and an f16 of ordinary size, and every word such a float.
class big_memory {
 public:
  explicit big_memory(int advice) {
    void* raw = ::mmap(nullptr, table_bytes + deeprec::huge_page_size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) return;
    const auto start = reinterpret_cast<std::uintptr_t>(raw);
    data_ = reinterpret_cast<char*>((start + deeprec::huge_page_size - 1) / deeprec::huge_page_size *
                                    deeprec::huge_page_size);
    ::madvise(data_, table_bytes, advice);
    const deeprec::counter_rng rng(1);
    deeprec::thread_pool two_threads(2);
    two_threads.parallel_for(table_bytes / 16, 1 << 17, [&](index_t begin, index_t end, int) {
      for (index_t i = begin; i < end; ++i) {
        deeprec::random_words r = rng.words(0, static_cast<std::uint64_t>(i));
        for (std::uint32_t& w : r.w) w = (w & 0x03ff03ffU) | 0x3c003c00U;
        std::memcpy(data_ + i * 16, r.w, 16);
      }
    });
  }
  char* data() const { return data_; }

 private:
  char* data_ = nullptr;  // lives as long as the program
};

/// Null where there is no such memory.
inline char* huge_table() {
  static const big_memory memory(MADV_HUGEPAGE);
  return memory.data();
}
inline char* ordinary_table() {
  static const big_memory memory(MADV_NOHUGEPAGE);
  return memory.data();
}

}  // namespace deeprec_bench
