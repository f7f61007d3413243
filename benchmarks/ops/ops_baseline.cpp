// Eigen's Tensor formulations and loops by hand. Eigen's namespace is renamed for each build, or the linker
// would take one build's templates for both.

#define DEEPREC_BASELINE_JOIN_(a, b) a##b
#define DEEPREC_BASELINE_JOIN(a, b) DEEPREC_BASELINE_JOIN_(a, b)
#define Eigen DEEPREC_BASELINE_JOIN(Eigen_, DEEPREC_BASELINE_NS)
#include <unsupported/Eigen/CXX11/Tensor>

#ifdef __SSE2__
#  include <immintrin.h>
#endif

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

void fill_streamed(float* out, long n, float value) {
#ifdef __SSE2__
  const __m128 four = _mm_set1_ps(value);
  for (long i = 0; i + 4 <= n; i += 4) _mm_stream_ps(out + i, four);
  for (long i = n / 4 * 4; i < n; ++i) out[i] = value;
  _mm_sfence();
#else
  std::fill(out, out + n, value);
#endif
}

float read_all(const float* in, long n, long ahead, long places, long apart) {
  float sum[128] = {};
  long i = 0;
  for (; i + places * apart <= n; i += places * apart) {
    for (long line = 0; line < apart; line += 128) {
      for (long place = 0; place < places; ++place) {
        const float* const from = in + i + place * apart + line;
        if (ahead != 0) {
          for (long l = 0; l < 8; ++l) __builtin_prefetch(from + 16 * (ahead + l), 0, 2);
        }
        for (long j = 0; j < 128; ++j) sum[j] += from[j];
      }
    }
  }
  for (; i < n; ++i) sum[0] += in[i];
  for (long j = 1; j < 128; ++j) sum[0] += sum[j];
  return sum[0];
}

namespace {

using floats16 __attribute__((vector_size(64), aligned(4), may_alias)) = float;

// Columns [0, 128) of the positions [begin, end), summed in registers.
void add_128(const float* data, long width, const std::int64_t* indices, long begin, long end, long count,
             float* out, long ahead, bool near) {
  floats16 sum[8] = {};
  for (long at = begin; at < end; ++at) {
    if (ahead != 0 && at + ahead < count) {
      const float* const soon = data + indices[at + ahead] * width;
      for (long j = 0; j < 128; j += 16) {
        near ? __builtin_prefetch(soon + j, 0, 3) : __builtin_prefetch(soon + j, 0, 2);
      }
    }
    const auto* const from = reinterpret_cast<const floats16*>(data + indices[at] * width);
#pragma GCC unroll 8
    for (int v = 0; v < 8; ++v) sum[v] += from[v];
  }
  const float scale = end > begin ? 1 / static_cast<float>(end - begin) : 0;
  auto* const to = reinterpret_cast<floats16*>(out);
#pragma GCC unroll 8
  for (int v = 0; v < 8; ++v) to[v] = sum[v] * scale;
}

}  // namespace

void gather_means(const float* data, long width, const std::int64_t* indices, const int* segments, long count,
                  float* out, long segment_count, long ahead, bool near) {
  long k = 0;
  for (long s = 0; s < segment_count; ++s) {
    const long first = k;
    while (k < count && segments[k] == s) ++k;
    for (long column = 0; column < width; column += 128) {
      add_128(data + column, width, indices, first, k, count, out + s * width + column, ahead, near);
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
