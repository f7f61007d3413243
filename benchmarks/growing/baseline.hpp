// What the growing suite compares with, each compiled with -O2 (namespace o2) and -O3 -march=native (native).
// No header of deeprec here. A peer that is not on this machine is not compiled, and its function not called.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>

namespace growing_bench {

/// A hash map from keys to codes, 0 for no key, that somebody else wrote.
struct peer_map {
  const char* version;        // empty: that of the package
  std::size_t bytes_per_key;  // no more than that, at any number of keys
  // keys: how many it has room for from the beginning. The memory outlives it.
  void* (*make)(std::pmr::memory_resource* memory, std::size_t keys);
  void (*end)(void* map);
  void (*find)(const void* map, const std::uint64_t* keys, std::size_t n, std::uint32_t* codes);
  // Keys that it does not hold get the code first + their place; codes: what each has then.
  void (*insert)(void* map, const std::uint64_t* keys, std::size_t n, std::uint32_t first,
                 std::uint32_t* codes);
};

}  // namespace growing_bench

#define GROWING_BASELINES                                      \
  growing_bench::peer_map absl_map();                          \
  growing_bench::peer_map boost_map();                         \
  growing_bench::peer_map libcuckoo_map();                     \
  growing_bench::peer_map phmap_map();                         \
  growing_bench::peer_map tbb_map();                           \
  /* Reads a word of each line, `ahead` of them prefetched. */ \
  std::uint64_t read_lines(const void* const* lines, std::size_t n, std::size_t ahead);

namespace o2 {
GROWING_BASELINES
}
namespace native {
GROWING_BASELINES
}
