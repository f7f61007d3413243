// What the queue suite compares with, each compiled with -O2 (namespace o2) and -O3 -march=native (native).
// A peer that is not on this machine is not compiled, and its function not called.
#pragma once

#include <vector>

#include "queue/harness.hpp"

#define QUEUE_BASELINES                                                                          \
  void add_boost(std::vector<queue_bench::contender>& to);                                       \
  void add_moodycamel(std::vector<queue_bench::contender>& to);                                  \
  void add_tbb(std::vector<queue_bench::contender>& to);                                         \
  void add_atomic_queue(std::vector<queue_bench::contender>& to);                                \
  void add_rigtorp(std::vector<queue_bench::contender>& to);                                     \
  /* DeepRec's staging buffer in our words: seconds of a run of spsc with records of 8 bytes. */ \
  double staged_buffer_seconds(const queue_bench::spec& s);

namespace o2 {
QUEUE_BASELINES
}
namespace native {
QUEUE_BASELINES
}
