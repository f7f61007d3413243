// Eigen's Tensor formulations and loops by hand. Eigen's namespace is renamed for each build, or the linker
// would take one build's templates for both.

#define DEEPREC_BASELINE_JOIN_(a, b) a##b
#define DEEPREC_BASELINE_JOIN(a, b) DEEPREC_BASELINE_JOIN_(a, b)
#define Eigen DEEPREC_BASELINE_JOIN(Eigen_, DEEPREC_BASELINE_NS)
#include <unsupported/Eigen/CXX11/Tensor>

#include <algorithm>
#include <array>

#include "ops/baseline.hpp"

namespace ops_baseline::DEEPREC_BASELINE_NS {

namespace {

template <class T, int Rank>
using tensor = Eigen::TensorMap<Eigen::Tensor<T, Rank, Eigen::RowMajor>>;
const Eigen::DefaultDevice one_thread;

}  // namespace

void eigen_stitch(const int* const* indices, const float* const* data, long parts, long count, long width,
                  float* out, long rows) {
  tensor<float, 2> o(out, rows, width);
  for (long k = 0; k < parts; ++k) {
    const tensor<const float, 2> from(data[k], count, width);
    for (long i = 0; i < count; ++i) o.chip<0>(indices[k][i]) = from.chip<0>(i);
  }
}

void eigen_transpose(const float* in, long rows, long columns, float* out) {
  tensor<float, 2> o(out, columns, rows);
  o.device(one_thread) = tensor<const float, 2>(in, rows, columns).shuffle(std::array<int, 2>{1, 0});
}

void eigen_tile(const float* in, long rows, long columns, long down, long across, float* out) {
  tensor<float, 2> o(out, rows * down, columns * across);
  o.device(one_thread) =
      tensor<const float, 2>(in, rows, columns).broadcast(std::array<long, 2>{down, across});
}

void eigen_bias_add_grad(const float* in, long rows, long columns, float* out) {
  const Eigen::IndexList<Eigen::type2index<0>> down;
  tensor<float, 1> o(out, columns);
  o.device(one_thread) = tensor<const float, 2>(in, rows, columns).sum(down);
}

void eigen_segment_mean(const float* data, long rows, long width, const std::int64_t* indices,
                        const int* segments, long count, float* out, long segment_count) {
  const tensor<const float, 2> from(data, rows, width);
  tensor<float, 2> o(out, segment_count, width);
  long k = 0;
  for (long s = 0; s < segment_count; ++s) {
    auto row = o.chip<0>(s);
    const long first = k;
    while (k < count && segments[k] == s) ++k;
    const long n = k - first;
    // Several rows in one expression, as TensorFlow's kernel adds them.
    if (n == 0) {
      row.setZero();
      continue;
    }
    const auto at = [&](long i) { return from.chip<0>(indices[first + i]); };
    long i = n % 4;
    if (i == 0) {
      row = at(0) + at(1) + at(2) + at(3);
      i = 4;
    } else if (i == 1) {
      row = at(0);
    } else if (i == 2) {
      row = at(0) + at(1);
    } else {
      row = at(0) + at(1) + at(2);
    }
    for (; i + 4 <= n; i += 4) row += at(i) + at(i + 1) + at(i + 2) + at(i + 3);
    row = row / row.constant(static_cast<float>(n));
  }
}

float read_all(const float* in, long n, long ahead) {
  float sum[128] = {};
  long i = 0;
  for (; i + 128 <= n; i += 128) {
    if (ahead != 0) {
      for (long line = 0; line < 8; ++line) __builtin_prefetch(in + i + 16 * (ahead + line), 0, 2);
    }
    for (long j = 0; j < 128; ++j) sum[j] += in[i + j];
  }
  for (; i < n; ++i) sum[0] += in[i];
  for (long j = 1; j < 128; ++j) sum[0] += sum[j];
  return sum[0];
}

void gather_means(const float* data, long width, const std::int64_t* indices, const int* segments, long count,
                  float* out, long segment_count, long ahead) {
  long k = 0;
  for (long s = 0; s < segment_count; ++s) {
    float* const to = out + s * width;
    const long first = k;
    for (; k < count && segments[k] == s; ++k) {
      if (ahead != 0 && k + ahead < count) {
        const float* const soon = data + indices[k + ahead] * width;
        for (long j = 0; j < width; j += 16) __builtin_prefetch(soon + j, 0, 2);
      }
      const float* const from = data + indices[k] * width;
      if (k == first) {
        for (long j = 0; j < width; ++j) to[j] = from[j];
      } else {
        for (long j = 0; j < width; ++j) to[j] += from[j];
      }
    }
    const auto n = static_cast<float>(k - first);
    if (n == 0) std::fill(to, to + width, 0.0F);
    if (n > 1) {
      for (long j = 0; j < width; ++j) to[j] /= n;
    }
  }
}

// max(((x + y) * 0.5) - y, 0) * x + 1
void chain_by_hand(const float* x, const float* y, float* out, long n) {
  for (long i = 0; i < n; ++i) {
    const float z = (x[i] + y[i]) * 0.5F - y[i];
    out[i] = (z > 0 ? z : 0) * x[i] + 1.0F;
  }
}

void chain_by_passes(const float* x, const float* y, float* out, long n) {
  for (long i = 0; i < n; ++i) out[i] = x[i] + y[i];
  for (long i = 0; i < n; ++i) out[i] = out[i] * 0.5F;
  for (long i = 0; i < n; ++i) out[i] = out[i] - y[i];
  for (long i = 0; i < n; ++i) out[i] = out[i] > 0 ? out[i] : 0;
  for (long i = 0; i < n; ++i) out[i] = out[i] * x[i];
  for (long i = 0; i < n; ++i) out[i] = out[i] + 1.0F;
}

}  // namespace ops_baseline::DEEPREC_BASELINE_NS
