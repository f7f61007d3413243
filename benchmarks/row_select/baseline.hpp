// What the row-select suite compares with. No header of deeprec here; every function exists twice, built
// with -O2 (namespace o2) and with -O3 -march=native (namespace native).
#pragma once

#include <cstddef>

#define ROW_SELECT_BASELINES                                                                            \
  /* Eigen's broadcast and select on one thread, as TensorFlow's CPU kernel writes it. */               \
  void eigen_select(const bool* cond, const float* then, const float* otherwise, float* out, long rows, \
                    long width);                                                                        \
  /* One way of many to select rows of 64 floats by hand; out is a multiple of 64. */                   \
  int sweep_size();                                                                                     \
  const char* sweep_name(int i);                                                                        \
  void sweep_run(int i, const bool* cond, const float* then, const float* otherwise, float* out, long rows);

namespace row_select_baseline {
namespace o2 {
ROW_SELECT_BASELINES
}
namespace native {
ROW_SELECT_BASELINES
}
}  // namespace row_select_baseline
