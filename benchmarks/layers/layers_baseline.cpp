#include <Eigen/Core>

#include <algorithm>

#include "layers/baseline.hpp"

namespace layers_baseline { namespace DEEPREC_BASELINE_NS {

namespace {
using rows_type = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using map = Eigen::Map<rows_type>;
using const_map = Eigen::Map<const rows_type>;

long out_width(long count, long width) { return width + count * (count - 1) / 2; }
}  // namespace

void eigen_interaction(const float* vectors, long samples, long count, long width, float* products,
                       float* out) {
  for (long b = 0; b < samples; ++b) {
    const const_map v(vectors + b * count * width, count, width);
    map(products + b * count * count, count, count).noalias() = v * v.transpose();
  }
  for (long b = 0; b < samples; ++b) {
    float* to = std::copy_n(vectors + b * count * width, width, out + b * out_width(count, width));
    for (long i = 1; i < count; ++i) to = std::copy_n(products + (b * count + i) * count, i, to);
  }
}

void eigen_interaction_backward(const float* vectors, const float* gradient, long samples, long count,
                                long width, float* products, float* vector_gradients) {
  for (long b = 0; b < samples; ++b) {
    const float* from = gradient + b * out_width(count, width) + width;
    float* const g = products + b * count * count;
    for (long i = 0; i < count; ++i) {
      g[i * count + i] = 0;
      for (long j = 0; j < i; ++j) g[i * count + j] = g[j * count + i] = *from++;
    }
  }
  for (long b = 0; b < samples; ++b) {
    const const_map v(vectors + b * count * width, count, width);
    map(vector_gradients + b * count * width, count, width).noalias() =
        const_map(products + b * count * count, count, count) * v;
  }
  for (long b = 0; b < samples; ++b) {
    const float* const g = gradient + b * out_width(count, width);
    float* const d0 = vector_gradients + b * count * width;
    for (long j = 0; j < width; ++j) d0[j] += g[j];
  }
}

}}  // namespace layers_baseline::DEEPREC_BASELINE_NS
