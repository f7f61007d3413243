// What the blocks of a step cost elsewhere, each compiled with -O2 (namespace o2) and -O3 -march=native
// (native). No header of deeprec here.
#pragma once

#include <cstddef>
#include <cstdint>

namespace memory_bench {

/// A request of so many bytes, or with 0 the end of the block.
struct event {
  std::uint32_t block;
  std::uint32_t bytes;
};

/// Runs the events of a step `steps` times. `bytes` are those of each block; `blocks` has room for their
/// addresses.
using run_events = void (*)(const event* events, std::size_t count, const std::uint32_t* bytes,
                            std::size_t steps, void** blocks);
/// Allocates, writes a byte to each page, and frees.
using touch_block = void (*)(std::size_t bytes);

}  // namespace memory_bench

#define DEEPREC_EVENTS const memory_bench::event*, std::size_t, const std::uint32_t*, std::size_t, void**
#define DEEPREC_STEP_BASELINES           \
  void malloc_events(DEEPREC_EVENTS);    \
  void pool_events(DEEPREC_EVENTS);      \
  void monotonic_events(DEEPREC_EVENTS); \
  void touch_malloc(std::size_t bytes);  \
  void touch_huge(std::size_t bytes);
namespace o2 {
DEEPREC_STEP_BASELINES
}  // namespace o2
namespace native {
DEEPREC_STEP_BASELINES
}  // namespace native
#undef DEEPREC_STEP_BASELINES
#undef DEEPREC_EVENTS
