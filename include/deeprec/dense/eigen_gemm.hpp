// Float products by Eigen: the reference, always available. Eigen uses the vector instructions that this unit
// is compiled for, so the name of the backend's namespace includes them.
//
//   m x n x k ──> two small kernels of fixed order    one row or column, or a very small product
//            └──> Eigen's blocked product             the rest
//
// The small kernels exist because Eigen's own paths for such shapes sum in an order that depends on the
// address of the data.
#pragma once

#include <Eigen/Core>

#include <deeprec/dense/gemm_backend.hpp>

#if defined(_OPENMP)
#  include <deeprec/dense/detail/one_openmp_thread.hpp>
#endif

namespace deeprec { inline namespace DEEPREC_ABI {
namespace compiled_for { inline namespace DEEPREC_PORTABLE {

/// @numerics float products and sums in an order that depends on the machine's caches, the unit's
///           flags and the shape; error at most k * 2^-24 * sum |a||b| for each element
/// @cost     O(mnk); Eigen packs operands into memory of its own
/// @threads  thread-safe; uses one thread (in a unit with -fopenmp, unless Eigen::setNbThreads is
///           called)
/// @error    none
struct eigen_gemm {
  static constexpr const char* name = "Eigen";

  [[nodiscard]] static status can_run(const gemm_backend::problem& q) noexcept {
    if (q.inputs != gemm_storage::f32) return {errc::unsupported, "Eigen multiplies float only"};
    if (q.output != gemm_storage::f32) return {errc::unsupported, "Eigen's results are float"};
    if (q.packed) return {errc::unsupported, "Eigen has no packed form"};
    if (q.bias || q.residual || q.activation != gemm_activation::none) {
      return {errc::unsupported, "Eigen fuses accumulation only"};
    }
    return {};
  }
  [[nodiscard]] static gemm_backend::plan plan(const gemm_backend::problem& q) noexcept {
    return {.query = q, .run = can_run(q) ? &run : nullptr, .implementation = name};
  }

 private:
  struct tile {
    const gemm_backend::problem& q;
    const float* a;
    const float* b;
    float* c;
  };

  static status run(const gemm_backend::plan& plan, const gemm_backend::args& at) {
#if defined(_OPENMP)
    const detail::one_openmp_thread alone;
#endif
    const gemm_backend::problem& q = plan.query;
    const tile t{q, static_cast<const float*>(at.a), static_cast<const float*>(at.b),
                 static_cast<float*>(at.c)};
    const bool b_transposed = q.b == gemm_operand::transposed;
    if (q.m == 1 || q.n == 1 || q.m + q.n + q.k < 24) {
      b_transposed ? by_dots(t) : by_rows(t);
    } else if (q.a == gemm_operand::transposed) {
      b_transposed ? blocked<Eigen::ColMajor, Eigen::ColMajor>(t)
                   : blocked<Eigen::ColMajor, Eigen::RowMajor>(t);
    } else {
      b_transposed ? blocked<Eigen::RowMajor, Eigen::ColMajor>(t)
                   : blocked<Eigen::RowMajor, Eigen::RowMajor>(t);
    }
    return {};
  }

  // A transposed operand is the same memory read in column-major order.
  template <int OrderA, int OrderB>
  static void blocked(const tile& t) {
    using stride = Eigen::OuterStride<>;
    using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    using left = const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, OrderA>;
    using right = const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, OrderB>;
    const Eigen::Map<left, 0, stride> a(t.a, t.q.m, t.q.k, stride(t.q.a_stride));
    const Eigen::Map<right, 0, stride> b(t.b, t.q.k, t.q.n, stride(t.q.b_stride));
    Eigen::Map<matrix, 0, stride> c(t.c, t.q.m, t.q.n, stride(t.q.c_stride));
    if (!t.q.accumulates) c.setZero();
    c.noalias() += a * b;
  }

  static const float* a_row(const tile& t, index_t i, index_t& step) {
    const bool transposed = t.q.a == gemm_operand::transposed;
    step = transposed ? t.q.a_stride : 1;
    return t.a + (transposed ? i : i * t.q.a_stride);
  }

  // c[i] += a[i][p] * b[p], p in order.
  static void by_rows(const tile& t) {
    for (index_t i = 0; i < t.q.m; ++i) {
      float* c = t.c + i * t.q.c_stride;
      if (!t.q.accumulates) {
        for (index_t j = 0; j < t.q.n; ++j) c[j] = 0;
      }
      index_t step;
      const float* a = a_row(t, i, step);
      for (index_t p = 0; p < t.q.k; ++p) {
        const float factor = a[p * step];
        const float* b = t.b + p * t.q.b_stride;
        index_t j = 0;
        for (; j + 8 <= t.q.n; j += 8) {
          for (int l = 0; l < 8; ++l) c[j + l] += factor * b[j + l];
        }
        for (; j < t.q.n; ++j) c[j] += factor * b[j];
      }
    }
  }

  // c[i][j] += dot(a[i], b[j]): eight sums, p modulo 8, then pairwise.
  static void by_dots(const tile& t) {
    for (index_t i = 0; i < t.q.m; ++i) {
      index_t step;
      const float* a = a_row(t, i, step);
      for (index_t j = 0; j < t.q.n; ++j) {
        const float* b = t.b + j * t.q.b_stride;
        float s[8] = {};
        index_t p = 0;
        for (; p + 8 <= t.q.k; p += 8) {
          for (int l = 0; l < 8; ++l) s[l] += a[(p + l) * step] * b[p + l];
        }
        for (int l = 0; p < t.q.k; ++p, ++l) s[l] += a[p * step] * b[p];
        const float dot = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
        float& c = t.c[i * t.q.c_stride + j];
        c = t.q.accumulates ? c + dot : dot;
      }
    }
  }
};

}}  // namespace compiled_for::DEEPREC_PORTABLE

using compiled_for::eigen_gemm;
static_assert(GemmBackend<eigen_gemm>);
}}  // namespace deeprec::DEEPREC_ABI
