// The cuBLASLt and CUDA runtime calls that products make, as a policy class: the backend is a template over
// it, and tests run it over a fake library that multiplies in plain loops.
//
//   cublaslt_backend<cublaslt_api>      on a device      (cuda_cublaslt_gemm.hpp)
//   cublaslt_backend<fake_cublaslt>     in a test
//
// Descriptors are plain structs, initialised in place: a copy is an independent descriptor.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/memory/cuda_runtime.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Descriptors of a product d = op(first) op(second) + c: the operation (steps) and the column-major layouts.
struct cublaslt_product {
  cublasLtMatmulDescOpaque_t steps;
  cublasLtMatrixLayoutOpaque_t first, second, c, d;
};

struct cublaslt_api {
  // --- CUDA runtime ---
  static status device(int& which) noexcept { return cuda_status(cudaGetDevice(&which)); }
  static status copy(void* to, const void* from, std::size_t bytes, cudaStream_t on) noexcept {
    return cuda_status(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, on));
  }
  static status zero(void* to, std::size_t bytes, cudaStream_t on) noexcept {
    return cuda_status(cudaMemsetAsync(to, 0, bytes, on));
  }

  // --- descriptors ---
  static cublasStatus_t make(cublasLtMatmulDescOpaque_t& made, cublasComputeType_t compute) noexcept {
    return cublasLtMatmulDescInit(&made, compute, CUDA_R_32F);
  }
  static cublasStatus_t set(cublasLtMatmulDescOpaque_t& of, cublasLtMatmulDescAttributes_t which,
                            const void* value, std::size_t bytes) noexcept {
    return cublasLtMatmulDescSetAttribute(&of, which, value, bytes);
  }
  static cublasStatus_t make(cublasLtMatrixLayoutOpaque_t& made, cudaDataType_t type, std::uint64_t rows,
                             std::uint64_t columns, std::int64_t stride) noexcept {
    return cublasLtMatrixLayoutInit(&made, type, rows, columns, stride);
  }
  static cublasStatus_t set(cublasLtMatrixLayoutOpaque_t& of, cublasLtMatrixLayoutAttribute_t which,
                            const void* value, std::size_t bytes) noexcept {
    return cublasLtMatrixLayoutSetAttribute(&of, which, value, bytes);
  }
  static cublasStatus_t make(cublasLtMatmulPreferenceOpaque_t& made) noexcept {
    return cublasLtMatmulPreferenceInit(&made);
  }
  static cublasStatus_t set(cublasLtMatmulPreferenceOpaque_t& of, cublasLtMatmulPreferenceAttributes_t which,
                            const void* value, std::size_t bytes) noexcept {
    return cublasLtMatmulPreferenceSetAttribute(&of, which, value, bytes);
  }

  // --- products ---
  static cublasStatus_t make(cublasLtHandle_t& made) noexcept { return cublasLtCreate(&made); }
  static cublasStatus_t choose(cublasLtHandle_t with, cublaslt_product& p,
                               cublasLtMatmulPreferenceOpaque_t& wish, int most,
                               cublasLtMatmulHeuristicResult_t* found, int& count) noexcept {
    return cublasLtMatmulAlgoGetHeuristic(with, &p.steps, &p.first, &p.second, &p.c, &p.d, &wish, most, found,
                                          &count);
  }
  static cublasStatus_t multiply(cublasLtHandle_t with, cublaslt_product& p, float beta, const void* first,
                                 const void* second, const void* c, void* d,
                                 const cublasLtMatmulAlgo_t& algorithm, void* workspace,
                                 std::size_t workspace_bytes, cudaStream_t on) noexcept {
    const float one = 1;
    return cublasLtMatmul(with, &p.steps, &one, first, &p.first, second, &p.second, &beta, c, &p.c, d, &p.d,
                          &algorithm, workspace, workspace_bytes, on);
  }
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
