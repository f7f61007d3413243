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
#include <algorithm>
#include <cstddef>

#include <deeprec/dense/gemm/gemm_backend.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {
namespace compiled_for { inline namespace DEEPREC_PORTABLE {

/// @numerics float products and sums in an order that depends on the machine's caches, the unit's
///           flags and the shape; error at most k * 2^-24 * sum |a||b| for each element
/// @cost     O(mnk); operands are packed on the stack (up to 128 KiB each) or into the plan's scratch
/// @threads  thread-safe; uses one thread, also in a unit with -fopenmp
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
    return {.query = q,
            .run = can_run(q) ? &run : nullptr,
            .scratch_bytes = is_small(q) ? 0 : blocks(q).scratch_bytes(),
            .implementation = name};
  }

 private:
  struct tile {
    const gemm_backend::problem& q;
    const float* a;
    const float* b;
    float* c;
    std::byte* scratch;
  };

  // Eigen's sizes of blocks. Blocks that Eigen would take from the heap are in a plan's scratch.
  class blocks : public Eigen::internal::gemm_blocking_space<Eigen::RowMajor, float, float, Eigen::Dynamic,
                                                             Eigen::Dynamic, Eigen::Dynamic> {
   public:
    explicit blocks(const gemm_backend::problem& q) : gemm_blocking_space(q.m, q.n, q.k, 1, true) {}
    blocks(const gemm_backend::problem& q, std::byte* scratch) : blocks(q) {
      if (scratch_bytes() == 0) return;
      this->m_blockA = static_cast<float*>(static_cast<void*>(scratch));
      this->m_blockB = static_cast<float*>(static_cast<void*>(scratch + bytes_of(this->m_mc)));
    }
    blocks(const blocks&) = delete;
    blocks& operator=(const blocks&) = delete;
    ~blocks() { this->m_blockA = this->m_blockB = nullptr; }  // the base would free them

    [[nodiscard]] std::size_t scratch_bytes() const {
      const std::size_t a = bytes_of(this->m_mc), b = bytes_of(this->m_nc);
      constexpr std::size_t on_stack = EIGEN_STACK_ALLOCATION_LIMIT;
      return a <= on_stack && b <= on_stack ? 0 : a + b;
    }

   private:
    [[nodiscard]] std::size_t bytes_of(index_t rows) const {
      return (static_cast<std::size_t>(rows * this->m_kc) * sizeof(float) + 63) / 64 * 64;
    }
  };

  static bool is_small(const gemm_backend::problem& q) noexcept {
    return q.m == 1 || q.n == 1 || q.m + q.n + q.k < 24;
  }

  static status run(const gemm_backend::plan& plan, const gemm_backend::args& at) {
    const gemm_backend::problem& q = plan.query;
    const tile t{q, static_cast<const float*>(at.a), static_cast<const float*>(at.b),
                 static_cast<float*>(at.c), static_cast<std::byte*>(at.scratch)};
    const bool b_transposed = q.b == gemm_operand::transposed;
    if (is_small(q)) {
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
    const gemm_backend::problem& q = t.q;
    if (!q.accumulates) {
      for (index_t i = 0; i < q.m; ++i) std::fill_n(t.c + i * q.c_stride, q.n, 0.0F);
    }
    blocks space(q, t.scratch);
    Eigen::internal::general_matrix_matrix_product<index_t, float, OrderA, false, float, OrderB, false,
                                                   Eigen::RowMajor, 1>::run(q.m, q.n, q.k, t.a, q.a_stride,
                                                                            t.b, q.b_stride, t.c, 1,
                                                                            q.c_stride, 1.0F, space);
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
