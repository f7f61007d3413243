// What the suite of tensor operators compares with. No header of deeprec here; every function exists twice,
// built with -O2 (namespace o2) and with -O3 -march=native (namespace native).
#pragma once

#include <cstdint>

#define OPS_BASELINES                                                                                        \
  /* Eigen's Tensor formulations on one thread, as TensorFlow's CPU kernels write them. */                   \
  void eigen_stitch(const int* const* indices, const float* const* data, long parts, long count, long width, \
                    float* out, long rows);                                                                  \
  void eigen_transpose(const float* in, long rows, long columns, float* out);                                \
  void eigen_tile(const float* in, long rows, long columns, long down, long across, float* out);             \
  void eigen_bias_add_grad(const float* in, long rows, long columns, float* out);                            \
  void eigen_segment_mean(const float* data, long rows, long width, const std::int64_t* indices,             \
                          const int* segments, long count, float* out, long segment_count);                  \
  /* Limits. Streaming stores of n floats at a multiple of 16 bytes. */                                      \
  void fill_streamed(float* out, long n, float value);                                                       \
  /* Sums of n floats, read at `places` places that are `apart` floats (a multiple of 128) from each */      \
  /* other in turn, prefetched `ahead` lines. */                                                             \
  float read_all(const float* in, long n, long ahead, long places, long apart);                              \
  /* Means of the rows of segments by hand, of a multiple of 128 columns. The rows `ahead` positions */      \
  /* later are prefetched, `near`: into the first-level cache. */                                            \
  void gather_means(const float* data, long width, const std::int64_t* indices, const int* segments,         \
                    long count, float* out, long segment_count, long ahead, bool near);                      \
  /* Six element-wise operations: by hand in one loop, and each in a pass of its own. */                     \
  void chain_by_hand(const float* x, const float* y, float* out, long n);                                    \
  void chain_by_passes(const float* x, const float* y, float* out, long n);

namespace ops_baseline {
namespace o2 {
OPS_BASELINES
}
namespace native {
OPS_BASELINES
}
}  // namespace ops_baseline
