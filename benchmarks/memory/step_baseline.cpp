// The blocks of a step by malloc, by the pools of the standard library, and on huge pages.
#include "memory/step_baseline.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <memory_resource>

namespace DEEPREC_BASELINE_NS {

using memory_bench::event;

void malloc_events(const event* events, std::size_t count, const std::uint32_t*, std::size_t steps,
                   void** blocks) {
  for (std::size_t s = 0; s < steps; ++s) {
    for (std::size_t i = 0; i < count; ++i) {
      const event e = events[i];
      if (e.bytes > 0) {
        blocks[e.block] = std::malloc(e.bytes);
      } else {
        std::free(blocks[e.block]);
      }
    }
  }
}

namespace {

template <class Resource, class EndOfStep>
void resource_events(Resource& memory, const event* events, std::size_t count, const std::uint32_t* bytes,
                     std::size_t steps, void** blocks, const EndOfStep& end_of_step) {
  std::pmr::memory_resource* const to = &memory;
  for (std::size_t s = 0; s < steps; ++s) {
    for (std::size_t i = 0; i < count; ++i) {
      const event e = events[i];
      if (e.bytes > 0) {
        blocks[e.block] = to->allocate(e.bytes, 16);
      } else {
        to->deallocate(blocks[e.block], bytes[e.block], 16);
      }
    }
    end_of_step(memory);
  }
}

}  // namespace

void pool_events(const event* events, std::size_t count, const std::uint32_t* bytes, std::size_t steps,
                 void** blocks) {
  static std::pmr::unsynchronized_pool_resource pool(
      {.max_blocks_per_chunk = 0, .largest_required_pool_block = std::size_t{1} << 22},
      std::pmr::new_delete_resource());
  resource_events(pool, events, count, bytes, steps, blocks, [](auto&) {});
}

void monotonic_events(const event* events, std::size_t count, const std::uint32_t* bytes, std::size_t steps,
                      void** blocks) {
  static std::pmr::monotonic_buffer_resource buffer(std::size_t{1} << 28, std::pmr::new_delete_resource());
  resource_events(buffer, events, count, bytes, steps, blocks, [](auto& memory) { memory.release(); });
}

namespace {
void touch(void* block, std::size_t bytes) {
  auto* const at = static_cast<volatile char*>(block);
  for (std::size_t i = 0; i < bytes; i += 4096) at[i] = 1;
}
}  // namespace

void touch_malloc(std::size_t bytes) {
  void* const block = std::malloc(bytes);
  touch(block, bytes);
  std::free(block);
}

void touch_huge(std::size_t bytes) {
  constexpr std::size_t huge = std::size_t{2} << 20;
  void* const block = std::aligned_alloc(huge, bytes);
  madvise(block, bytes, MADV_HUGEPAGE);
  touch(block, bytes);
  std::free(block);
}

}  // namespace DEEPREC_BASELINE_NS
