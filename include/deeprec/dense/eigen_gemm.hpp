// Float products by Eigen: the reference engine, always there. Eigen uses the vector instructions
// that this unit is compiled for, so the engine's namespace names them.
//
//   m x n x k ──> two small kernels of fixed order    one row or column, or nearly nothing to do
//            └──> Eigen's blocked product             the rest
//
// The small kernels exist because Eigen's own paths for such shapes sum in an order that depends on
// where the memory lies.
#pragma once

#include <Eigen/Core>

#include <deeprec/dense/gemm_engine.hpp>

#if defined(_OPENMP)
#  include <deeprec/dense/detail/one_openmp_thread.hpp>
#endif

namespace deeprec::inline DEEPREC_ABI {
namespace compiled_for::inline DEEPREC_PORTABLE {

struct eigen_engine {
  static constexpr const char* name = "Eigen";

  /// @dtype    float
  /// @numerics float products and sums in an order that depends on the machine's caches, the unit's
  ///           flags and the shape; error at most k * 2^-24 * sum |a||b| for each element
  /// @cost     O(mnk); Eigen packs operands into memory of its own
  /// @threads  thread-safe; uses one thread (in a unit with -fopenmp this holds as long as nobody
  ///           calls Eigen::setNbThreads)
  /// @error    none
  [[nodiscard]] status multiply(const gemm_tile<float, float, float>& t) const {
#if defined(_OPENMP)
    const detail::one_openmp_thread alone;
#endif
    const bool b_transposed = t.desc.b == gemm_operand::transposed;
    if (t.m == 1 || t.n == 1 || t.m + t.n + t.k < 24) {
      b_transposed ? by_dots(t) : by_rows(t);
    } else if (t.desc.a == gemm_operand::transposed) {
      b_transposed ? blocked<Eigen::ColMajor, Eigen::ColMajor>(t)
                   : blocked<Eigen::ColMajor, Eigen::RowMajor>(t);
    } else {
      b_transposed ? blocked<Eigen::RowMajor, Eigen::ColMajor>(t)
                   : blocked<Eigen::RowMajor, Eigen::RowMajor>(t);
    }
    return {};
  }

 private:
  using tile = gemm_tile<float, float, float>;

  // A transposed operand is the same memory read in column-major order.
  template <int OrderA, int OrderB>
  static void blocked(const tile& t) {
    using stride = Eigen::OuterStride<>;
    using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    using left = const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, OrderA>;
    using right = const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, OrderB>;
    const Eigen::Map<left, 0, stride> a(t.a, t.m, t.k, stride(t.a_stride));
    const Eigen::Map<right, 0, stride> b(t.b, t.k, t.n, stride(t.b_stride));
    Eigen::Map<matrix, 0, stride> c(t.c, t.m, t.n, stride(t.c_stride));
    if (t.desc.c == gemm_output::overwrite) c.setZero();
    c.noalias() += a * b;
  }

  static const float* a_row(const tile& t, index_t i, index_t& step) {
    const bool transposed = t.desc.a == gemm_operand::transposed;
    step = transposed ? t.a_stride : 1;
    return t.a + (transposed ? i : i * t.a_stride);
  }

  // c[i] += a[i][p] * b[p], p in order.
  static void by_rows(const tile& t) {
    for (index_t i = 0; i < t.m; ++i) {
      float* c = t.c + i * t.c_stride;
      if (t.desc.c == gemm_output::overwrite) {
        for (index_t j = 0; j < t.n; ++j) c[j] = 0;
      }
      index_t step;
      const float* a = a_row(t, i, step);
      for (index_t p = 0; p < t.k; ++p) {
        const float factor = a[p * step];
        const float* b = t.b + p * t.b_stride;
        index_t j = 0;
        for (; j + 8 <= t.n; j += 8) {
          for (int l = 0; l < 8; ++l) c[j + l] += factor * b[j + l];
        }
        for (; j < t.n; ++j) c[j] += factor * b[j];
      }
    }
  }

  // c[i][j] += dot(a[i], b[j]): eight sums, p modulo 8, then pairwise.
  static void by_dots(const tile& t) {
    for (index_t i = 0; i < t.m; ++i) {
      index_t step;
      const float* a = a_row(t, i, step);
      for (index_t j = 0; j < t.n; ++j) {
        const float* b = t.b + j * t.b_stride;
        float s[8] = {};
        index_t p = 0;
        for (; p + 8 <= t.k; p += 8) {
          for (int l = 0; l < 8; ++l) s[l] += a[(p + l) * step] * b[p + l];
        }
        for (int l = 0; p < t.k; ++p, ++l) s[l] += a[p * step] * b[p];
        const float dot = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
        float& c = t.c[i * t.c_stride + j];
        c = t.desc.c == gemm_output::overwrite ? dot : c + dot;
      }
    }
  }
};

}  // namespace compiled_for::inline DEEPREC_PORTABLE

using compiled_for::eigen_engine;
static_assert(GemmEngine<eigen_engine>);
}  // namespace deeprec::inline DEEPREC_ABI
