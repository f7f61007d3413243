// What the memory suite compares with, compiled with -O2 (namespace o2) and -O3 -march=native (native), and
// the patterns that both sides run. No header of deeprec here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace memory_bench {

/// Blocks that are taken and given back: as many as there are numbers in `order`, a random permutation.
struct request {
  std::size_t bytes;
  std::size_t count;
  const std::uint32_t* order;
  void** blocks;  // room for the addresses
};

/// Takes all blocks, writes to each, and gives them back in the same order.
template <class Take, class Give>
void in_order(const request& r, const Take& take, const Give& give) {
  for (std::size_t k = 0; k < r.count; ++k) {
    r.blocks[k] = take(r.bytes);
    *static_cast<std::uint32_t*>(r.blocks[k]) = static_cast<std::uint32_t>(k);
  }
  for (std::size_t k = 0; k < r.count; ++k) give(r.blocks[k], r.bytes);
}

/// Takes all blocks, gives a random half of them back and takes as many again, then exchanges each for
/// another, and gives all back; all in random order.
template <class Take, class Give>
void at_random(const request& r, const Take& take, const Give& give) {
  const auto taken = [&](std::size_t k) {
    r.blocks[k] = take(r.bytes);
    *static_cast<std::uint32_t*>(r.blocks[k]) = static_cast<std::uint32_t>(k);
  };
  for (std::size_t k = 0; k < r.count; ++k) taken(k);
  for (std::size_t k = 0; k < r.count / 2; ++k) give(r.blocks[r.order[k]], r.bytes);
  for (std::size_t k = 0; k < r.count / 2; ++k) taken(r.order[k]);
  for (std::size_t k = 0; k < r.count; ++k) {
    give(r.blocks[r.order[k]], r.bytes);
    taken(r.order[k]);
  }
  for (std::size_t k = 0; k < r.count; ++k) give(r.blocks[r.order[k]], r.bytes);
}

using pattern = void (*)(const request&);

}  // namespace memory_bench

namespace o2 {
void malloc_in_order(const memory_bench::request& r);
void malloc_at_random(const memory_bench::request& r);
}  // namespace o2
namespace native {
void malloc_in_order(const memory_bench::request& r);
void malloc_at_random(const memory_bench::request& r);
}  // namespace native
