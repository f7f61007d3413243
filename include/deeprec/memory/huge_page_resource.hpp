// Memory for tables, on 2 MB pages where the system provides them: reading random rows of a table of some GB
// costs half as much or less there, because the page table stays in the caches.
//
//   allocate ─ 1 MB and more ─> mmap, 2 MB aligned ─ explicit huge pages, if allowed and asked for
//            │                                     └ else MADV_HUGEPAGE (transparent huge pages)
//            └ smaller ─> upstream
//
// Pages are allocated when first touched: prefault(executor, ...) does it in parallel. report() returns what
// the system really provided. Not here: pinned memory; memory of a NUMA node, a file or a DAX device
// (mapped_resource.hpp).
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <memory_resource>
#include <mutex>
#include <new>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/executor.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/memory/detail/mapping.hpp>
#include <deeprec/memory/detail/page_report.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

inline constexpr std::size_t huge_page_size = detail::huge_page_bytes;

/// Memory that a huge_page_resource holds now, in bytes.
struct huge_page_report {
  std::size_t mapped = 0;            ///< asked for by mmap (2 MB granules)
  std::size_t explicit_huge = 0;     ///< of these, from the reserved pool
  std::size_t transparent_huge = 0;  ///< of these, touched and on transparent huge pages right now
  std::size_t resident = 0;          ///< of these, touched at all
};

/// A pmr resource for large blocks.
///
/// @cost    allocate: one mmap; pages are allocated at first touch (0.2 ms per 2 MB to zero)
/// @threads thread-safe
/// @error   std::bad_alloc when the system refuses, and for more bytes than half of the address space
///          (without exceptions: prints and aborts)
class huge_page_resource final : public std::pmr::memory_resource {
 public:
  enum class explicit_pages : unsigned char {
    never,  ///< transparent huge pages only
    try_,   ///< the reserved pool (vm.nr_hugepages) first, transparent ones when it is too small
  };

  explicit huge_page_resource(explicit_pages reserved = explicit_pages::never,
                              std::pmr::memory_resource* upstream = std::pmr::new_delete_resource()) noexcept
      : upstream_(upstream), reserved_(reserved) {}
  huge_page_resource(const huge_page_resource&) = delete;
  huge_page_resource& operator=(const huge_page_resource&) = delete;

  /// The process-wide instance that tables use by default; it outlives static tables.
  static huge_page_resource* shared() noexcept {
    alignas(huge_page_resource) static std::byte storage[sizeof(huge_page_resource)];
    static auto* const instance = ::new (static_cast<void*>(storage)) huge_page_resource;
    return instance;
  }

  /// Queries the kernel for the kinds of pages that this resource's memory is on.
  ///
  /// @cost    reads /proc/self/smaps: some ms
  /// @threads thread-safe
  /// @error   none; the *_huge and resident fields stay 0 where /proc is missing
  [[nodiscard]] huge_page_report report() const {
    std::lock_guard lock(mutex_);
    huge_page_report answer;
    for (const auto& [start, held] : blocks_) {
      answer.mapped += held.bytes;
      if (held.reserved) answer.explicit_huge += held.bytes;
    }
    const detail::page_report pages = detail::pages_of(
        [&](std::uintptr_t begin, std::uintptr_t end) { return overlaps_a_block(begin, end); });
    answer.transparent_huge = pages.transparent_huge;
    answer.resident = pages.resident;
    return answer;
  }

 private:
  struct block {
    std::size_t bytes;
    bool reserved;
  };

  static constexpr std::size_t most_bytes = static_cast<std::size_t>(-1) / 2;  // so that no sum wraps

  static bool is_large(std::size_t bytes, std::size_t alignment) noexcept {
    return bytes >= huge_page_size / 2 && alignment <= huge_page_size;
  }
  [[noreturn]] static void refuse() {
#if DEEPREC_EXCEPTIONS
    throw std::bad_alloc();
#else
    detail::raise(errc::out_of_memory,
                  "huge_page_resource: the system must provide the bytes (it refused)");  // a resource must
                                                                                          // not return null
#endif
  }

  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (bytes > most_bytes) refuse();
    if (!is_large(bytes, alignment)) return upstream_->allocate(bytes, alignment);
    const std::size_t size = detail::whole_huge_pages(bytes);
    std::map<std::uintptr_t, block> fresh;  // allocates the node before there is a mapping to leak
    fresh[0] = {size, false};
    auto entry = fresh.extract(fresh.begin());
    void* memory = MAP_FAILED;
    bool reserved = false;
    if (reserved_ == explicit_pages::try_) {
      constexpr int two_megabytes = 21 << 26;  // MAP_HUGE_2MB: the system's default may be 1 GB
      memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | two_megabytes, -1, 0);
      reserved = memory != MAP_FAILED;
    }
    if (memory == MAP_FAILED) memory = detail::map_aligned(size);
    if (memory == MAP_FAILED) refuse();
    if (!reserved) ::madvise(memory, size, MADV_HUGEPAGE);  // if refused: ordinary pages, see report()
    entry.key() = reinterpret_cast<std::uintptr_t>(memory);
    entry.mapped().reserved = reserved;
    std::lock_guard lock(mutex_);
    blocks_.insert(std::move(entry));
    return memory;
  }

  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override {
    if (!is_large(bytes, alignment)) return upstream_->deallocate(memory, bytes, alignment);
    {
      std::lock_guard lock(mutex_);
      blocks_.erase(reinterpret_cast<std::uintptr_t>(memory));
    }
    ::munmap(memory, detail::whole_huge_pages(bytes));
  }

  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override {
    return this == &other;
  }

  bool overlaps_a_block(std::uintptr_t start, std::uintptr_t end) const {
    auto after = blocks_.lower_bound(end);
    if (after == blocks_.begin()) return false;
    const auto& [block_start, held] = *std::prev(after);
    return block_start + held.bytes > start;
  }

  std::pmr::memory_resource* upstream_;
  explicit_pages reserved_;
  mutable std::mutex mutex_;
  std::map<std::uintptr_t, block> blocks_;
};

/// Touches every page of fresh memory, in parallel, so that the page faults happen here.
///
/// @pre     the memory's content doesn't matter yet: one byte of every 4 KB is set to 0
/// @cost    one page fault per page; about 5 GB/s per thread on huge pages
/// @threads one caller per block
/// @error   none
template <BulkExecutor E>
void prefault(E& executor, void* memory, std::size_t bytes) {
  constexpr index_t page = 4096;
  auto* const first = static_cast<volatile char*>(memory);
  const auto size = static_cast<index_t>(bytes);
  executor.parallel_for((size + page - 1) / page, static_cast<index_t>(huge_page_size) / page,
                        [first](index_t begin, index_t end, int) {
                          for (index_t p = begin; p < end; ++p) first[p * page] = 0;
                        });
  if (size > 0) first[size - 1] = 0;  // the last page of a block that is not aligned
}

}}  // namespace deeprec::DEEPREC_ABI
