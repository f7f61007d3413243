// What the suite of layers compares with: every layer op by op, as a framework runs it, with Eigen. An op is
// one pass over its operands, and its result is in memory. No header of deeprec here; every function exists
// twice, built with -O2 (namespace o2) and with -O3 -march=native (namespace native).
#pragma once

#include <cstdint>

namespace layers_baseline {

/// Vectors (samples, count, width), side by side.
struct vectors_shape {
  long samples, count, width;
};

struct interaction_case {
  vectors_shape shape;
  const float* vectors;
  const float* gradient;  // (samples, width + count (count - 1) / 2)
  float* out;
  float* vector_gradients;
};

struct fm_case {
  vectors_shape shape;
  const float* vectors;
  const float* gradient;  // (samples, width)
  float* out;
  float* vector_gradients;
};

struct dice_case {
  long rows, width;
  const float* x;
  const float* alpha;
  const float* gradient;
  float* y;
  float* x_gradient;
  float* alpha_gradient;
};

/// Features of all positions, and the sum of score times key over each history.
struct attention_case {
  long samples, positions, width;
  const float* queries;         // (samples, width)
  const float* keys;            // (positions, width)
  const std::int64_t* offsets;  // (samples + 1)
  const float* scores;          // (positions)
  const float* features_gradient;
  const float* pooled_gradient;
  float* features;  // (positions, 4 width)
  float* pooled;    // (samples, width)
  float* query_gradient;
  float* key_gradient;
  float* score_gradient;
};

struct cross_case {
  long samples, width;
  const float *x0, *x, *weights, *bias, *gradient;
  float *product, *out;
  float *weight_gradient, *bias_gradient, *x0_gradient, *x_gradient;  // x0_gradient is added to
};

/// Of (batch, batch) scores, without weights and ids.
struct softmax_case {
  long batch;
  float scale;
  const float* scores;
  float* loss;
  float* gradient;
};

struct normalize_case {
  long rows, width;
  const float* x;
  const float* gradient;
  float* y;
  float* inverse_norms;
  float* x_gradient;
};

#define LAYERS_BASELINES                                                        \
  /* Batched products into (samples, count, count), a gather of the triangle */ \
  void interaction_forward(const interaction_case& of);                         \
  /* The triangle is scattered to both halves of (samples, count, count) */     \
  void interaction_backward(const interaction_case& of);                        \
  /* Half of the square of the sum without the sum of the squares */            \
  void fm_forward(const fm_case& of);                                           \
  void fm_backward(const fm_case& of);                                          \
  /* Batch normalisation and the sigmoid are one op each, as in frameworks */   \
  void dice_forward(const dice_case& of);                                       \
  void dice_backward(const dice_case& of);                                      \
  /* Without padding: queries are repeated for each position */                 \
  void attention_forward(const attention_case& of);                             \
  void attention_backward(const attention_case& of);                            \
  void cross_forward(const cross_case& of);                                     \
  void cross_backward(const cross_case& of);                                    \
  void softmax_forward(const softmax_case& of);                                 \
  void softmax_backward(const softmax_case& of);                                \
  void normalize_forward(const normalize_case& of);                             \
  void normalize_backward(const normalize_case& of);

namespace o2 {
LAYERS_BASELINES
}
namespace native {
LAYERS_BASELINES
}
}  // namespace layers_baseline
