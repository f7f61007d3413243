// Blocks of one size, millions of them: nothing is kept beside a block, and each thread has free ones of its
// own.
//
//   slab_resource nodes(40);                                     52,427 blocks in 2 MB
//   std::pmr::list<item> items(&nodes);                          a node is a block
//
//   thread    128 addresses of free blocks: no lock, and a freed block is not touched
//      | 64 at a time, under a lock
//   granule   | runs | block | block | ...           detail/slab_runs.hpp
//
// Addresses never change. Granules go back to their resource when the slab_resource ends. Not here: blocks of
// several sizes (std::pmr::synchronized_pool_resource).
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory_resource>
#include <mutex>
#include <new>
#include <optional>
#include <span>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/memory/detail/slab_checks.hpp>
#include <deeprec/memory/detail/slab_runs.hpp>
#include <deeprec/memory/detail/thread_parts.hpp>
#include <deeprec/memory/huge_page_resource.hpp>
#include <deeprec/support/granules.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Options of a slab_resource.
struct slab_options {
  enum class checks : unsigned char {
    none,
    frees,  ///< what is freed must be a block in use: a byte for each block, and a lock for each call
  };
  index_t granule_bytes = index_t{2} << 20;  ///< taken at once: a power of two from 4096 to 64 MB
  checks checked = checks::none;
  /// For granules, and for requests that no block fits; thread-safe.
  std::pmr::memory_resource* memory = huge_page_resource::shared();
};

/// What a slab_resource holds, and the bad frees that it found.
struct slab_report {
  std::size_t mapped = 0;     ///< bytes from its resource
  index_t blocks = 0;         ///< that these hold
  index_t blocks_in_use = 0;  ///< with checks only, as what follows
  index_t foreign_frees = 0;  ///< of what is none of its blocks
  index_t double_frees = 0;   ///< of a block that is free
  status first_fault;         ///< of these frees; place().value is the address
};

/// A pmr resource for blocks of one size. A request of at most block_bytes(), aligned to at most
/// block_alignment(), gets a block; any other one goes to the resource behind it.
///
/// With checks a bad free changes nothing, and report() has it; without, it is undefined, as for any
/// resource.
/// @cost    some ns; 64 bytes of bookkeeping in a granule, and 1 KB for a thread
/// @threads thread-safe. A thread keeps 128 free blocks, and those of one granule, until it ends. A child of
///          fork() may use it where no other thread was in a call
/// @error   std::bad_alloc where the resource behind it refuses; the constructor throws deeprec::error,
///          invalid_value (without exceptions: prints and aborts)
class slab_resource final : public std::pmr::memory_resource {
 public:
  explicit slab_resource(index_t block_bytes, slab_options options = {})
      : memory_(options.memory),
        runs_(stride_for(block_bytes, options), options.granule_bytes, has_marks(options), options.memory),
        most_bytes_(static_cast<std::size_t>(block_bytes_of(runs_))),
        most_alignment_((std::min)(most_bytes_ & (~most_bytes_ + 1), std::size_t{64})),
        caches_{options.memory} {
    if (has_marks(options)) {
      const index_t marks_at = runs::head_for(block_bytes_of(runs_), options.granule_bytes, true).bytes;
      checks_.emplace(marks_at, options.memory);
    }
  }
  slab_resource(const slab_resource&) = delete;
  slab_resource& operator=(const slab_resource&) = delete;
  /// @pre no thread uses it, nor any of its blocks
  ~slab_resource() override = default;

  /// At least what the constructor was given: a multiple of 4.
  [[nodiscard]] index_t block_bytes() const noexcept { return block_bytes_of(runs_); }
  /// The largest power of two that divides block_bytes(), 64 at most.
  [[nodiscard]] index_t block_alignment() const noexcept { return static_cast<index_t>(most_alignment_); }

  /// @cost    O(threads)
  /// @threads thread-safe
  /// @error   none
  [[nodiscard]] slab_report report() const {
    const std::lock_guard lock(mutex_);
    slab_report answer;
    answer.mapped = static_cast<std::size_t>(runs_.all().bytes());
    for (const cache* c = caches_.first; c != nullptr; c = c->next) answer.mapped += sizeof(cache);
    answer.blocks = runs_.all().count() * runs_.all().places();
    if (checks_) {
      const auto found = checks_->found();
      answer.mapped += checks_->bytes();
      answer.blocks_in_use = found.in_use;
      answer.foreign_frees = found.foreign;
      answer.double_frees = found.twice;
      answer.first_fault = found.first;
    }
    return answer;
  }

 private:
  using runs = detail::slab_runs;
  static constexpr std::size_t batch = 64;

  // Free blocks of one thread.
  struct alignas(64) cache {
    std::byte* blocks[2 * batch];
    std::size_t count = 0;
    runs::chain freed;
    bool has_thread = false;
    cache* next = nullptr;
  };
  struct cache_list {
    std::pmr::memory_resource* memory;
    cache* first = nullptr;

    explicit cache_list(std::pmr::memory_resource* from) noexcept : memory(from) {}
    cache_list(const cache_list&) = delete;
    cache_list& operator=(const cache_list&) = delete;
    ~cache_list() {
      while (first != nullptr) {
        cache* const gone = first;
        first = gone->next;
        memory->deallocate(gone, sizeof(cache), alignof(cache));
      }
    }
  };

  static index_t block_bytes_of(const runs& all) noexcept { return all.all().stride(); }
  static bool has_marks(const slab_options& options) noexcept {
    return options.checked == slab_options::checks::frees;
  }
  static index_t stride_for(index_t block_bytes, const slab_options& options) {
    if (!detail::granules::is_size(options.granule_bytes))
      detail::raise(errc::invalid_value,
                    "slab_resource: granule_bytes must be a power of two from 4096 to 64 MB");
    constexpr index_t unit = runs::least_stride;
    const index_t stride =
        block_bytes < 1 || block_bytes > options.granule_bytes ? 0 : (block_bytes + unit - 1) / unit * unit;
    if (stride == 0 ||
        detail::granules::places_in(stride, options.granule_bytes,
                                    runs::head_for(stride, options.granule_bytes, has_marks(options))) < 1)
      detail::raise(errc::invalid_value, "slab_resource: block_bytes must be from 1 to what a granule holds");
    return stride;
  }

  DEEPREC_INLINE std::byte* take() {
    auto* const mine = static_cast<cache*>(parts_.mine());
    if (mine != nullptr && mine->count > 0) [[likely]]
      return mine->blocks[--mine->count];
    return take_more(mine);
  }
  DEEPREC_INLINE void give(std::byte* block) noexcept {
    auto* const mine = static_cast<cache*>(parts_.mine());
    if (mine == nullptr || mine->count == 2 * batch) [[unlikely]]
      return give_more(mine, block);
    mine->blocks[mine->count++] = block;
  }
  [[gnu::noinline]] std::byte* take_more(cache* mine) {
    if (mine == nullptr) mine = new_cache();
    if (mine == nullptr) return take_without_cache();
    if (mine->freed.first == 0) {
      {
        const std::lock_guard lock(mutex_);
        mine->count = take_run(std::span(mine->blocks, batch), mine->freed);
      }
      if (mine->freed.first != 0) runs_.prefetch(mine->freed);
    }
    while (mine->freed.first != 0 && mine->count < batch)
      mine->blocks[mine->count++] = runs_.pop(mine->freed);
    return mine->blocks[--mine->count];
  }
  [[gnu::noinline]] void give_more(cache* mine, std::byte* block) noexcept {
    if (mine == nullptr) mine = new_cache();
    if (mine == nullptr) {
      const std::lock_guard lock(mutex_);
      return runs_.give(block);
    }
    if (mine->count == 2 * batch) {
      for (std::size_t k = 0; k < batch; ++k) runs_.prefetch_for(mine->blocks[k]);
      {
        const std::lock_guard lock(mutex_);
        for (std::size_t k = 0; k < batch; ++k) runs_.give(mine->blocks[k]);
      }
      std::copy_n(mine->blocks + batch, batch, mine->blocks);
      mine->count = batch;
    }
    mine->blocks[mine->count++] = block;
  }
  std::byte* take_without_cache() {
    const std::lock_guard lock(mutex_);
    std::byte* block = nullptr;
    runs::chain freed;
    if (take_run(std::span(&block, 1), freed) == 1) return block;
    block = runs_.pop(freed);
    while (freed.first != 0) runs_.give(runs_.pop(freed));
    return block;
  }
  // Under the lock.
  std::size_t take_run(std::span<std::byte*> blocks, runs::chain& freed) {
    if (checks_) checks_->room_for(runs_.all().count() + 1);
    return runs_.take(blocks, freed, [this](std::byte* granule) {
      if (checks_) checks_->add(granule);
    });
  }

  // Null: memory is refused, or the thread is ending.
  cache* new_cache() noexcept {
    const std::lock_guard lock(mutex_);
    cache* found = caches_.first;
    while (found != nullptr && found->has_thread) found = found->next;
    if (found == nullptr) {
#if DEEPREC_EXCEPTIONS
      try {
#endif
        found = ::new (memory_->allocate(sizeof(cache), alignof(cache))) cache;
#if DEEPREC_EXCEPTIONS
      } catch (const std::bad_alloc&) {
        return nullptr;
      }
#endif
      found->next = caches_.first;
      caches_.first = found;
    }
    if (!parts_.keep(found)) return nullptr;
    found->has_thread = true;
    return found;
  }
  static void thread_ends(void* resource, void* part) noexcept {
    auto& all = *static_cast<slab_resource*>(resource);
    auto& gone = *static_cast<cache*>(part);
    const std::lock_guard lock(all.mutex_);
    while (gone.count > 0) all.runs_.give(gone.blocks[--gone.count]);
    while (gone.freed.first != 0) all.runs_.give(all.runs_.pop(gone.freed));
    gone.has_thread = false;
  }

  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (bytes > most_bytes_ || alignment > most_alignment_) [[unlikely]]
      return memory_->allocate(bytes, alignment);
    std::byte* const block = take();
    runs_.all().unpoison(block);
    if (checks_) [[unlikely]]
      checks_->taken(runs_.all(), block);
    return block;
  }
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override {
    auto* const block = static_cast<std::byte*>(memory);
    const bool fits = bytes <= most_bytes_ && alignment <= most_alignment_;
    if (checks_) [[unlikely]] {
      if ((fits || checks_->owns(runs_.all(), block)) && !checks_->freed(runs_.all(), block, fits)) return;
    }
    if (!fits) [[unlikely]]
      return memory_->deallocate(memory, bytes, alignment);
    runs_.all().poison(block);
    give(block);
  }
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override {
    return this == &other;
  }

  std::pmr::memory_resource* memory_;
  runs runs_;
  std::size_t most_bytes_;
  std::size_t most_alignment_;
  std::optional<detail::slab_checks> checks_;
  mutable std::mutex mutex_;
  cache_list caches_;
  detail::thread_parts parts_{this, &thread_ends};  // last: threads that end meet a whole object
};

}}  // namespace deeprec::DEEPREC_ABI
