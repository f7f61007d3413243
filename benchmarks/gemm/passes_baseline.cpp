// Eigen's layer, and the passes over memory that fusion saves. Eigen's namespace is renamed for each build,
// or the linker would take one build's templates for both.

#define DEEPREC_BASELINE_JOIN_(a, b) a##b
#define DEEPREC_BASELINE_JOIN(a, b) DEEPREC_BASELINE_JOIN_(a, b)
#define Eigen DEEPREC_BASELINE_JOIN(Eigen_, DEEPREC_BASELINE_NS)
#include <Eigen/Core>

#include <cstring>

#include "gemm/baseline.hpp"

namespace gemm_baseline::DEEPREC_BASELINE_NS {

using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

void eigen_layer(const float* a, const float* w, const float* bias, float* c, long m, long n, long k) {
  const Eigen::Map<const Eigen::RowVectorXf> b(bias, n);
  const Eigen::Map<const matrix> x(a, m, k), weights(w, n, k);
  Eigen::Map<matrix> y(c, m, n);
  if (m == 1) {  // as a vector, or Eigen takes its blocked product
    y.row(0).noalias() = x.row(0) * weights.transpose();
  } else {
    y.noalias() = x * weights.transpose();
  }
  y = (y.rowwise() + b).cwiseMax(0.0F);
}

void cast_pass(const float* from, unsigned short* to, long count) {
  for (long i = 0; i < count; ++i) {
    unsigned bits;
    std::memcpy(&bits, from + i, sizeof(bits));
    to[i] = static_cast<unsigned short>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
  }
}

void bias_pass(float* c, const float* bias, long m, long n) {
  for (long i = 0; i < m; ++i) {
    for (long j = 0; j < n; ++j) c[i * n + j] += bias[j];
  }
}

void relu_pass(float* c, long count) {
  for (long i = 0; i < count; ++i) c[i] = c[i] > 0 ? c[i] : 0;
}

}  // namespace gemm_baseline::DEEPREC_BASELINE_NS
