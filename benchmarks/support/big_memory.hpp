// One table's worth of numbers on huge pages and one on ordinary ones, made on first use: 4 GB, or four times
// the last-level cache where that is more, or what the machine has.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include <deeprec/core/random.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/memory/huge_page_resource.hpp>

#include "support/machine.hpp"
#include "support/roofline.hpp"

namespace deeprec_bench {

using deeprec::index_t;

/// Memory in which every 16-bit half is a bf16 and an f16 of ordinary size, and every word such a float.
class big_memory {
 public:
  explicit big_memory(int advice)
      : plan_(memory_plan::of(cache_is_pretended()
                                  ? 16 * last_level_cache()
                                  : std::max(std::size_t{4} << 30, 4 * last_level_cache()))) {
    plan_.bytes = plan_.bytes / deeprec::huge_page_size * deeprec::huge_page_size;
    void* raw = ::mmap(nullptr, plan_.bytes + deeprec::huge_page_size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) return;
    const auto start = reinterpret_cast<std::uintptr_t>(raw);
    data_ = reinterpret_cast<char*>((start + deeprec::huge_page_size - 1) / deeprec::huge_page_size *
                                    deeprec::huge_page_size);
    ::madvise(data_, plan_.bytes, advice);
    const deeprec::counter_rng rng(1);
    deeprec::thread_pool two_threads(2);
    two_threads.parallel_for(static_cast<index_t>(plan_.bytes / 16), 1 << 17,
                             [&](index_t begin, index_t end, int) {
                               for (index_t i = begin; i < end; ++i) {
                                 deeprec::random_words r = rng.words(0, static_cast<std::uint64_t>(i));
                                 for (std::uint32_t& w : r.w) w = (w & 0x03ff03ffU) | 0x3c003c00U;
                                 std::memcpy(data_ + i * 16, r.w, 16);
                               }
                             });
  }
  /// Null where there is no such memory.
  [[nodiscard]] char* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return plan_.bytes; }
  /// Why it is less than it should be; else empty.
  [[nodiscard]] const std::string& unfit() const { return plan_.unfit; }
  /// What any gather from it is held against; measured once.
  [[nodiscard]] const memory_pace& pace() const {
    if (pace_.dependent == 0) pace_ = memory_pace::of(data_, plan_.bytes);
    return pace_;
  }

 private:
  memory_plan plan_;
  char* data_ = nullptr;  // lives as long as the program
  mutable memory_pace pace_;
};

inline const big_memory& huge_memory() {
  static const big_memory memory(MADV_HUGEPAGE);
  return memory;
}
inline const big_memory& ordinary_memory() {
  static const big_memory memory(MADV_NOHUGEPAGE);
  return memory;
}
/// Null where there is no such memory.
inline char* huge_table() { return huge_memory().data(); }
inline char* ordinary_table() { return ordinary_memory().data(); }

}  // namespace deeprec_bench
