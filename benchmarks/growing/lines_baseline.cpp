#include <algorithm>

#include "growing/baseline.hpp"

namespace DEEPREC_BASELINE_NS {

std::uint64_t read_lines(const void* const* lines, std::size_t n, std::size_t ahead) {
  std::uint64_t sum = 0;
  const auto read = [&](std::size_t i) { sum += *static_cast<const std::uint64_t*>(lines[i]); };
  const std::size_t last = n - std::min(ahead, n);
  for (std::size_t i = 0; i < std::min(ahead, n); ++i) __builtin_prefetch(lines[i]);
  for (std::size_t i = 0; i < last; ++i) {
    __builtin_prefetch(lines[i + ahead]);
    read(i);
  }
  for (std::size_t i = last; i < n; ++i) read(i);
  return sum;
}

}  // namespace DEEPREC_BASELINE_NS
