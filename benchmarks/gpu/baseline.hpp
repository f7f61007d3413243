// What the GPU suite compares products with: cuBLASLt by itself, and the passes of a framework that fuses
// nothing. No header of deeprec here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

namespace gpu_baseline {

/// y (m,n) = x (m,k) w^T, dense and row-major, w stored (n,k). Descriptors, the heuristic's answers and the
/// workspace are made once; a run is one call of cublasLtMatmul.
class raw_gemm {
 public:
  struct shape {
    long m, n, k;
    bool bf16;                    ///< x and w are bf16; else float, multiplied as TF32
    bool bf16_result;             ///< y too
    const float* bias = nullptr;  ///< (n): y is relu(... + bias), by the library's own epilogue
  };
  virtual ~raw_gemm() = default;
  /// How many algorithms the heuristic named; the one that it believes in comes first.
  [[nodiscard]] virtual int algorithms() const = 0;
  virtual void choose(int algorithm) = 0;
  [[nodiscard]] virtual bool run(const void* x, const void* w, void* y, cudaStream_t on) = 0;
};
/// Null when cuBLASLt refuses.
std::unique_ptr<raw_gemm> make_raw_gemm(const raw_gemm::shape& of, const void* x, const void* w, void* y,
                                        std::size_t workspace_bytes);

// Passes over y (m,n), n a multiple of 4.
void bias_pass(float* y, const float* bias, long m, long n, cudaStream_t on);
void relu_pass(float* y, long m, long n, cudaStream_t on);

}  // namespace gpu_baseline
