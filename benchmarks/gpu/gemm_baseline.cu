#include <cublasLt.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "baseline.hpp"

namespace gpu_baseline {
namespace {

class lt_gemm final : public raw_gemm {
 public:
  ~lt_gemm() override {
    cudaFree(workspace_);
    for (const auto layout : {w_, x_, y_}) {
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    }
    if (what_ != nullptr) cublasLtMatmulDescDestroy(what_);
    if (handle_ != nullptr) cublasLtDestroy(handle_);
  }

  // A row-major matrix is a column-major one transposed: y^T (n,m) = w (n,k) x^T.
  bool make(const shape& of, const void* x, const void* w, void* y, std::size_t workspace_bytes) {
    const cudaDataType_t in = of.bf16 ? CUDA_R_16BF : CUDA_R_32F;
    const cudaDataType_t out = of.bf16_result ? CUDA_R_16BF : CUDA_R_32F;
    const cublasOperation_t turned = CUBLAS_OP_T;
    const auto m = static_cast<std::uint64_t>(of.m), n = static_cast<std::uint64_t>(of.n),
               k = static_cast<std::uint64_t>(of.k);
    cublasLtMatmulPreference_t wish = nullptr;
    const bool made =
        good(cublasLtCreate(&handle_)) &&
        good(cublasLtMatmulDescCreate(&what_, of.bf16 ? CUBLAS_COMPUTE_32F : CUBLAS_COMPUTE_32F_FAST_TF32,
                                      CUDA_R_32F)) &&
        good(cublasLtMatmulDescSetAttribute(what_, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned)) &&
        (of.bias == nullptr || epilogue(of.bias)) && good(cublasLtMatrixLayoutCreate(&w_, in, k, n, of.k)) &&
        good(cublasLtMatrixLayoutCreate(&x_, in, k, m, of.k)) &&
        good(cublasLtMatrixLayoutCreate(&y_, out, n, m, of.n)) &&
        good(cublasLtMatmulPreferenceCreate(&wish)) &&
        good(cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                  &workspace_bytes, sizeof workspace_bytes)) &&
        align(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, w) &&
        align(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, x) &&
        align(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, y) &&
        align(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, y) &&
        good(cublasLtMatmulAlgoGetHeuristic(handle_, what_, w_, x_, y_, y_, wish, most, found_, &count_)) &&
        count_ > 0 && cudaMalloc(&workspace_, workspace_bytes) == cudaSuccess;
    if (wish != nullptr) cublasLtMatmulPreferenceDestroy(wish);
    return made;
  }

  int algorithms() const override { return count_; }
  void choose(int algorithm) override { chosen_ = algorithm; }
  bool run(const void* x, const void* w, void* y, cudaStream_t on) override {
    const float one = 1, zero = 0;
    const auto& how = found_[chosen_];
    return good(cublasLtMatmul(handle_, what_, &one, w, w_, x, x_, &zero, y, y_, y, y_, &how.algo, workspace_,
                               how.workspaceSize, on));
  }

 private:
  static bool good(cublasStatus_t s) { return s == CUBLAS_STATUS_SUCCESS; }
  // A bias for each of the n rows of y^T.
  bool epilogue(const float* bias) {
    const cublasLtEpilogue_t what = CUBLASLT_EPILOGUE_RELU_BIAS;
    const cudaDataType_t type = CUDA_R_32F;
    const void* const at = bias;
    return good(cublasLtMatmulDescSetAttribute(what_, CUBLASLT_MATMUL_DESC_EPILOGUE, &what, sizeof what)) &&
           good(cublasLtMatmulDescSetAttribute(what_, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type,
                                               sizeof type)) &&
           good(cublasLtMatmulDescSetAttribute(what_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &at, sizeof at));
  }
  // The largest power of two, up to 256, that divides the address.
  static bool align(cublasLtMatmulPreference_t wish, cublasLtMatmulPreferenceAttributes_t which,
                    const void* at) {
    const auto address = reinterpret_cast<std::uintptr_t>(at) | 256U;
    const auto bytes = static_cast<std::uint32_t>(address & (~address + 1));
    return good(cublasLtMatmulPreferenceSetAttribute(wish, which, &bytes, sizeof bytes));
  }

  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t what_ = nullptr;
  cublasLtMatrixLayout_t w_ = nullptr, x_ = nullptr, y_ = nullptr;
  static constexpr int most = 8;
  cublasLtMatmulHeuristicResult_t found_[most] = {};
  int count_ = 0;
  int chosen_ = 0;
  void* workspace_ = nullptr;
};

// Four values a thread, 16 bytes a load.
__global__ void add_bias(float4* y, const float4* bias, long count, int columns) {
  const long i = static_cast<long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  float4 v = y[i];
  const float4 b = bias[static_cast<unsigned>(i) % static_cast<unsigned>(columns)];
  y[i] = {v.x + b.x, v.y + b.y, v.z + b.z, v.w + b.w};
}
__global__ void take_relu(float4* y, long count) {
  const long i = static_cast<long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  float4 v = y[i];
  y[i] = {fmaxf(v.x, 0), fmaxf(v.y, 0), fmaxf(v.z, 0), fmaxf(v.w, 0)};
}
template <class... Parameters>
void launch(long count, cudaStream_t on, void (*kernel)(Parameters...),
            std::type_identity_t<Parameters>... arguments) {
  cudaLaunchConfig_t shape{};
  shape.gridDim = dim3(static_cast<unsigned>((count + 255) / 256));
  shape.blockDim = dim3(256);
  shape.stream = on;
  cudaLaunchKernelEx(&shape, kernel, arguments...);
}

}  // namespace

std::unique_ptr<raw_gemm> make_raw_gemm(const raw_gemm::shape& of, const void* x, const void* w, void* y,
                                        std::size_t workspace_bytes) {
  auto made = std::make_unique<lt_gemm>();
  if (!made->make(of, x, w, y, workspace_bytes)) return nullptr;
  return made;
}

void bias_pass(float* y, const float* bias, long m, long n, cudaStream_t on) {
  const long count = m * n / 4;
  launch(count, on, add_bias, reinterpret_cast<float4*>(y), reinterpret_cast<const float4*>(bias), count,
         static_cast<int>(n / 4));
}
void relu_pass(float* y, long m, long n, cudaStream_t on) {
  const long count = m * n / 4;
  launch(count, on, take_relu, reinterpret_cast<float4*>(y), count);
}

}  // namespace gpu_baseline
