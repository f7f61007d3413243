// Float products by oneDNN, which picks its instruction set at run time whatever this unit is
// compiled for. Declares nothing unless DEEPREC_WITH_ONEDNN is defined (the target deeprec::onednn
// does that).
//
//   tile ──> dnnl_sgemm, with OpenMP held to one thread around the call
//
// Only the C entry point is used, which oneDNN 2.6 and 3.x share.
#pragma once

#include <deeprec/dense/gemm_engine.hpp>

#if defined(DEEPREC_WITH_ONEDNN) && DEEPREC_WITH_ONEDNN
#  include <oneapi/dnnl/dnnl.h>

#  if DNNL_CPU_RUNTIME == DNNL_RUNTIME_OMP
#    include <deeprec/dense/detail/one_openmp_thread.hpp>
#  endif

namespace deeprec::inline DEEPREC_ABI {

struct onednn_engine {
  static constexpr const char* name = "oneDNN";

  /// @dtype    float
  /// @numerics float products and sums in oneDNN's order, which depends on the machine and the shape
  /// @cost     O(mnk); oneDNN packs operands into memory of its own
  /// @threads  thread-safe; uses one thread (a oneDNN built on TBB: those of the caller's arena)
  /// @error    unsupported: oneDNN refused · out_of_memory
  [[nodiscard]] status multiply(const gemm_tile<float, float, float>& t) const noexcept {
#  if DNNL_CPU_RUNTIME == DNNL_RUNTIME_OMP
    const detail::one_openmp_thread alone;
#  endif
    const dnnl_status_t answer = dnnl_sgemm(
        t.desc.a == gemm_operand::transposed ? 'T' : 'N',
        t.desc.b == gemm_operand::transposed ? 'T' : 'N', t.m, t.n, t.k, 1.0F, t.a, t.a_stride, t.b,
        t.b_stride, t.desc.c == gemm_output::accumulate ? 1.0F : 0.0F, t.c, t.c_stride);
    if (answer == dnnl_success) return {};
    if (answer == dnnl_out_of_memory) return {errc::out_of_memory, "gemm: oneDNN"};
    return {errc::unsupported, "gemm: oneDNN refused the product"};
  }
};

static_assert(GemmEngine<onednn_engine>);

}  // namespace deeprec::inline DEEPREC_ABI
#endif
