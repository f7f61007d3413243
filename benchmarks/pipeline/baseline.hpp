// The work of a stage, and pipelines of other libraries that do it. No header of ours here: the peers are
// compiled with -O2 and with -O3 -march=native.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pipeline_bench {

/// A chain of dependent operations, which no clock ends: `steps` times a multiplication and an addition.
inline std::uint64_t chain(std::uint64_t x, std::uint64_t steps) {
  for (std::uint64_t i = 0; i < steps; ++i) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    __asm__ volatile("" : "+r"(x));
  }
  return x;
}

/// The last stage's: what came, in order.
inline std::uint64_t fold(std::uint64_t sum, std::uint64_t item) { return sum * 31 + item; }

struct spec {
  std::uint64_t items = 100'000;
  std::uint64_t first_steps = 0;   ///< of the source
  std::uint64_t second_steps = 0;  ///< of the sink
  std::size_t tokens = 4;          ///< items under way, those in the stages included
};

/// Seconds for two stages, or three; `sum` is the fold of the items.
using run = double (*)(const spec&, std::uint64_t& sum);
struct contender {
  const char* name;
  run two;
  run three;
};

}  // namespace pipeline_bench

namespace o2 {
void add_tbb(std::vector<pipeline_bench::contender>& to);
void add_taskflow(std::vector<pipeline_bench::contender>& to);
}  // namespace o2
namespace native {
void add_tbb(std::vector<pipeline_bench::contender>& to);
void add_taskflow(std::vector<pipeline_bench::contender>& to);
}  // namespace native
