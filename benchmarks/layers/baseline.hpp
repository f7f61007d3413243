// What the suite of layers compares with. No header of deeprec here; every function exists twice, built with
// -O2 (namespace o2) and with -O3 -march=native (namespace native).
#pragma once

#define LAYERS_BASELINES                                                                                 \
  /* DLRM's interaction op by op, on vectors (samples, count, width) that are side by side: */           \
  /* batched products with Eigen into `products` (samples, count, count), a gather of the triangle. */   \
  void eigen_interaction(const float* vectors, long samples, long count, long width, float* products,    \
                         float* out);                                                                    \
  /* The gradients of all vectors: the triangle is scattered to both halves of `products`. */            \
  void eigen_interaction_backward(const float* vectors, const float* gradient, long samples, long count, \
                                  long width, float* products, float* vector_gradients);

namespace layers_baseline {
namespace o2 {
LAYERS_BASELINES
}
namespace native {
LAYERS_BASELINES
}
}  // namespace layers_baseline
